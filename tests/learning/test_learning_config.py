"""The learning options: their rules, and combinations that cannot run."""

import pytest

from appo.algorithms.learning.config import LearningConfig
from appo.utils.options import ConfigError, check_value, options_of


def test_every_default_passes_its_own_rule():
    LearningConfig().check_combinations()
    names = [field.name for field, _ in options_of(LearningConfig)]
    for field, rule in options_of(LearningConfig):
        check_value(field.name, field.default, rule, "default")
        assert rule.help
    assert {"rollout", "gamma", "auxiliary_loss"} <= set(names)


def test_clip_range_is_symmetric_in_log_space():
    low, high = LearningConfig(ppo_clip_ratio=0.25).clip_range
    assert (low, high) == (0.8, 1.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1000}, "batch_size=1000 is not a multiple of rollout=32; nearest: 992, 1024"),
        ({"batch_size": 10}, "nearest: 32$"),
        ({"batch_size": 10, "recurrence": 4, "with_vtrace": False}, "not a multiple of recurrence=4; nearest: 8, 12$"),
        (
            {"batch_size": 24, "recurrence": 8, "with_vtrace": False, "num_batches_per_iteration": 5},
            "are not whole rollouts of 32; nearest: num_batches_per_iteration=4, 8$",
        ),
        ({"recurrence": 5, "with_vtrace": False}, "does not divide rollout=32; allowed: -1, 1, 2, 4, 8, 16, 32$"),
        ({"recurrence": 0, "with_vtrace": False}, "recurrence=0 does not divide"),
        ({"recurrence": 8}, "set --recurrence=-1 or --with_vtrace=False"),
    ],
)
def test_a_combination_that_cannot_run_is_refused_with_one_that_can(options, message):
    with pytest.raises(ConfigError, match=message):
        LearningConfig(**options).check_combinations()


@pytest.mark.parametrize(
    "options",
    [
        {"recurrence": 32},
        {"recurrence": 8, "with_vtrace": False},
        {"recurrence": 8, "with_vtrace": False, "batch_size": 24, "num_batches_per_iteration": 4},
        {"recurrence": 1, "with_vtrace": False, "batch_size": 50, "num_batches_per_iteration": 16},
    ],
)
def test_combinations_that_work_pass(options):
    config = LearningConfig(**options)
    config.check_combinations()
    assert config.rows_per_chunk == options["recurrence"]
