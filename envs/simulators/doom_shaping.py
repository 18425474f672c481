"""What a Doom player earns: a weighted sum of what happened to its game variables.

A term of the sum counts by how much some variables went up, or down, over a step. Frags, deaths, hits and damage are
counters of the game, so that none of a step's tics is lost; of health, armor, ammunition and weapons the change over
the whole step counts, since the game tells them only when it draws. The weights start near those of Sample Factory's
Doom environments (Petrenko et al., 2020, arXiv:2006.11751); a population tunes them.

Shape letter:  K = variables.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Term(NamedTuple):
    """What one weight is multiplied by."""

    variables: tuple[tuple[str, float], ...]  # each with its share
    goes_up: bool  # it counts rises, otherwise falls


# How much a weapon is preferred to the pistol, by its number.
_PREFERENCE = {1: 1.0, 2: 1.0, 3: 5.0, 4: 5.0, 5: 5.0, 6: 10.0, 7: 10.0}
_WEAPONS = tuple((f"WEAPON{number}", worth) for number, worth in _PREFERENCE.items())
_AMMO = tuple((f"AMMO{number}", worth) for number, worth in _PREFERENCE.items())

TERMS = {
    "frag": Term((("FRAGCOUNT", 1.0),), True),
    "frag_lost": Term((("FRAGCOUNT", 1.0),), False),
    "death": Term((("DEATHCOUNT", 1.0),), True),
    "hit": Term((("HITCOUNT", 1.0),), True),
    "hit_taken": Term((("HITS_TAKEN", 1.0),), True),
    "damage": Term((("DAMAGECOUNT", 1.0),), True),
    "damage_taken": Term((("DAMAGE_TAKEN", 1.0),), True),
    "health_gained": Term((("HEALTH", 1.0),), True),
    "health_lost": Term((("HEALTH", 1.0),), False),
    "armor_gained": Term((("ARMOR", 1.0),), True),
    "armor_lost": Term((("ARMOR", 1.0),), False),
    "weapon_gained": Term(_WEAPONS, True),
    "weapon_lost": Term(_WEAPONS, False),
    "ammo_gained": Term(_AMMO, True),
    "ammo_spent": Term(_AMMO, False),
}

_FOUND = {
    "health_gained": 0.005,
    "armor_gained": 0.005,
    "armor_lost": -0.001,
    "weapon_gained": 0.02,
    "weapon_lost": -0.01,
    "ammo_gained": 0.0002,
    "ammo_spent": -0.0001,
}
# Against bots, which do not learn.
BOTS_WEIGHTS = {
    "frag": 1.0,
    "frag_lost": -1.5,
    "death": -0.75,
    "hit": 0.01,
    "hit_taken": -0.01,
    "damage": 0.003,
    "damage_taken": -0.003,
    **_FOUND,
}
# Among agents: what one earns by a fight, the other loses. Who loses a frag died by his own hand, which costs anyway.
AGENTS_WEIGHTS = {
    "frag": 1.0,
    "frag_lost": -0.001,
    "death": -1.0,
    "damage": 0.01,
    "damage_taken": -0.01,
    **_FOUND,
    "health_gained": 0.01,
}
# Beside the scenario's own reward, which counts kills.
BATTLE_WEIGHTS = {
    "death": -0.75,
    "hit": 0.01,
    "damage": 0.003,
    "health_gained": 0.005,
    "health_lost": -0.003,
    "ammo_gained": 0.0002,
    "ammo_spent": -0.0001,
}
SHAPED_SCENARIOS = {"battle": BATTLE_WEIGHTS, "battle2": BATTLE_WEIGHTS}

# A telefrag does a million points of damage, and a rocket into a crowd would be worth more than the frags it brings.
_MOST_PER_STEP = {"DAMAGECOUNT": 200.0, "DAMAGE_TAKEN": 200.0, "HITCOUNT": 5.0, "HITS_TAKEN": 5.0}
# What a player carries comes back with a respawn: nothing that was earned.
_CARRIED = ("HEALTH", "ARMOR", *(name for name, _ in (*_WEAPONS, *_AMMO)))
_DEAD = "DEAD"


class Shaping:
    """The weighted sum over one player's variables."""

    def __init__(self, weights: dict[str, float]) -> None:
        """`weights`: of some of `TERMS`; they decide which variables are looked at."""
        named = [name for term in weights for name, _ in TERMS[term].variables]
        self.variables = (*dict.fromkeys(named), _DEAD)
        self._is_carried = np.array([name in _CARRIED for name in self.variables])
        self._limits = np.array([_MOST_PER_STEP.get(name, np.inf) for name in self.variables])
        self._lowest = np.array([0.0 if name == "HEALTH" else -np.inf for name in self.variables])
        self._rises, self._falls = (self._shares(weights, goes_up) for goes_up in (True, False))
        self._weights: NDArray[np.float64] = np.zeros(0)
        self._names = tuple(weights)
        self.weights = weights

    def _shares(self, weights: dict[str, float], goes_up: bool) -> NDArray[np.float64]:
        """[terms, K] how much of each variable belongs to each term."""
        shares = np.zeros((len(weights), len(self.variables)))
        for row, name in enumerate(weights):
            for variable, share in TERMS[name].variables:
                if TERMS[name].goes_up == goes_up:
                    shares[row, self.variables.index(variable)] = share
        return shares

    @property
    def weights(self) -> dict[str, float]:
        """Those now in force."""
        return dict(zip(self._names, self._weights.tolist(), strict=True))

    @weights.setter
    def weights(self, weights: dict[str, float]) -> None:
        unknown = set(weights) ^ set(self._names)
        if unknown:
            raise ValueError(f"weights are {', '.join(self._names)}; these differ: {', '.join(sorted(unknown))}")
        self._weights = np.array([weights[name] for name in self._names], np.float64)

    def reward(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
        """What a step earned.

        Args:
            before: [K] `variables` before the step.
            after: [K] and after it.
        """
        changes = np.maximum(after, self._lowest) - np.maximum(before, self._lowest)
        if changes[-1] < 0:  # DEAD, the last variable, fell
            changes[self._is_carried] = 0.0
        rises, falls = np.clip(changes, 0.0, self._limits), np.maximum(-changes, 0.0)
        return float(self._weights @ (self._rises @ rises + self._falls @ falls))
