"""Which options a population tunes."""

import math

import pytest

from appo.algorithms.learning.auxiliary.action_smoothness import ActionSmoothnessConfig
from appo.algorithms.learning.config import LearningConfig, changing_options
from appo.algorithms.population.mutation import ONE_MINUS, SCALE, TunedOption
from appo.algorithms.population.tuned import learning_values, shaping_options, shaping_values, tuned_options

ALWAYS = {"learning_rate", "ppo_clip_ratio", "ppo_clip_value", "value_loss_coeff", "max_grad_norm", "adam_beta1"}


def names(auxiliary=None, *, with_gamma=False, **options):
    return {
        option.name
        for option in tuned_options(changing_options(LearningConfig(**options), auxiliary), with_gamma=with_gamma)
    }


@pytest.mark.parametrize(
    ("options", "more", "less"),
    [
        ({}, {"exploration_loss_coeff"}, set()),
        ({"exploration_loss_coeff": 0.0}, set(), set()),
        ({"ppo_clip_value": math.inf, "exploration_loss_coeff": 0.0}, set(), {"ppo_clip_value"}),
        ({"exploration_loss_coeff": 0.0, "with_gamma": True}, {"gamma"}, set()),
        ({"exploration_loss_coeff": 0.0, "auxiliary": ActionSmoothnessConfig()}, {"action_smoothness_coeff"}, set()),
        ({"exploration_loss_coeff": 0.0, "auxiliary": ActionSmoothnessConfig(0.0)}, set(), set()),
    ],
)
def test_what_means_off_or_no_limit_stays_so_and_gamma_is_tuned_on_request(options, more, less):
    assert names(**options) == (ALWAYS | more) - less


def test_an_option_knows_its_rule_its_first_value_and_its_bounds():
    tuned = {option.name: option for option in tuned_options(changing_options(LearningConfig(), None), with_gamma=True)}
    assert tuned["learning_rate"] == TunedOption("learning_rate", SCALE, 1e-4, 0.0, 10.0)
    assert tuned["gamma"] == TunedOption("gamma", ONE_MINUS, 0.99, 0.0, 1.0)


def test_weights_of_a_reward_keep_their_sign_and_are_told_apart_from_options():
    options = list(shaping_options([("kill", 2.0), ("step", -0.1), ("unused", 0.0)]))
    assert [(option.minimum, option.maximum) for option in options] == [(0.0, math.inf), (-math.inf, 0.0)]
    values = {option.name: option.default for option in options} | {"learning_rate": 1e-3}
    assert shaping_values(values) == {"kill": 2.0, "step": -0.1}
    assert learning_values(values) == {"learning_rate": 1e-3}
