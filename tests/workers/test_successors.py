"""Policy workers and learners that take the place of lost ones: what their predecessors knew, they know."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.memory.counters import EventCounter, WorkerCounters
from appo.algorithms.memory.request_table import PolicyRequests, Slabs
from appo.algorithms.messages import PolicyRecovered, PolicyRestored, SaveCheckpoint, TrainingRolledBack
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.workers.learner_core import LearnerCore, TrainingDiverged
from appo.algorithms.workers.policy_core import PolicyCore, StateReplay
from tests.workers.core_cases import Case, Turns, run_state
from tests.workers.test_policy_and_learner_cores import CASES, DEEP, GRU, LSTM, assert_written_down_as_computed

SHORT = {"synthetic_episode_length": 4}
WITH_MEMORY = [name for name in CASES if "no memory" not in name and name not in ("action masks", "continuous actions")]


pytestmark = pytest.mark.usefixtures("one_thread")


def next_policy(turns, policy):
    """A core that knows nothing but what lies in shared memory."""
    sizes = turns.arrays.sizes
    model = build_actor_critic(turns.case.model, turns.case.spec)
    inference = PolicyInference(model, sizes.trajectories, "cpu", 99)
    requests = PolicyRequests(turns.arrays, policy, 0, 1)
    counters = WorkerCounters(turns.arrays, 0)
    core = PolicyCore(turns.arrays, requests, turns.weights[policy], inference, counters, policy)
    assert core.adopt_newest()
    return core


class Successor:
    """Acts like a policy worker that took the place of another: recalls each split before it is first answered."""

    def __init__(self, turns, policy):
        self.core = next_policy(turns, policy)
        self.inference, self.requests = self.core.inference, self.core.requests
        self.adopt_newest = self.core.adopt_newest
        self.replay = StateReplay(self.core, turns.arrays.sizes)

    def answer(self, slabs):
        self.replay.before(slabs)
        self.core.answer(slabs)


def next_learner(turns, folder, policy=0, **learning):
    counters = WorkerCounters(turns.arrays, turns.arrays.sizes.processes - 1)
    job = turns.learner_job(policy, folder, **learning)
    job.seed += 1000  # what it would begin with is something else
    return LearnerCore(turns.arrays, turns.weights[policy], turns.snapshots[policy], counters, job)


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_a_policy_worker_recalls_the_recurrent_states_of_its_predecessor(name, tmp_path):
    turns = Turns(CASES[name](), tmp_path)
    compared = 0
    for round_ in range(12):
        for _ in range(round_ + 1):  # at ever other moments: answered and open requests, first and last rows
            turns.turn()
            for assembler, staging in zip(turns.assemblers, turns.stagings, strict=True):
                assembler.fill(staging)
        for policy, predecessor in enumerate(turns.policies):
            successor = Successor(turns, policy)
            slabs = successor.core.requests.open()
            successor.core.replay_recurrent_states(slabs)
            if isinstance(predecessor, Successor):
                # Of what it was not asked for since it came.
                predecessor.replay.before(slabs)
            # Of rows that the policy plays and that go on in the middle of an episode; others begin with zeros.
            rows = successor.core._rows_of(slabs)
            goes_on = successor.core._is_first[torch.from_numpy(rows.observed)] == 0
            agents = torch.from_numpy(rows.agent)[goes_on]
            expected, recalled = predecessor.inference._state[agents], successor.core.inference._state[agents]
            assert_close(recalled, expected, rtol=1e-4, atol=1e-5)
            compared += len(agents)
            turns.policies[policy] = successor
    for policy, learner in enumerate(turns.learners):
        assert_written_down_as_computed(learner._model, turns.next_batch(policy))
    turns.close()
    assert compared > 50


@pytest.mark.parametrize(("recurrence", "is_recalled"), [(8, False), (4, True)])
def test_in_its_only_block_a_state_that_was_overwritten_is_forgotten_and_another_recalled(
    recurrence, is_recalled, tmp_path
):
    case = Case("synthetic_identity", options={"synthetic_episode_length": 50}, recurrence=recurrence, blocks=1, **GRU)
    turns = Turns(case, tmp_path)
    compared = 0
    for _ in range(60):
        turns.turn()
        turns.assemblers[0].fill(turns.stagings[0])
        slabs = turns.policies[0].requests.open()
        completed = np.array([split.completed for split in turns.splits]).reshape(2, 2)[slabs.actor, slabs.split]
        goes_on = (slabs.step == 0) & (completed > 0) & (completed < 6)  # in the middle of the first episode
        slabs = Slabs(*(np.asarray(part)[goes_on] for part in slabs))
        successor = next_policy(turns, 0)
        successor.replay_recurrent_states(slabs)
        agents = torch.from_numpy(successor._rows_of(slabs).agent)
        expected = turns.policies[0].inference._state[agents]
        assert_close(successor.inference._state[agents], expected if is_recalled else torch.zeros_like(expected))
        compared += len(agents)
    turns.close()
    assert compared > 20


def test_a_policy_worker_that_recalls_nothing_would_be_noticed(tmp_path):
    turns = Turns(CASES["CartPole"](), tmp_path)
    for _ in range(5):
        turns.turn()
    turns.policies[0] = next_policy(turns, 0)
    with pytest.raises(AssertionError):
        for _ in range(3):
            assert_written_down_as_computed(turns.learners[0]._model, turns.next_batch(0))
    turns.close()


def trained(tmp_path, iterations=3, **model):
    case = Case("synthetic_truncation", options=SHORT, **(model or GRU))
    turns = Turns(case, tmp_path, learning_rate=1e-2)
    learner = turns.learners[0]
    learner._next_snapshot = math.inf  # the one that `restore` has taken stays the only one
    for _ in range(iterations):
        turns.next_batch(0)
        learner.train(turns.stagings[0])
    return turns, learner


@pytest.mark.parametrize("model", [GRU, LSTM, DEEP, {"use_rnn": False, "normalize_input": True}])
def test_a_learner_goes_on_as_its_predecessor_would_have(model, tmp_path):
    turns, learner = trained(tmp_path, **model)
    learner.keep_snapshot()
    turns.arrays["policy_begun"][0] = 1
    successor = next_learner(turns, tmp_path / "elsewhere", learning_rate=1e-2)
    assert successor.begin() == PolicyRecovered(0, 3, 3)
    assert torch.equal(successor._flat, learner._flat)
    turns.next_batch(0)
    reports = [core.train(turns.stagings[0]) for core in (learner, successor)]
    assert reports[0] == reports[1]  # every metric, to the last bit
    assert torch.equal(successor._flat, learner._flat)
    turns.close()


def test_weights_that_are_newer_than_the_snapshot_are_taken_and_no_version_goes_back(tmp_path):
    turns, learner = trained(tmp_path)
    turns.arrays["policy_begun"][0] = 1
    successor = next_learner(turns, tmp_path / "elsewhere")
    assert successor.begin() == PolicyRecovered(0, 3, 0)
    assert torch.equal(successor._flat, learner._flat)
    assert successor.policy_version == turns.weights[0].version == int(turns.arrays["train_steps"][0]) == 3
    turns.close()


def test_a_snapshot_that_is_newer_than_the_published_weights_is_published(tmp_path):
    turns, learner = trained(tmp_path)
    learner.keep_snapshot()
    turns.arrays["policy_begun"][0] = 1
    turns.weights[0].publish(torch.zeros_like(learner._flat).numpy(), 2)
    assert next_learner(turns, tmp_path / "elsewhere").begin() == PolicyRecovered(0, 3, 3)
    published = torch.zeros_like(learner._flat)
    assert turns.weights[0].read_into(published.numpy()).version == 3
    assert torch.equal(published, learner._flat)
    turns.close()


def test_what_the_driver_never_heard_of_is_told_again(tmp_path):
    turns, learner = trained(tmp_path)
    saved = learner.save(SaveCheckpoint(0, "latest", 77, run_state(77), 1, math.nan, ""))
    successor = next_learner(turns, tmp_path)
    told = successor.begin()
    assert isinstance(told, PolicyRestored)
    assert (told.train_step, told.checkpoint, told.run_state) == (3, saved.path, run_state(77))
    assert next_learner(turns, tmp_path / "empty").begin() == PolicyRestored(0, "", 3, {}, math.nan, [], {}, 0)
    turns.close()


def test_the_first_learner_of_a_run_restores_and_leaves_a_snapshot(tmp_path):
    turns = Turns(CASES["CartPole"](), tmp_path)
    assert turns.snapshots[0].publication == 1
    assert turns.learners[0].begin().train_step == 0
    turns.close()


def test_steps_that_are_not_finite_are_skipped_and_too_many_bring_the_last_good_weights_back(tmp_path):
    turns, learner = trained(tmp_path)
    learner.keep_snapshot()
    good = learner._flat.clone()
    learner.job.max_bad_steps = 2
    turns.next_batch(0)
    turns.stagings[0].arrays["rewards"][0, 0] = math.nan
    for number in range(1, 4):
        learner.train(turns.stagings[0])
        assert (learner.policy_version, len(learner._reports)) == (3, number == 3)
    [told] = learner.pop_reports()
    reason = "the loss or its gradient was not finite in 3 optimizer steps in a row"
    assert told == TrainingRolledBack(0, 3, reason)
    assert torch.equal(learner._flat, good)
    event_counts = turns.arrays["event_counts"].sum(0)
    assert event_counts[EventCounter.LEARNER_SKIPPED_STEPS] == 3 and event_counts[EventCounter.LEARNER_ROLLBACKS] == 1
    with pytest.raises(TrainingDiverged, match="after returning to the last good weights; look for extreme rewards"):
        for _ in range(3):
            learner.train(turns.stagings[0])
    turns.close()


def test_a_sound_step_in_between_starts_the_count_anew(tmp_path):
    turns, learner = trained(tmp_path)
    learner.job.max_bad_steps = 2
    for _ in range(3):
        turns.next_batch(0)
        sound = turns.stagings[0].arrays["rewards"].copy()
        turns.stagings[0].arrays["rewards"][0, 0] = math.nan
        for _ in range(2):
            learner.train(turns.stagings[0])
        turns.stagings[0].arrays["rewards"][...] = sound
        learner.train(turns.stagings[0])
    turns.close()
    assert learner.pop_reports() == [] and learner.policy_version == 6


def test_a_snapshot_is_not_taken_of_an_iteration_that_rolled_back(tmp_path):
    turns, learner = trained(tmp_path)
    learner.keep_snapshot()
    learner.job.snapshot_every_sec = learner._next_snapshot = 0.0
    taken = turns.snapshots[0].publication
    turns.next_batch(0)
    spoiled = learner._learner._apply_gradients

    def spoil(*arguments):
        spoiled(*arguments)
        learner._flat[5] = math.nan

    learner._learner._apply_gradients = spoil
    learner.train(turns.stagings[0])
    assert turns.snapshots[0].publication == taken and len(learner.pop_reports()) == 1
    with pytest.raises(TrainingDiverged):
        learner.train(turns.stagings[0])
    turns.close()


def test_large_numbers_whose_squares_overflow_are_still_numbers(tmp_path):
    turns, learner = trained(tmp_path)
    learner._flat[5] = 1e30
    learner.publish()
    assert learner.pop_reports() == [] and learner._flat[5] == 1e30
    turns.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_never_published(bad, tmp_path):
    turns, learner = trained(tmp_path)
    learner.keep_snapshot()
    good, publications = learner._flat.clone(), turns.weights[0].publication
    learner._flat[5] = bad
    learner.publish()
    assert torch.equal(learner._flat, good)
    assert turns.weights[0].publication == publications + 1
    copy = torch.zeros_like(good)
    turns.weights[0].read_into(copy.numpy())
    assert torch.equal(copy, good)
    assert learner.pop_reports()[0].reason == "a weight is not finite"
    learner._flat[5] = bad
    with pytest.raises(TrainingDiverged):
        learner.publish()
    turns.close()


def test_a_learner_that_took_the_place_of_another_brings_good_weights_back_too(tmp_path):
    turns, learner = trained(tmp_path)
    learner.keep_snapshot()
    turns.arrays["policy_begun"][0] = 1
    successor = next_learner(turns, tmp_path / "elsewhere")
    successor.begin()
    successor._flat[5] = math.nan
    successor.publish()
    assert torch.equal(successor._flat, learner._flat)
    assert [report.reason for report in successor.pop_reports()] == ["a weight is not finite"]
    turns.close()


def test_after_another_good_snapshot_weights_may_be_brought_back_once_more(tmp_path):
    turns, learner = trained(tmp_path)
    for _ in range(3):
        learner.keep_snapshot()
        learner._flat[5] = math.nan
        learner.publish()
    assert len(learner.pop_reports()) == 3
    turns.close()
