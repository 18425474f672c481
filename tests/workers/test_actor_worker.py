"""An actor in a process of its own, played by a policy and a learner in this one."""

import time
from pathlib import Path

import psutil
import pytest

from appo.algorithms.memory.blocks import BlockState, block_states
from appo.algorithms.memory.counters import EventCounter, Phase, Timer
from appo.algorithms.messages import EpisodesFinished, Ready
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.workers.actor_worker import AT_ONCE_S, decorrelation_seconds
from appo.algorithms.workers.jobs import ActorJob
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.restarts import RestartLimits
from appo.algorithms.workers.roster import ACTOR, KINDS, POLICY_WORKER, WorkerId
from appo.algorithms.workers.worker_handle import Limits
from appo.envs.synthetic_options import SyntheticOptions
from tests.workers.conftest import PATIENCE_S, exit_code
from tests.workers.core_cases import ACTORS, ENVS_PER_SPLIT, ROLLOUT, SPLITS, Case, Turns

ACTOR_WORKER = KINDS[ACTOR].worker_class


class Stage:
    """Actors in processes; whoever answers and learns is here."""

    def __init__(self, case, folder, make_crew):
        self.turns = Turns(case, folder, with_splits=False)
        self.crew = make_crew(arrays=self.turns.arrays)
        self.case = case

    def start(self, actor, **sampling):
        envs = SPLITS * ENVS_PER_SPLIT
        options = SamplingConfig(num_workers=ACTORS, num_envs_per_worker=envs, worker_num_splits=SPLITS, **sampling)
        job = ActorJob(actor, ACTORS, self.case.env, self.case.family_options, options, 5, 6, self.case.spec)
        return self.crew.start(ACTOR_WORKER, process=actor, name=f"actor-{actor:02d}", job=job)

    def play(self, *, learn=True):
        """One turn: answer, learn, wake the actors, listen."""
        self.turns.turn()
        if learn and self.turns.assemblers[0].fill(self.turns.stagings[0]):
            self.turns.learners[0].train(self.turns.stagings[0])
        for worker in self.crew.roster.of_kind(ACTOR):
            self.crew.bells.of(worker).ring()
        self.crew.bells.of(WorkerId(POLICY_WORKER, 0, 0)).wait(0.002)
        self.crew.reports += self.crew.supervisor.poll(0.0)

    def play_until(self, condition, **options):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.crew.logs(), self.crew.arrays["phase"])
            self.play(**options)


@pytest.fixture
def stage_of(tmp_path, make_crew):
    return lambda case: Stage(case, tmp_path, make_crew)


@pytest.fixture
def stage(stage_of):
    return stage_of(Case("CartPole-v1", use_rnn=False))


def episodes(reports):
    return [episode for report in reports if isinstance(report, EpisodesFinished) for episode in report.episodes]


def test_actors_play_cartpole_and_what_they_report_agrees_with_what_they_counted(stage):
    workers = [stage.start(actor) for actor in range(ACTORS)]
    arrays = stage.crew.arrays
    stage.play_until(lambda: arrays["env_frames"].min() > 300 and len(episodes(stage.crew.reports)) > 20)
    stage.crew.reports += stage.crew.supervisor.stop(PATIENCE_S)
    assert [exit_code(worker) for worker in workers] == [0, 0]
    assert {report.worker for report in stage.crew.reports if isinstance(report, Ready)} == {"actor-00", "actor-01"}
    assert all(episode.episode_return == episode.length_frames > 0 for episode in episodes(stage.crew.reports))
    assert all(episode.policy == 0 for episode in episodes(stage.crew.reports))
    finished = sum(episode.length_frames for episode in episodes(stage.crew.reports))
    assert 0 < finished <= arrays["env_frames"].sum() + ROLLOUT * ACTORS * SPLITS * ENVS_PER_SPLIT
    steps = arrays["event_counts"][:ACTORS, EventCounter.ACTOR_STEPS_OF_SPLITS]
    assert (arrays["env_frames"][:, 0] <= steps * ENVS_PER_SPLIT).all()  # rows between episodes are no frames
    assert (arrays["env_frames"] == arrays["agent_steps"]).all()
    assert (
        arrays["event_counts"][:ACTORS, EventCounter.ACTOR_ROLLOUTS] == arrays["ready_sequence"].max(-1).sum(-1)
    ).all()
    assert stage.turns.learners[0].policy_version > 3
    assert arrays["timers"][0, Timer.ACTOR_ENV_STEP] > 0 and arrays["timers"][0, Timer.ACTOR_WAIT_POLICY] > 0
    assert stage.crew.phase(0) == Phase.ENDED


