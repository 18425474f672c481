"""Which policy plays an agent row: chosen when an episode begins, kept until it ends, or longer."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Rollouts after which splits change hands, where there is no whole number of splits for each policy.
ROLLOUTS_PER_TURN = 16
# An episode that goes on for so many is cut, or its policy would keep its row for ever: 34,000 steps in rollouts of 32.
# Of a prime number of turns, so that each time another policy follows, whichever of up to 64 there are.
LONGEST_EPISODE = 67 * ROLLOUTS_PER_TURN


_NO_ROWS = np.zeros(0, np.int64)


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
            return _NO_ROWS
        return np.flatnonzero(self._number - self._began >= LONGEST_EPISODE)

    @property
    def random_state(self) -> Any:
        """Nothing is drawn."""
        return {}

    @random_state.setter
    def random_state(self, state: Any) -> None:
        del state


class MatchAssignment:
    """Draws policies for the seats of each match, an episode of an environment with several agents, uniformly.

    They keep their seats for some matches: each change in the middle of a rollout leaves rows to two learners, each of
    which has no use for the other's. An agent that joins a match later has the seat's policy.
    """

    def __init__(
        self, num_policies: int, seed: np.random.SeedSequence, agents: int = 1, *, matches: int = 1, mixes: bool = True
    ) -> None:
        """One generator per split, so that splits do not influence each other.

        Args:
            num_policies: to draw from.
            seed: of the generator.
            agents: seats of an environment.
            matches: for which a draw counts.
            mixes: each seat's policy is drawn by itself; otherwise one has all seats.
        """
        self.num_policies = num_policies
        self._rng = np.random.default_rng(seed)
        self._agents, self._matches, self._mixes = agents, matches, mixes
        self._left = np.zeros(0, np.int64)  # [environments] matches before the next draw

    def begin_rollout(self, number: int) -> None:
        """Draws follow matches, not rollouts."""

    def draw(self, out: NDArray[np.int32]) -> None:
        """See `PolicyAssignment`."""
        num_envs = len(out) // self._agents
        out[:] = self._seats(num_envs).ravel() if self.num_policies > 1 else 0
        # Drawn as well, or all environments would change at one time.
        self._left = (
            self._rng.integers(self._matches, size=num_envs) if self._matches > 1 else np.zeros(num_envs, np.int64)
        )

    def overdue(self) -> NDArray[np.int64]:
        """None: a match that goes on for ever keeps its policies, of which others have other matches."""
        return _NO_ROWS

    @property
    def random_state(self) -> dict[str, Any]:
        """Where the random numbers stand, as plain values."""
        return dict(self._rng.bit_generator.state)

    @random_state.setter
    def random_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def carry(self, before: NDArray[np.int32], after: NDArray[np.int32], is_first: NDArray[np.uint8]) -> bool:
        """See `PolicyAssignment`."""
        if self.num_policies == 1:
            return False  # rows are zero from the start
        after[:] = before
        if 1 not in is_first.tobytes():
            return False
        begins = is_first.reshape(-1, self._agents).all(axis=1)
        changes = np.flatnonzero(begins & (self._left <= 0))
        self._left[begins] -= 1
        if len(changes):
            after.reshape(-1, self._agents)[changes] = self._seats(len(changes))
            self._left[changes] = self._matches - 1
        return True

    def _seats(self, num_envs: int) -> NDArray[np.int64]:
        """[environments, agents] policies."""
        if self._mixes:
            return self._rng.integers(self.num_policies, size=(num_envs, self._agents))
        return self._rng.integers(self.num_policies, size=(num_envs, 1)).repeat(self._agents, axis=1)
