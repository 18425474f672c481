"""Random actions instead of a policy's, drawn where the environments are: no process is asked, and nothing waits.

What such a run makes is what actors and environments alone can make: no policy lets them play faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.blocks import SplitBlocks
from appo.envs.action_layout import random_actions
from appo.envs.api import ACTION_MASK, ActionLeaf


class RandomAnswers:
    """Answers the requests of one split at once. Satisfies `env_split.Requests`."""

    def __init__(self, blocks: SplitBlocks, leaves: tuple[ActionLeaf, ...], rng: np.random.Generator) -> None:
        """For actions of `leaves`; those that a mask of the environment forbids are not drawn."""
        self._blocks, self._leaves, self._rng = blocks, leaves, rng
        self.num_policies = 1
        self._rows = blocks.actions.shape[2]

    def ask(self, block: int, step: int, policies: NDArray[np.int32] | None = None) -> None:
        """Draw the actions of row `step` of a block."""
        del policies
        mask = self._blocks.observations(block, step).get(ACTION_MASK)
        self._blocks.actions[block, step] = random_actions(self._leaves, self._rng, self._rows, mask)

    def is_answered(self) -> bool:
        """They are there."""
        return True