def test_actors_have_staggered_shares_of_the_time_to_move_their_environments_apart():
    sampling = SamplingConfig(decorrelate_experience_max_seconds=8.0)
    assert [decorrelation_seconds(sampling, index, 4, 0) for index in range(4)] == [AT_ONCE_S, 2.0, 4.0, 6.0]
    assert decorrelation_seconds(sampling, 3, 4, 1) == AT_ONCE_S, "somebody waits for a successor"
    for limit in (0.0, 0.1):
        sampling = SamplingConfig(decorrelate_experience_max_seconds=limit)
        assert decorrelation_seconds(sampling, 0, 4, 0) == decorrelation_seconds(sampling, 0, 4, 1) == limit


@pytest.mark.parametrize("seconds", [10.0, 0.0])
def test_the_first_blocks_hold_ends_of_long_episodes_where_there_was_time_to_move_environments_apart(stage_of, seconds):
    """Blocks end after 2 rollouts, episodes after 4: a rollout's worth of steps before them would not be enough."""
    stage = stage_of(Case("synthetic_identity", options={"synthetic_episode_length": 4 * ROLLOUT}, use_rnn=False))
    for actor in range(ACTORS):
        stage.start(actor, decorrelate_experience_max_seconds=seconds)
    arrays = stage.crew.arrays
    stage.play_until(lambda: (block_states(arrays) == BlockState.READY).all(), learn=False)
    assert (arrays["terminated"] | arrays["truncated"]).any() == (seconds > 0.0)
    assert not episodes(stage.crew.reports), "their beginnings were not seen"


def test_an_actor_is_small_and_knows_no_torch(stage):
    worker = stage.start(0)
    stage.play_until(lambda: stage.crew.arrays["env_frames"][0, 0] > 200)
    mapped = Path(f"/proc/{worker.pid}/maps").read_text()
    assert "libtorch" not in mapped and "numpy" in mapped
    assert psutil.Process(worker.pid).memory_full_info().uss < 100e6
    assert Path(f"/proc/{worker.pid}/cmdline").read_text().startswith("actor-00")


def test_without_a_learner_an_actor_fills_its_blocks_and_waits_and_nothing_is_lost(stage):
    stage.start(1)
    arrays = stage.crew.arrays
    stage.play_until(lambda: (block_states(arrays)[1] == BlockState.READY).all(), learn=False)
    counted = int(arrays["env_frames"][1, 0])
    for _ in range(100):
        stage.play(learn=False)
    assert arrays["env_frames"][1, 0] == counted
    assert arrays["ready_sequence"][1].tolist() == [[1, 2]] * SPLITS
    stage.play_until(lambda: arrays["env_frames"][1, 0] > 3 * counted)
    stage.play_until(lambda: arrays["timers"][1, Timer.ACTOR_WAIT_BLOCK] > 0, learn=False)


def test_an_actor_whose_predecessor_s_rollouts_fill_every_block_begins_when_a_learner_takes_them(stage):
    stage.start(1)
    arrays = stage.crew.arrays
    stage.play_until(lambda: (block_states(arrays)[1] == BlockState.READY).all(), learn=False)
    stage.crew.supervisor.stop(PATIENCE_S)
    counted = int(arrays["env_frames"][1, 0])
    stage.start(1)
    stage.play_until(lambda: stage.crew.phase(1) == Phase.STEP, learn=False)
    for _ in range(100):
        stage.play(learn=False)
    assert arrays["env_frames"][1, 0] == counted
    stage.play_until(lambda: arrays["env_frames"][1, 0] > 3 * counted)


def test_without_answers_an_actor_waits_and_stops_when_told(stage):
    worker = stage.start(0)
    stage.crew.ready("actor-00")
    for _ in range(20):
        stage.crew.supervisor.poll(0.01)
    assert not stage.crew.arrays["env_frames"].any()
    began = time.monotonic()
    stage.crew.supervisor.stop(PATIENCE_S)
    assert exit_code(worker) == 0
    assert time.monotonic() - began < 5.0


