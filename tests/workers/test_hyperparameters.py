"""Options that change while a learner trains: from its next iteration on, for successors and resumed runs too."""

import math

import pytest

from appo.algorithms.messages import (
    HyperparametersChanged,
    HyperparametersRefused,
    SaveCheckpoint,
    SetHyperparameters,
)
from tests.workers.core_cases import ROLLOUT, Case, Turns, run_state
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
        ({"learning_rate": -1.0}, "a change sets learning_rate=-1.0; allowed:"),
        ({"batch_size": 64}, "batch_size cannot change while training goes on; these can be changed: adam_beta1, "),
        ({"unheard_of": 1.0}, "unheard_of is no option"),
        ({"value_loss_coeff": math.inf}, "value_loss_coeff=inf has to be a finite number"),
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


def resumed(tmp_path, **learning):
    """The options of a learner that takes up the newest checkpoint."""
    case = Case("CartPole-v1", rnn_type="gru")
    return Turns(case, tmp_path, with_splits=False, **learning).learners[0]._learner.config


def test_a_resumed_run_goes_on_with_them_but_for_a_new_value_of_what_was_changed(turns, tmp_path):
    learner = turns.learners[0]
    learner.set_hyperparameters(CHANGE)
    iteration(turns)
    learner.set_hyperparameters(SetHyperparameters(0, {"learning_rate": 0.004}))
    iteration(turns)
    learner.save(SaveCheckpoint(0, "latest", 77, run_state(77), 1, math.nan, ""))
    same = resumed(tmp_path, learning_rate=0.001)  # typed again or not
    assert (same.learning_rate, same.gamma) == (0.004, 0.9)
    other = resumed(tmp_path, learning_rate=0.002)
    assert (other.learning_rate, other.gamma) == (0.002, 0.9)


def test_a_saved_change_that_cannot_be_in_force_any_more_does_not_keep_a_run_from_going_on(turns, tmp_path):
    learner = turns.learners[0]
    learner._learner._changed_options = {
        "unheard_of": (1.0, 2.0),
        "rollout": (4.0, float(ROLLOUT)),
        "gamma": (0.9, 0.99),
    }
    learner.save(SaveCheckpoint(0, "latest", 77, run_state(77), 1, math.nan, ""))
    assert resumed(tmp_path, learning_rate=0.001).gamma == 0.9


def test_returning_to_the_last_good_weights_keeps_the_newest_options(turns):
    learner = turns.learners[0]
    iteration(turns)
    learner._learner.change({"gamma": 0.8})  # after the snapshot
    learner._roll_back("a test")
    assert learner._learner.config.gamma == 0.8
