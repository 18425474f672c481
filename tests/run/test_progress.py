"""The share of the budget that is spent, from the driver's counters to the learning rate."""

import pytest
import torch

from appo.algorithms.config import resolve
from appo.algorithms.messages import TrainingReport
from appo.algorithms.run import resources
from appo.algorithms.run.driver import Driver
from appo.algorithms.run.experiment import Experiment
from appo.algorithms.run.serial import SerialWorkerPool
from appo.algorithms.workers.seeds import Seeds
from appo.envs.registry import probe
from appo.utils.signals import StopSignals

BUDGET = 4000
OPTIONS = ["--batch_size=128", "--rollout=8", "--num_workers=1", "--num_envs_per_worker=8", "--use_rnn=False"]


class Watched(SerialWorkerPool):
    """Remembers, for each iteration, the frames that were counted before it and the rate that it used."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rates, self._frames = [], 0

    def poll(self, timeout_s):
        reports = super().poll(timeout_s)
        trained = [report for report in reports if isinstance(report, TrainingReport)]
        self.rates += [(self._frames, report.metrics["lr"]) for report in trained]
        self._frames = int(self._arrays["env_frames"].sum())
        return reports


@pytest.fixture
def stop():
    signals, threads = StopSignals(lambda: pytest.fail("nobody asked for the end")), torch.get_num_threads()
    yield signals
    signals.restore()
    torch.set_num_threads(threads)


def test_the_rate_falls_with_the_share_of_the_budget_that_is_spent(tmp_path, stop):
    words = ["--env=synthetic_identity", f"--train_dir={tmp_path}", "--device=cpu", "--seed=1", "--serial_mode=True"]
    words += ["--lr_schedule=linear_decay", "--learning_rate=0.01", f"--train_for_env_steps={BUDGET}", *OPTIONS]
    resolved = resolve(words)
    config = resolved.config
    spec = probe("synthetic_identity", config.family)
    shared = resources.allocate(config, resources.sizes_of(config, spec))
    experiment = Experiment.open(resolved, words)
    seeds = Seeds(config.run.seed, experiment.starts)
    pool = Watched(resources.plan_of(config, spec, "cpu", [experiment.checkpoint_dir(0)], seeds), shared)
    driver = Driver(config, experiment, pool, shared, stop)
    driver.run()
    driver.end("the test is over", 0.0)
    experiment.close()
    frames, rates = zip(*pool.rates, strict=True)
    assert len(rates) > 8 and 0 < frames[0] < 0.2 * BUDGET and frames[-1] > 0.8 * BUDGET
    assert rates == pytest.approx([0.01 * (1.0 - each / BUDGET) for each in frames])
