"""The learning rate under each schedule."""

import pytest

from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.schedules import LearningRate


def rate(schedule, **options):
    return LearningRate(LearningConfig(learning_rate=1e-3, lr_schedule=schedule, **options))


def test_a_constant_rate_ignores_everything():
    schedule = rate("constant")
    schedule.start_iteration(0.7)
    schedule.after_minibatch(10.0)
    schedule.after_epoch([10.0])
    assert schedule.value == 1e-3


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 1e-3), (0.25, 7.5e-4), (1.0, 0.0), (1.5, 0.0)])
def test_linear_decay_reaches_zero_with_the_budget(progress, expected):
    schedule = rate("linear_decay")
    assert schedule.value == 1e-3
    schedule.start_iteration(progress)
    assert schedule.value == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["minibatch", "epoch"])
@pytest.mark.parametrize(("kl", "factor"), [(0.1, 1 / 1.5), (0.008, 1.0), (0.001, 1.5)])
def test_an_adaptive_rate_falls_when_the_policy_changes_too_much_and_rises_when_too_little(kind, kl, factor):
    schedule = rate(f"kl_adaptive_{kind}")
    schedule.after_minibatch(kl)
    schedule.after_epoch([kl / 2, kl * 1.5])
    assert schedule.value == pytest.approx(1e-3 * factor)


def test_an_adaptive_rate_stays_within_bounds_and_ignores_what_is_not_finite():
    schedule = rate("kl_adaptive_minibatch")
    schedule.after_minibatch(float("nan"))
    assert schedule.value == 1e-3
    for _ in range(100):
        schedule.after_minibatch(1.0)
    assert schedule.value == pytest.approx(1e-6)
    for _ in range(100):
        schedule.after_minibatch(0.0)
    assert schedule.value == pytest.approx(1e-2)


def test_an_epoch_without_a_step_changes_nothing():
    schedule = rate("kl_adaptive_epoch")
    schedule.after_epoch([])
    assert schedule.value == 1e-3


def test_a_saved_rate_goes_on_unless_another_base_rate_is_in_force():
    schedule = rate("kl_adaptive_minibatch")
    schedule.after_minibatch(1.0)
    same, other = (
        rate("kl_adaptive_minibatch"),
        LearningRate(LearningConfig(learning_rate=5e-4, lr_schedule="kl_adaptive_minibatch")),
    )
    same.load_state_dict(schedule.state_dict())
    other.load_state_dict(schedule.state_dict())
    assert same.value == schedule.value != 1e-3
    assert other.value == 5e-4


def test_a_new_base_rate_at_run_time_is_taken_at_once():
    schedule = rate("kl_adaptive_minibatch")
    schedule.after_minibatch(1.0)
    adapted = schedule.value
    schedule.set_config(LearningConfig(learning_rate=1e-3, lr_schedule="kl_adaptive_minibatch", gamma=0.5))
    assert schedule.value == adapted
    schedule.set_config(LearningConfig(learning_rate=2e-3, lr_schedule="kl_adaptive_minibatch"))
    assert schedule.value == 2e-3