def test_an_environment_that_raises_is_built_anew_and_counted_and_its_actor_goes_on(stage_of):
    faults = {"synthetic_fault_step": 12, "synthetic_fault_env": 1}
    stage = stage_of(Case("synthetic_crashing", options=faults, use_rnn=False))
    stage.start(0, decorrelate_envs_on_one_worker=False)
    stage.play_until(lambda: stage.crew.arrays["event_counts"][0, EventCounter.ENV_CRASHES] >= 3)
    stage.play_until(lambda: stage.crew.phase(0) == Phase.STEP)  # building one is a phase of its own
    assert not stage.crew.arrays["event_counts"][0, EventCounter.ENV_BAD_DATA]
    log = stage.crew.logs()["actor-00"]
    assert "environment 1 of synthetic_crashing (worker 0, place 1 of its batch) failed in step: RuntimeError" in log
    assert "it is built anew (1 failures so far" in log and log.count("\n") < 5


def test_an_environment_that_fails_in_every_step_is_the_end_of_its_actor_with_the_cause(stage_of):
    faults = {"synthetic_fault_step": 0, "synthetic_fault_env": 1}
    stage = stage_of(Case("synthetic_crashing", options=faults, use_rnn=False))
    stage.start(0, max_env_rebuilds=4)
    message = r"(?s)^actor-00 failed\nTraceback.* 5 times in a row, .*synthetic crash in step 0 of environment 1$"
    with pytest.raises(RunFailed, match=message):
        stage.play_until(lambda: False)


def test_an_environment_with_other_spaces_than_were_looked_at_first_ends_its_actor_for_good(stage_of):
    """All of an actor's environments may agree with each other: what counts is what everybody else was built for."""
    case = Case("synthetic_identity", options={"synthetic_size": 3}, use_rnn=False)
    stage = stage_of(case)
    case.family_options = SyntheticOptions(synthetic_size=4)
    worker = stage.start(0)
    stage.crew.supervisor.restarts.limits = RestartLimits(setup_retries=2)
    message = (
        r"(?s)^actor-00 failed\nTraceback.*environment 0 of synthetic_identity .* failed in make: its spaces differ .*"
        r"it has \[observations: .* of 4 .*actions: one of 4; 1 agent\]; expected \[.*actions: one of 3; 1 agent\]"
    )
    with pytest.raises(RunFailed, match=message):
        stage.play_until(lambda: False)
    assert worker.generation == 0, "another try would have ended alike"


def test_building_and_resetting_many_slow_environments_takes_as_long_as_it_takes(stage_of):
    """Two of them take longer than one may take."""
    stage = stage_of(
        Case("synthetic_slow", options={"synthetic_reset_ms": 800.0, "synthetic_step_ms": 0.0}, use_rnn=False)
    )
    stage.crew.supervisor.limits = Limits(setup_s=60.0, reset_s=1.5, step_s=60.0)
    stage.start(0, decorrelate_experience_max_seconds=0.0)
    stage.play_until(lambda: stage.crew.phase(0) == Phase.STEP)
    assert not stage.crew.arrays["restarts"].any()


def test_an_environment_that_ends_the_process_is_noticed(stage_of):
    stage = stage_of(Case("synthetic_exit", options={"synthetic_fault_step": 3}, use_rnn=False))
    stage.start(0)
    with pytest.raises(
        RunFailed, match=r"^actor-00 ended by itself with exit code 7; an environment that .*; see .*actor-00.txt$"
    ):
        stage.play_until(lambda: False)


def test_an_environment_that_hangs_is_found_by_the_missing_heartbeat(stage_of):
    hangs = {"synthetic_fault_step": 12, "synthetic_stall_seconds": 1000.0}
    stage = stage_of(Case("synthetic_hanging", options=hangs, use_rnn=False))
    stage.start(0, decorrelate_envs_on_one_worker=False, decorrelate_experience_max_seconds=0.0)
    stage.play_until(lambda: stage.crew.phase(0) == Phase.STEP)
    stage.crew.supervisor.limits = Limits(step_s=1.0)
    with pytest.raises(
        RunFailed, match=r"^actor-00 showed no sign of life for 1 s in step \(--heartbeat_timeout_seconds\)$"
    ):
        stage.play_until(lambda: False)
    assert "synthetic_faults.py" in stage.crew.logs()["actor-00"]
