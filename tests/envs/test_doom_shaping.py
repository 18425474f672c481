"""The reward of a Doom player, from its variables: what it did counts, and what a respawn brings does not."""

import numpy as np
import pytest

from appo.envs.simulators.doom_shaping import AGENTS_WEIGHTS, BATTLE_WEIGHTS, BOTS_WEIGHTS, TERMS, Shaping

WEIGHTS = {"frag": 10.0, "frag_lost": -3.0, "death": -5.0, "health_gained": 0.5, "health_lost": -0.25}


def state(shaping, **values):
    """[K] of the shaping's variables, 0 where nothing is told."""
    return np.array([float(values.get(name, 0.0)) for name in shaping.variables])


def reward(shaping, before, after):
    return shaping.reward(state(shaping, **before), state(shaping, **after))


def test_rises_and_falls_are_weighed_apart():
    shaping = Shaping(WEIGHTS)
    assert reward(shaping, {"HEALTH": 100}, {"HEALTH": 60, "FRAGCOUNT": 2}) == pytest.approx(2 * 10 - 40 * 0.25)
    assert reward(shaping, {"HEALTH": 60}, {"HEALTH": 100, "FRAGCOUNT": -1}) == pytest.approx(40 * 0.5 - 3)
    assert reward(shaping, {"HEALTH": 60}, {"HEALTH": 60}) == 0


def test_a_death_costs_and_a_respawn_brings_no_health():
    shaping = Shaping(WEIGHTS)
    dead = {"HEALTH": -999_900, "DEAD": 1, "DEATHCOUNT": 1}
    assert reward(shaping, {"HEALTH": 40}, dead) == pytest.approx(-5 - 40 * 0.25)
    assert reward(shaping, dead, dead | {"HEALTH": -999_950}) == 0
    assert reward(shaping, dead, {"HEALTH": 100, "DEATHCOUNT": 1}) == 0
    assert reward(shaping, dead, {"HEALTH": 100, "DEATHCOUNT": 1, "FRAGCOUNT": 1}) == 10  # by a rocket under way


def test_a_hit_that_kills_at_once_is_not_worth_a_million():
    shaping = Shaping({"damage": 1.0, "damage_taken": -1.0})
    assert reward(shaping, {}, {"DAMAGECOUNT": 1_000_000}) == 200
    assert reward(shaping, {}, {"DAMAGE_TAKEN": 1_000_000}) == -200
    assert reward(shaping, {}, {"DAMAGECOUNT": 70}) == 70


def test_better_weapons_are_worth_more():
    shaping = Shaping({"weapon_gained": 1.0, "ammo_spent": -1.0})
    assert reward(shaping, {}, {"WEAPON7": 1}) == 10 * reward(shaping, {}, {"WEAPON2": 1})
    assert reward(shaping, {"AMMO5": 3, "AMMO2": 9}, {"AMMO5": 2, "AMMO2": 9}) == -5


@pytest.mark.parametrize("weights", [AGENTS_WEIGHTS, BOTS_WEIGHTS, BATTLE_WEIGHTS])
def test_weights_can_be_replaced_but_not_renamed(weights):
    shaping = Shaping(weights)
    assert shaping.weights == weights and set(weights) <= set(TERMS)
    assert all(weights.values())  # a weight of 0 cannot be scaled by a population
    shaping.weights = dict.fromkeys(weights, 0.0)
    changed = np.random.default_rng(0).uniform(0, 9, (2, len(shaping.variables)))
    assert shaping.reward(*changed) == 0
    shaping.weights = weights
    assert shaping.reward(*changed) != 0
    with pytest.raises(ValueError, match="these differ: fame"):
        shaping.weights = weights | {"fame": 1.0}


def test_what_one_agent_earns_by_wounding_the_other_loses():
    shaping = Shaping(AGENTS_WEIGHTS)
    wounds = reward(shaping, {}, {"DAMAGECOUNT": 80, "FRAGCOUNT": 1})
    is_wounded = reward(shaping, {}, {"DAMAGE_TAKEN": 80, "DEATHCOUNT": 1})
    assert wounds == pytest.approx(-is_wounded) and wounds > 1
