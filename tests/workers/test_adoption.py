"""A policy goes on as another one, whole; and wherever its learner dies in this, as one of the two."""

import os
import signal

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.memory.weights import PolicyBuffers, WeightsBuffer
from appo.algorithms.messages import AdoptionRefused, AdoptPolicy, PolicyAdopted
from appo.algorithms.workers.learner_core import LearnerCore
from appo.utils import failpoints
from tests.workers.core_cases import Case, Turns
from tests.workers.test_successors import next_learner

pytestmark = pytest.mark.usefixtures("one_thread")

ADOPT = AdoptPolicy(policy=1, source=0, values={"learning_rate": 0.003}, request=1)


def buffers_of(turns):
    return lambda policy: PolicyBuffers(turns.weights[policy], turns.snapshots[policy])


@pytest.fixture
def turns(tmp_path):
    case = Case("CartPole-v1", policies=2, rnn_type="gru", normalize_input=True, normalize_returns=True)
    made = Turns(case, tmp_path, learning_rate=0.001)
    for policy, learner in enumerate(made.learners):
        learner._buffers_of = buffers_of(made)
        for _ in range(2 + policy):
            train(made, policy)
        learner.keep_snapshot()
    yield made
    made.close()


def train(turns, policy, learner=None):
    batch = turns.next_batch(policy)
    (learner or turns.learners[policy]).train(turns.stagings[policy])
    return batch


def state(learner: LearnerCore):
    moments = learner._learner.state_dict()["optimizer"]
    return [learner._flat.clone(), *(tensor.clone() for name in sorted(moments) for tensor in moments[name])]


def is_same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_weights_moments_normalisers_and_options_are_those_of_the_source(turns):
    source, learner = turns.learners
    theirs, before = state(source), learner.policy_version
    assert not is_same(theirs, state(learner))
    learner.adopt_policy(ADOPT)
    assert learner.pop_reports() == [] and not is_same(theirs, state(learner)), "not in the middle of an iteration"
    learner._change_options()
    assert is_same(theirs, state(learner))
    assert learner._learner.config.learning_rate == 0.003
    assert learner.policy_version == before + 1
    assert learner.pop_reports() == [PolicyAdopted(1, 0, ADOPT.values, before + 1, 1)]
    published = torch.empty_like(learner._flat)
    assert turns.weights[1].read_into(published.numpy()).version == before + 1
    assert torch.equal(published, theirs[0])
    assert is_same(theirs, state(source)), "the source is untouched"


def test_weights_are_the_newest_of_the_source_which_may_have_learned_much_since_its_snapshot(turns):
    source, learner = turns.learners
    kept = state(source)
    for _ in range(3):
        train(turns, 0)
    now = state(source)
    assert not torch.equal(now[0], kept[0])
    learner.adopt_policy(ADOPT)
    learner._change_options()
    adopted = state(learner)
    assert torch.equal(adopted[0], now[0]) and is_same(adopted[1:], kept[1:])
    published = torch.empty_like(learner._flat)
    assert turns.weights[1].read_into(published.numpy()).version == learner.policy_version
    assert torch.equal(published, now[0])
    learner._snapshot.load()
    assert is_same(state(learner), adopted), "and so it is for a successor"


def test_rows_that_were_chosen_before_are_not_learned_from(turns):
    learner = turns.learners[1]
    learner.adopt_policy(ADOPT)
    old = turns.next_batch(1)  # complete before the change
    learner._change_options()
    weights = learner._flat.clone()
    assert bool((old.policy_version < learner.policy_version).all())
    normalizers = learner._learner._model.returns_normalizer.state_dict()
    kept = {name: value.clone() for name, value in normalizers.items()}
    report = learner.train(turns.stagings[1])
    assert report.metrics["valids_fraction"] == 0.0
    assert torch.equal(learner._flat, weights), "neither weights nor normalisers"
    assert_close(normalizers, kept)
    for _ in range(8):
        batch = train(turns, 1)
    assert bool((batch.policy_version >= learner._learner._version_floor).any())
    assert not torch.equal(learner._flat, weights)


