"""Which policy plays an agent row: chosen when an episode begins, kept until it ends, or longer.

Here for environments of single agents; `matchmaking` draws the players of matches.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Rollouts after which splits change hands, where there is no whole number of splits for each policy.
ROLLOUTS_PER_TURN = 16
# An episode that goes on for so many is cut, or its policy would keep its row for ever: 34,000 steps in rollouts of 32.
# Of a prime number of turns, so that each time another policy follows, whichever of up to 64 there are.
LONGEST_EPISODE = 67 * ROLLOUTS_PER_TURN

NO_ROWS = np.zeros(0, np.int64)


class PolicyAssignment(Protocol):
    """Chooses policies for the agent rows of one split."""

    num_policies: int

    def begin_rollout(self, number: int) -> None:
        """Rollout `number` of this split begins, counted from 0."""

    def draw(self, out: NDArray[np.int32]) -> None:
        """A policy for every row of `out` [E]."""

    def carry(self, before: NDArray[np.int32], after: NDArray[np.int32], is_first: NDArray[np.uint8]) -> bool:
        """The next row [E]: the same policies, but chosen anew where an episode begins; whether one began."""

    def overdue(self) -> NDArray[np.int64]:
        """Rows whose episodes have to be cut for other policies to have their turns; asked as a rollout begins."""

    random_state: Any
    """Where the choices stand, as plain values."""


class SplitAssignment:
    """A whole split plays one policy, so a learner that stalls stops only the splits of its own policy.

    Splits are dealt to the policies in turn. Where they cannot be dealt evenly, each goes on to the next policy
    every few rollouts; episodes that have begun are played to their end by the policy that began them, unless they go
    on for ever.
    """

    def __init__(self, num_policies: int, split: int, num_splits: int) -> None:
        """`split`: its number among all `num_splits` of the run."""
        self.num_policies = num_policies
        self._split = split
        self._takes_turns = num_splits % num_policies != 0
        self._began = np.zeros(0, np.int64)  # [E] the rollout in which the episode of each row began
        self.begin_rollout(0)

    def begin_rollout(self, number: int) -> None:
        """See `PolicyAssignment`."""
        self._number = number
        turns = number // ROLLOUTS_PER_TURN if self._takes_turns else 0
        self._policy = (self._split + turns) % self.num_policies

    def draw(self, out: NDArray[np.int32]) -> None:
        """See `PolicyAssignment`."""
        out[:] = self._policy
        self._began = np.full(len(out), self._number)

    def carry(self, before: NDArray[np.int32], after: NDArray[np.int32], is_first: NDArray[np.uint8]) -> bool:
        """See `PolicyAssignment`."""
        if self.num_policies == 1:
            return False  # rows are zero from the start
        after[:] = before
        starts = np.flatnonzero(is_first)
        after[starts] = self._policy
        self._began[starts] = self._number
        return len(starts) > 0

    def overdue(self) -> NDArray[np.int64]:
        """See `PolicyAssignment`."""
        if not self._takes_turns:
            return NO_ROWS
        return np.flatnonzero(self._number - self._began >= LONGEST_EPISODE)

    @property
    def random_state(self) -> Any:
        """Nothing is drawn."""
        return {}

    @random_state.setter
    def random_state(self, state: Any) -> None:
        del state
