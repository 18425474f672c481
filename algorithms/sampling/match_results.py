"""The matches of a split: who sits where, how each seat's episode ended, which scripts play."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.messages import EpisodeFinished, MatchFinished
from appo.algorithms.sampling.matchmaking import Opponents
from appo.algorithms.sampling.scripted_seats import ScriptedSeats
from appo.envs.api import StepArrays


class MatchBook:
    """Records the matches that some environments are playing."""

    def __init__(self, num_envs: int, agents: int, opponents: Opponents | None) -> None:
        """`opponents`: knows which past self a frozen policy is; None: there are no frozen policies."""
        self._outcomes = np.full((num_envs, agents), np.nan)
        self._players: list[tuple[tuple[int, int], ...]] = [()] * num_envs  # of each seat; empty: does not count
        self._opponents = opponents

    def begin(self, index: int, players: Sequence[int], *, is_whole: bool = True) -> None:
        """Begin a match of one environment; `is_whole`: it is seen from its beginning."""
        self._outcomes[index] = np.nan
        self._players[index] = tuple((player, self._number(player)) for player in players) if is_whole else ()

    def note(self, rows: Sequence[int], episodes: Sequence[EpisodeFinished]) -> None:
        """Record the episodes of agent rows that have ended; the objective counts where there is one."""
        flat = self._outcomes.reshape(-1)
        for row, episode in zip(rows, episodes, strict=True):
            has_objective = not np.isnan(episode.true_return)
            flat[row] = episode.true_return if has_objective else episode.episode_return

    def end(self, index: int) -> MatchFinished | None:
        """Return the match that one environment has played; None: it does not count, or one player had all seats.

        A match counts only if each frozen policy was the same past self from its start to its end.
        """
        outcomes, players = self._outcomes[index], self._players[index]
        seats = [
            (player, number, float(outcome))
            for (player, number), outcome in zip(players, outcomes.tolist(), strict=bool(players))
            if not np.isnan(outcome)
        ]
        if len({seat[:2] for seat in seats}) < 2:
            return None
        if any(self._number(player) != number or self._is_absent(player, number) for player, number, _ in seats):
            return None
        return MatchFinished(*(tuple(column) for column in zip(*seats, strict=True)))

    def lose(self, indices: NDArray[np.int64]) -> None:
        """Drop the matches of environments that have failed."""
        for index in indices.tolist():
            self._players[index] = ()

    def _is_absent(self, player: int, number: int) -> bool:
        return number == 0 and self._opponents is not None and self._opponents.is_frozen(player)

    def _number(self, player: int) -> int:
        """Number of a past self; 0: the player is none, or is not loaded."""
        if self._opponents is None or not self._opponents.is_frozen(player):
            return 0
        return self._opponents.number(player)


class SplitMatches:
    """Follows the matches of one split, and lets scripts play."""

    def __init__(self, book: MatchBook, scripted: ScriptedSeats | None, num_envs: int, num_policies: int) -> None:
        """`num_policies`: that learn."""
        self._book, self._scripted = book, scripted
        self._num_envs, self._num_policies = num_envs, num_policies
        self._finished: list[MatchFinished] = []

    @property
    def random_state(self) -> dict[str, Any] | None:
        """Where the random numbers of scripts stand, as plain values; None: nothing is drawn."""
        return None if self._scripted is None else self._scripted.random_state

    @random_state.setter
    def random_state(self, state: dict[str, Any] | None) -> None:
        if self._scripted is not None and state is not None:
            self._scripted.random_state = state

    def begin(self, indices: Iterable[int], players: NDArray[np.int32], *, is_whole: bool = True) -> None:
        """Begin matches of some environments; `players` [E] of all."""
        seats = players.reshape(self._num_envs, -1)
        for index in indices:
            self._book.begin(index, seats[index].tolist(), is_whole=is_whole)
            if self._scripted is not None:
                self._scripted.begin(index, seats[index])

    def follow(
        self, rows: Sequence[int], finished: list[EpisodeFinished], step: StepArrays, players: NDArray[np.int32]
    ) -> list[EpisodeFinished]:
        """Record which matches a step has ended and begun.

        Args:
            rows: of the episodes that it has ended.
            finished: these episodes.
            step: what the environments wrote.
            players: [E] from now on.

        Returns:
            The episodes of policies that learn.
        """
        if finished:
            self._book.note(rows, finished)
        if 1 in step.is_first.tobytes():
            if 1 in step.crashed.tobytes():
                self._book.lose(np.flatnonzero(step.crashed.reshape(self._num_envs, -1).any(axis=1)))
            begun = np.flatnonzero(step.is_first.reshape(self._num_envs, -1).all(axis=1)).tolist()
            self._finished += [match for index in begun if (match := self._book.end(index)) is not None]
            self.begin(begun, players)
        return [episode for episode in finished if episode.policy < self._num_policies]

    def actions(
        self, chosen: NDArray[np.float32], players: NDArray[np.int32], observations: dict[str, NDArray[np.generic]]
    ) -> NDArray[np.float32]:
        """Return actions [E, W] with those of the random player in its rows."""
        return chosen if self._scripted is None else self._scripted.fill(chosen, players, observations)

    def pop(self) -> list[MatchFinished]:
        """Return the matches that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished
