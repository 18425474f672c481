"""Everything in one process: whose counters are whose, and what a resume with other numbers goes on from."""

import math

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.memory.counters import Timer
from appo.algorithms.messages import (
    CheckpointSaved,
    HyperparametersChanged,
    HyperparametersRefused,
    SaveCheckpoint,
    SetHyperparameters,
)
from appo.algorithms.run import resources
from appo.algorithms.run.experiment import Experiment
from appo.algorithms.run.serial import SerialWorkerPool
from appo.algorithms.workers.seeds import Seeds
from appo.envs.registry import probe
from appo.envs.registry import resolve as resolve_env
from tests.workers.core_cases import run_state

SMALL = ["--use_rnn=False", "--hidden_size=16", "--mlp_layers=16", "--rollout=8", "--batch_size=64", "--seed=1"]
WHOLE_RUN = ["--env=CartPole-v1", "--device=cpu", "--serial_mode=True", "--num_workers=1", "--num_envs_per_worker=4"]


class Serial:
    """A pool in the folder of an experiment, without its driver."""

    def __init__(self, folder, *options):
        resolved = resolve([*WHOLE_RUN, *SMALL, f"--train_dir={folder}", *options])
        config = resolved.config
        spec = probe(resolve_env(config.env.env), config.family)
        self.experiment = Experiment.open(resolved, ["train_appo.py"])
        self.experiment.accept()
        self.shared = resources.allocate(config, resources.sizes_of(config, spec))
        folders = [self.experiment.checkpoint_dir(policy) for policy in range(config.sampling.num_policies)]
        self.pool = SerialWorkerPool(resources.plan_of(config, spec, "cpu", folders, Seeds(1, 0)), self.shared)

    def play(self, rounds):
        return [report for _ in range(rounds) for report in self.pool.poll(0.0)]

    def save(self):
        for policy in range(self.shared.arrays.sizes.learning_policies):
            state = run_state(7) | self.pool.state()
            self.pool.send_all([SaveCheckpoint(policy, "latest", 7, state, policy, math.nan, "")])
        saved = self.pool.stop(0.0)
        num_saved = sum(isinstance(report, CheckpointSaved) for report in saved)
        assert num_saved == self.shared.arrays.sizes.learning_policies

    def close(self):
        self.pool.stop(0.0)
        self.experiment.close()


@pytest.fixture
def serial(tmp_path):
    begun: list[Serial] = []

    def begin(*options):
        for one in begun:
            one.close()
        begun.append(Serial(tmp_path, *options))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_each_learner_books_its_own_time(serial):
    run = serial("--num_policies=3")
    run.play(300)
    timers = run.shared.arrays["timers"]
    assert (timers[-3:, Timer.LEARNER_COLLATE] > 0.0).all()
    assert not timers[:-3, Timer.LEARNER_COLLATE].any()


@pytest.mark.parametrize(
    "changed",
    [
        "--num_policies=1",
        "--num_policies=3",
        "--num_workers=2",
        "--num_envs_per_worker=8",
        "--worker_num_splits=1",
        "--num_policies=2",
    ],
)
def test_a_resume_with_other_numbers_goes_on(serial, changed):
    run = serial("--num_policies=2")
    run.play(100)
    run.save()
    again = serial("--num_policies=2", changed) if "policies" not in changed else serial(changed)
    restored = again.play(1)
    assert [bool(report.checkpoint) for report in restored][:2] == [True, True][: len(restored)]
    again.play(50)
    assert again.shared.arrays["env_frames"].sum() > 100


def test_options_are_changed_by_a_command(serial):
    run = serial()
    run.play(5)
    run.pool.send_all([SetHyperparameters(0, {"gamma": 0.5}), SetHyperparameters(0, {"rollout": 4})])
    reports = run.play(400)
    assert HyperparametersChanged(0, {"gamma": 0.5}) in reports
    assert [report.values for report in reports if isinstance(report, HyperparametersRefused)] == [{"rollout": 4}]
    assert run.pool._learners[0]._learner.config.gamma == 0.5
