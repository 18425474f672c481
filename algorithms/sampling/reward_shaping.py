"""Tells environments the reward weights of the policy that plays them, when an episode begins.

The driver writes the weights of each policy into a shared array; an environment takes them at the start of an episode,
so no episode is played with two of them. Where agents of several policies share an environment, one that can weigh
each agent's reward by itself is told for each, any other those of its first agent's policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import RewardShapingBatch


class RewardShaper:
    """For the environments of one split."""

    def __init__(
        self,
        env: RewardShapingBatch,
        first: Sequence[tuple[str, float]],
        weights: NDArray[np.float64],
        agents_per_env: int,
    ) -> None:
        """For environments that have the weights `first` as long as they are told no others.

        `weights` [P, R]: of each policy, in the same order; changes from outside.
        """
        self._env = env
        self._names = tuple(name for name, _ in first)
        self._weights = weights
        self._agents = agents_per_env
        self._first = np.tile([weight for _, weight in first], (agents_per_env, 1))
        self._told: dict[int, NDArray[np.float64]] = {}  # environment -> weights of its agents

    def follow(self, is_first: NDArray[np.uint8], policies: NDArray[np.int32]) -> None:
        """Tell those of an episode, of all their agents, that has just begun.

        Args:
            is_first: [E] 1: an episode of this agent row begins; an agent that joins later begins none of all.
            policies: [E] who plays the row.
        """
        by_env = policies.reshape(-1, self._agents)
        for index in np.flatnonzero(is_first.reshape(-1, self._agents).all(axis=1)).tolist():
            weights = self._weights[by_env[index]]
            if np.array_equal(self._told.get(index, self._first), weights):
                continue
            self._told[index] = weights
            self._env.shape_rewards(index, [dict(zip(self._names, row, strict=True)) for row in weights.tolist()])
