"""Options that change while a learner trains: from its next iteration on, for successors and resumed runs too."""

import math

import pytest

from appo.algorithms.messages import (
    HyperparametersChanged,
    HyperparametersRefused,
    SaveCheckpoint,
    SetHyperparameters,
)
from tests.workers.core_cases import Case, Turns, run_state
from tests.workers.test_successors import next_learner

pytestmark = pytest.mark.usefixtures("one_thread")

CHANGE = SetHyperparameters(0, {"learning_rate": 0.003, "gamma": 0.9})


@pytest.fixture
def turns(tmp_path):
    made = Turns(Case("CartPole-v1", rnn_type="gru"), tmp_path, learning_rate=0.001)
    yield made
    made.close()


def iteration(turns, learner=None):
    """Train once; the rate that the optimizer used."""
    turns.next_batch(0)
    learner = learner or turns.learners[0]
    return learner.train(turns.stagings[0]).metrics["lr"]


def reports(learner):
    return [type(report) for report in learner.pop_reports()]


def test_a_change_is_in_force_from_the_next_iteration_on_and_told_then(turns):
    learner = turns.learners[0]
    assert iteration(turns) == 0.001
    learner.set_hyperparameters(CHANGE)
    assert reports(learner) == [] and learner._learner.config.learning_rate == 0.001
    assert iteration(turns) == 0.003 and learner._learner.config.gamma == 0.9
    assert learner.pop_reports() == [HyperparametersChanged(*CHANGE)]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"learning_rate": -1.0}, "a change of hyperparameters sets learning_rate=-1.0; allowed:"),
        ({"batch_size": 64}, "batch_size cannot change while training goes on; these can: adam_beta1, "),
        ({"unheard_of": 1.0}, "unheard_of cannot change"),
    ],
)
def test_what_cannot_be_in_force_is_refused_and_changes_nothing(turns, values, reason):
    learner = turns.learners[0]
    learner.set_hyperparameters(SetHyperparameters(0, {"gamma": 0.5} | values))
    (refused,) = learner.pop_reports()
    assert isinstance(refused, HyperparametersRefused) and reason in refused.reason
    assert iteration(turns) == 0.001 and learner._learner.config.gamma == 0.99


def test_a_successor_goes_on_with_the_options_in_force(turns, tmp_path):
    turns.learners[0].set_hyperparameters(CHANGE)
    iteration(turns)
    successor = next_learner(turns, tmp_path, learning_rate=0.001)
    successor.begin()
    assert successor._learner.config.gamma == 0.9
    assert iteration(turns, successor) == 0.003


def test_a_resumed_run_goes_on_with_them_but_for_what_is_typed(turns, tmp_path):
    learner = turns.learners[0]
    learner.set_hyperparameters(CHANGE)
    iteration(turns)
    learner.save(SaveCheckpoint(0, "latest", 77, run_state(77), 1, math.nan, ""))
    for typed, rate in ((frozenset(), 0.003), (frozenset({"learning_rate"}), 0.002)):
        again = Turns(Case("CartPole-v1", rnn_type="gru"), tmp_path, with_splits=False, learning_rate=0.002).learners[0]
        again.job.typed = typed
        again._learner.changed_options.clear()
        again._learner.set_config(again.job.learning)
        again.restore()
        config = again._learner.config
        assert (config.learning_rate, config.gamma) == (rate, 0.9)


def test_returning_to_the_last_good_weights_keeps_the_newest_options(turns):
    learner = turns.learners[0]
    iteration(turns)
    learner._learner.change({"gamma": 0.8})  # after the snapshot
    learner._roll_back("a test")
    assert learner._learner.config.gamma == 0.8
