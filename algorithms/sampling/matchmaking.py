"""Draws the players of each match, an episode of an environment with several agents.

A player is known by a number: policies that learn come first, then frozen ones, past selves of those that learn, then
scripted ones, which no policy worker is asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.sampling.policy_assignment import NO_ROWS

# A draw counts for as many rollouts at least. A change within a rollout leaves its column to two learners, each of
# which copies all of it and has no use for a part: one in 25 columns is such a one. Where truncated matches of 15 steps
# leave a row of 16 without a decision, 0.9 of all rows are still learned from with any number of policies.
ROLLOUTS_PER_DRAW = 25


class Opponents:
    """Knows the players beside the policies that learn, from shared arrays of the driver and the opponent worker."""

    def __init__(self, arrays: SharedArrays, share: float) -> None:
        """`share`: of the draws that give some seats to them; each counts for several matches."""
        sizes = arrays.sizes
        self.share = share
        self.first = sizes.learning_policies
        self._per_policy = sizes.frozen_policies // sizes.learning_policies
        self._wanted, self._loaded = arrays["opponents"][:, 0], arrays["opponents_loaded"]
        self._shares = arrays["opponent_shares"]

    def is_frozen(self, player: int) -> bool:
        """The player is a frozen policy."""
        return self.first <= player < self.first + len(self._loaded)

    def number(self, player: int) -> int:
        """Number of the past self that a frozen policy is now; 0: it is none."""
        return int(self._loaded[player - self.first])

    def absent(self, seats: NDArray[np.int32]) -> NDArray[np.bool_]:
        """[environments] some seat [environments, agents] is a frozen policy that is no past self now."""
        is_absent = np.zeros(self.first + len(self._loaded) + 1, np.bool_)
        is_absent[self.first : -1] = ~self._are_there()
        return np.asarray(is_absent[np.minimum(seats, len(is_absent) - 1)].any(axis=1))

    def draw(self, policy: int, seat: int, rng: np.random.Generator) -> int:
        """Draw an opponent of a policy.

        Args:
            policy: whose opponent.
            seat: the policy whose seat is given away: its past selves are drawn from, and it stays while none is there.
            rng: where the numbers come from.
        """
        frozen = len(self._loaded)
        scripts = self._shares[policy, frozen:]
        if rng.random() < scripts.sum():
            return self.first + frozen + int(rng.choice(len(scripts), p=scripts / scripts.sum()))
        own = slice(seat * self._per_policy, (seat + 1) * self._per_policy)
        shares = self._shares[policy, :frozen][own] * self._are_there()[own]
        if not shares.any():
            return seat
        return self.first + own.start + int(rng.choice(len(shares), p=shares / shares.sum()))

    def _are_there(self) -> NDArray[np.bool_]:
        are_there: NDArray[np.bool_] = (self._loaded == self._wanted) & (self._loaded > 0)
        return are_there


class Draws(NamedTuple):
    """How players are drawn."""

    matches: int = 1  # for which a draw counts
    rollouts: int = 0  # for which it counts at least
    mixes: bool = True  # each seat's policy is drawn by itself; otherwise one has all seats
    seats: tuple[int, ...] = ()  # the policy of each seat; empty: any


class MatchAssignment:
    """Draws policies for the seats of each match, uniformly, and gives some seats to opponents.

    They keep their seats for some matches: each change in the middle of a rollout leaves rows to two learners, each of
    which has no use for the other's. An agent that joins a match later has the seat's player.

    Where opponents play, the same players then change seats for as long: in many games one seat is better than the
    other, and a draw lasts for hundreds of short matches.
    """

    def __init__(
        self,
        num_policies: int,
        seed: np.random.SeedSequence,
        agents: int = 1,
        draws: Draws = Draws(),  # noqa: B008 - immutable
        opponents: Opponents | None = None,
    ) -> None:
        """One generator per split, so that splits do not influence each other.

        Args:
            num_policies: that learn.
            seed: of the generator.
            agents: seats of an environment.
            draws: how they are drawn.
            opponents: who else plays.
        """
        self.num_policies = num_policies
        self._rng = np.random.default_rng(seed)
        self._agents, self._draws, self._opponents = agents, draws, opponents
        self._has_one_player = num_policies == 1 and opponents is None
        self._number = 0  # of the rollout
        self._left = np.zeros(0, np.int64)  # [environments] matches before the next draw
        self._drawn = np.zeros(0, np.int64)  # [environments] the rollout of the newest draw
        self._mirrors = np.zeros(0, np.bool_)  # [environments] the same players change seats next

    def begin_rollout(self, number: int) -> None:
        """See `PolicyAssignment`."""
        self._number = number

    def draw(self, out: NDArray[np.int32]) -> None:
        """See `PolicyAssignment`."""
        if self._has_one_player:
            out[:] = 0
            return
        num_envs = len(out) // self._agents
        self._mirrors = np.zeros(num_envs, np.bool_)
        out[:] = self._seats(np.arange(num_envs)).ravel()
        # Drawn as well, or all environments would change at one time.
        self._left = self._up_to(self._draws.matches, num_envs)
        self._drawn = -self._up_to(self._draws.rollouts, num_envs)

    def overdue(self) -> NDArray[np.int64]:
        """None: a match that goes on for ever keeps its players, and others have other matches."""
        return NO_ROWS

    @property
    def random_state(self) -> dict[str, Any]:
        """Where the random numbers stand, as plain values."""
        return dict(self._rng.bit_generator.state)

    @random_state.setter
    def random_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def carry(self, before: NDArray[np.int32], after: NDArray[np.int32], is_first: NDArray[np.uint8]) -> bool:
        """See `PolicyAssignment`."""
        if self._has_one_player:
            return False  # rows are zero from the start
        after[:] = before
        if 1 not in is_first.tobytes():
            return False
        begins = is_first.reshape(-1, self._agents).all(axis=1)
        is_due = (self._left <= 0) & (self._number - self._drawn >= self._draws.rollouts)
        seats = after.reshape(-1, self._agents)
        if self._opponents is not None:
            is_absent = self._opponents.absent(seats)
            is_due |= is_absent
            self._mirrors &= ~is_absent
        changes = np.flatnonzero(begins & is_due)
        self._left[begins] -= 1
        if len(changes):
            mirrored, drawn = changes[self._mirrors[changes]], changes[~self._mirrors[changes]]
            seats[mirrored] = seats[mirrored, ::-1]
            self._mirrors[mirrored] = False
            seats[drawn] = self._seats(drawn)
            self._left[changes] = self._draws.matches - 1
            self._drawn[changes] = self._number
        return True

    def _up_to(self, limit: int, number: int) -> NDArray[np.int64]:
        return self._rng.integers(limit, size=number) if limit > 1 else np.zeros(number, np.int64)

    def _seats(self, envs: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n, agents] new players of n environments."""
        num_envs = len(envs)
        if self._draws.mixes:
            seats = self._rng.integers(self.num_policies, size=(num_envs, self._agents))
        else:
            seats = self._rng.integers(self.num_policies, size=(num_envs, 1)).repeat(self._agents, axis=1)
        if self._draws.seats:
            seats[:] = self._draws.seats
        if self._opponents is not None:
            for index in np.flatnonzero(self._rng.random(num_envs) < self._opponents.share).tolist():
                self._give_away(seats[index], self._opponents)
            # With a map of agents and policies, seats are not exchanged: each belongs to the policy of its agent.
            self._mirrors[envs] = (seats >= self._opponents.first).any(axis=1) & (not self._draws.seats)
        return seats

    def _give_away(self, seats: NDArray[np.int64], opponents: Opponents) -> None:
        """Let opponents have half of the seats [agents] of a match, rounded down."""
        places = self._rng.permutation(self._agents)
        kept = seats[places[0]]
        for place in places[(self._agents + 1) // 2 :].tolist():
            seats[place] = opponents.draw(int(kept), int(seats[place]), self._rng)
