"""How options are perturbed."""

import math

import numpy as np
import pytest

from appo.algorithms.population.mutation import ONE_MINUS, SCALE, Mutation, TunedOption, mutated, perturbed

RATE = TunedOption("learning_rate", SCALE, 1e-4, 0.0, 10.0)
BETA = TunedOption("adam_beta1", ONE_MINUS, 0.9, 0.0, 0.9999)
ALWAYS = Mutation(rate=1.0, reset_rate=0.0, smallest=1.05, largest=1.5)


def rng():
    return np.random.default_rng(7)


def test_a_scaled_option_is_multiplied_or_divided_by_a_factor_within_the_limits():
    factors = np.array(
        [mutated({}, [RATE], ALWAYS, np.random.default_rng(i))["learning_rate"] / 1e-4 for i in range(400)]
    )
    up = factors > 1.0
    assert 0.4 < up.mean() < 0.6
    sizes = np.where(up, factors, 1.0 / factors)
    assert 1.05 <= sizes.min() < 1.07 and 1.47 < sizes.max() <= 1.5 + 1e-9


def test_the_distance_from_one_is_scaled():
    assert perturbed(0.99, BETA, 2.0) == pytest.approx(0.98)
    assert perturbed(0.99, BETA, 0.5) == pytest.approx(0.995)


def test_values_stay_within_their_bounds():
    assert perturbed(8.0, RATE, 1.5) == 10.0
    assert perturbed(0.9999, BETA, 0.01) == 0.9999
    assert perturbed(0.2, BETA, 1.5) == 0.0


@pytest.mark.parametrize(("rate", "reset", "changed", "back"), [(0.0, 1.0, 0.0, 0.0), (0.3, 0.5, 0.15, 0.15)])
def test_options_change_and_return_to_their_defaults_as_often_as_asked(rate, reset, changed, back):
    how = ALWAYS._replace(rate=rate, reset_rate=reset)
    values = [
        mutated({"learning_rate": 3e-4}, [RATE], how, np.random.default_rng(i))["learning_rate"] for i in range(2000)
    ]
    away = np.mean([value not in (3e-4, 1e-4) for value in values])
    assert away == pytest.approx(changed, abs=0.03)
    assert np.mean([value == 1e-4 for value in values]) == pytest.approx(back, abs=0.03)


def test_what_an_option_draws_does_not_depend_on_what_became_of_another():
    both = mutated({}, [BETA, RATE], ALWAYS, rng())
    other = mutated({"adam_beta1": 0.5}, [BETA, RATE], ALWAYS, rng())
    assert both["learning_rate"] == other["learning_rate"]
    assert both["adam_beta1"] != other["adam_beta1"]


def test_values_without_an_option_stay_and_what_is_given_is_not_changed():
    values = {"reward_scale": 3.0}
    assert mutated(values, [RATE], ALWAYS, rng())["reward_scale"] == 3.0
    assert values == {"reward_scale": 3.0}
    assert math.isfinite(mutated({}, [RATE], ALWAYS, rng())["learning_rate"])