def test_a_request_is_carried_out_once_and_answered_each_time(turns):
    learner = turns.learners[1]
    for _ in range(2):
        learner.adopt_policy(ADOPT)
        learner._change_options()
        version = learner.policy_version
        train(turns, 0)
        turns.learners[0].keep_snapshot()
    first, second = learner.pop_reports()
    assert isinstance(first, PolicyAdopted) and first == second
    assert learner.policy_version == version
    learner.adopt_policy(ADOPT._replace(request=2))
    learner._change_options()
    assert is_same(state(turns.learners[0]), state(learner))


def test_a_successor_goes_on_as_what_was_adopted(turns, tmp_path):
    learner = turns.learners[1]
    learner.adopt_policy(ADOPT)
    learner._change_options()
    successor = next_learner(turns, tmp_path, policy=1, learning_rate=0.001)
    successor.begin()
    assert is_same(state(learner), state(successor))
    assert successor._learner.config.learning_rate == 0.003 and successor._learner.adoption == 1
    assert successor._learner._version_floor == learner.policy_version == successor.policy_version


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (ADOPT._replace(values={"learning_rate": -1.0}), "learning_rate=-1.0; allowed:"),
        (ADOPT._replace(values={"batch_size": 64.0}), "batch_size cannot change"),
    ],
)
def test_options_that_cannot_be_in_force_are_refused_and_nothing_is_adopted(turns, command, reason):
    learner = turns.learners[1]
    before = state(learner)
    learner.adopt_policy(command)
    learner._change_options()
    (refused,) = learner.pop_reports()
    assert isinstance(refused, AdoptionRefused) and reason in refused.reason and refused.request == 1
    assert is_same(before, state(learner))


def test_a_source_without_a_snapshot_is_refused(tmp_path):
    turns = Turns(Case("CartPole-v1", policies=2), tmp_path, with_splits=False)
    learner = turns.learners[1]
    learner._buffers_of = lambda policy: PolicyBuffers(turns.weights[policy], WeightsBuffer.create("empty"))
    before = state(learner)
    learner.adopt_policy(ADOPT)
    learner._change_options()
    (refused,) = learner.pop_reports()
    assert isinstance(refused, AdoptionRefused) and "has nothing to copy yet" in refused.reason
    assert is_same(before, state(learner))


PLACES = ["adopt-read", "learner-snapshot", "weights-publish", "adopt-kept"]


@pytest.mark.parametrize("place", PLACES)
def test_a_learner_killed_while_adopting_leaves_the_weights_of_one_member(turns, tmp_path, place):
    source, outcomes = state(turns.learners[0]), set()
    probability = 0.5 if place == "weights-publish" else 1.0  # which is passed twice: snapshot, then weights
    for request in range(1, 21):
        learner = turns.learners[1]
        own = state(learner)
        child = os.fork()
        if not child:
            os.environ[failpoints.VARIABLE] = f"{place}=kill@{probability}"
            failpoints._armed.cache_clear()
            learner.adopt_policy(ADOPT._replace(request=request, values={"learning_rate": 0.001 * (1 + request)}))
            learner._change_options()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL) or probability < 1.0
        successor = turns.learners[1] = next_learner(turns, tmp_path, policy=1, learning_rate=0.001)
        successor._buffers_of = buffers_of(turns)
        successor.begin()
        adopted = successor._learner.adoption == request
        outcomes.add(adopted)
        assert is_same(state(successor), source if adopted else own)
        assert (successor._learner.config.learning_rate == 0.001 * (1 + request)) == adopted
        published = torch.empty_like(successor._flat)
        turns.weights[1].read_into(published.numpy())
        assert torch.equal(published, successor._flat)
        for _ in range(2):
            train(turns, 1)
        successor.keep_snapshot()
    expected = {"adopt-read": {False}, "learner-snapshot": {False}, "adopt-kept": {True}}
    assert outcomes == expected.get(place, {False, True})
