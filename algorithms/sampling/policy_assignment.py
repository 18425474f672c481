"""Which policy plays an agent row: drawn anew when an episode begins, kept until it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class PolicyAssignment:
    """Draws a policy for every new episode, uniformly."""

    def __init__(self, num_policies: int, seed: np.random.SeedSequence) -> None:
        """One generator per split, so that splits do not influence each other."""
        self.num_policies = num_policies
        self._rng = np.random.default_rng(seed)

    def draw(self, out: NDArray[np.int32]) -> None:
        """A policy for every row of `out` [E]."""
        if self.num_policies > 1:
            out[:] = self._rng.integers(self.num_policies, size=len(out))
        else:
            out[:] = 0

    @property
    def random_state(self) -> dict[str, Any]:
        """Where the random numbers stand, as plain values."""
        return dict(self._rng.bit_generator.state)

    @random_state.setter
    def random_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def carry(self, before: NDArray[np.int32], after: NDArray[np.int32], is_first: NDArray[np.uint8]) -> None:
        """The next row [E]: the same policies, but a new draw where an episode begins."""
        if self.num_policies == 1:
            return  # rows are zero from the start
        after[:] = before
        starts = np.flatnonzero(is_first)
        if len(starts):
            after[starts] = self._rng.integers(self.num_policies, size=len(starts))
