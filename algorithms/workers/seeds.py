"""All randomness of a run, from one number."""

from __future__ import annotations

import enum

import numpy as np


class SeedKey(enum.IntEnum):
    """What is seeded. The numbers never change, or runs with one seed would differ from earlier ones."""

    ENVIRONMENTS = 0
    ASSIGNMENT = 1
    POLICY_WORKER = 2
    LEARNER = 3
    POPULATION = 4
    OPPONENT_WORKER = 5
    EVALUATION = 6


class Seeds:
    """Seeds for everything that draws; a resumed run draws other numbers than the first."""

    def __init__(self, seed: int, starts: int) -> None:
        """`starts`: how often the experiment was started before."""
        self._entropy = (seed, starts)

    def of(self, key: SeedKey, *indices: int) -> int:
        """A seed for one of what `key` names, by its indices."""
        sequence = np.random.SeedSequence(self._entropy, spawn_key=(int(key), *indices))
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
