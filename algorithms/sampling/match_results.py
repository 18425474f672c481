"""How matches ended: who sat where, and what each seat's episode came to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.messages import EpisodeFinished, MatchFinished
from appo.algorithms.sampling.matchmaking import Opponents


class MatchBook:
    """The matches that the environments of one split are playing."""

    def __init__(self, num_envs: int, agents: int, opponents: Opponents | None, scripted: int) -> None:
        """`scripted`: number of the first scripted player."""
        self._outcomes = np.full((num_envs, agents), np.nan)
        self._players: list[tuple[tuple[int, int], ...]] = [()] * num_envs  # of each seat; empty: not to be told of
        self._opponents, self._scripted = opponents, scripted

    def begin(self, index: int, players: Sequence[int], *, is_whole: bool = True) -> None:
        """A match of one environment begins; `is_whole`: it is seen from its beginning."""
        self._outcomes[index] = np.nan
        self._players[index] = tuple((player, self._number(player)) for player in players) if is_whole else ()

    def note(self, rows: Sequence[int], episodes: Sequence[EpisodeFinished]) -> None:
        """Episodes of agent rows have ended; the objective counts where there is one."""
        flat = self._outcomes.reshape(-1)
        for row, episode in zip(rows, episodes, strict=True):
            has_objective = not np.isnan(episode.true_return)
            flat[row] = episode.true_return if has_objective else episode.episode_return

    def end(self, index: int) -> MatchFinished | None:
        """The match that one environment has played; None: it does not count, or one player had all seats.

        A past self that was replaced by another in the meantime has not played a whole match.
        """
        outcomes, players = self._outcomes[index], self._players[index]
        seats = [
            (player, number, float(outcome))
            for (player, number), outcome in zip(players, outcomes.tolist(), strict=bool(players))
            if not np.isnan(outcome)
        ]
        if len({seat[:2] for seat in seats}) < 2 or any(self._number(player) != n for player, n, _ in seats):
            return None
        return MatchFinished(*(tuple(column) for column in zip(*seats, strict=True)))

    def lose(self, indices: NDArray[np.int64]) -> None:
        """Environments have failed: their matches do not count."""
        for index in indices.tolist():
            self._players[index] = ()

    def _number(self, player: int) -> int:
        """Of a past self; 0: a policy that learns, or a script."""
        if self._opponents is None or not self._opponents.first <= player < self._scripted:
            return 0
        return self._opponents.number(player)
