"""Counted results of pairs of players, and ratings that are fitted to all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SELF_PLAY = "self_play.json"  # the file of `WinMatrix.content`, in an experiment's folder
_ELO = 400.0 / np.log(10.0)  # a difference of 400 means ten wins for a loss
# Half a draw of every player against an average one: without it, a player who has won all matches would have no rating.
_PRIOR = 0.5
# Drawn matches of a policy against its newest past self: as strong as that one, until its own matches say otherwise.
_FROM_BEFORE = 10.0
_STEPS, _LONGEST_STEP, _CLOSE = 100, 1.0, 1e-8


class Results(NamedTuple):
    """Matches of one player against another, or pairs of seats of matches with more."""

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def matches(self) -> int:
        """Wins, draws and losses."""
        return sum(self)

    @property
    def score(self) -> float:
        """A win is 1, a draw 0.5; over all matches. NaN without any."""
        return (self.wins + 0.5 * self.draws) / self.matches if self.matches else float("nan")

    def turned(self) -> Results:
        """As the other one sees them."""
        return Results(self.losses, self.draws, self.wins)

    def plus(self, other: Results) -> Results:
        """Add results of the same pair."""
        return Results(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class WinMatrix:
    """Results of every pair of players that have met, by their names."""

    def __init__(self) -> None:
        """Begin without results."""
        self._results: dict[tuple[str, str], Results] = {}  # of the first of a pair in alphabetical order

    def add_match(self, players: Sequence[str], outcomes: Sequence[float]) -> None:
        """Count each pair of seats of different players; the higher outcome wins."""
        for i, one in enumerate(players):
            for j in range(i):
                difference = outcomes[i] - outcomes[j]
                self.add(one, players[j], Results(int(difference > 0), int(difference == 0), int(difference < 0)))

    def add(self, one: str, other: str, results: Results) -> None:
        """Count results of `one` against `other`; of a player against itself, nothing."""
        if one != other:
            pair, seen = ((one, other), results) if one < other else ((other, one), results.turned())
            self._results[pair] = self._results.get(pair, Results()).plus(seen)

    def of(self, one: str, other: str) -> Results:
        """Results of `one` against `other`."""
        if one > other:
            return self._results.get((other, one), Results()).turned()
        return self._results.get((one, other), Results())

    def rename(self, old: str, new: str) -> None:
        """What a player has done belongs to another name from now on; the old name begins anew."""
        for pair in [pair for pair in self._results if old in pair]:
            one, other = (new if name == old else name for name in pair)
            self.add(one, other, self._results.pop(pair))

    def forget(self, player: str) -> None:
        """Drop what a player has done."""
        self._results = {pair: results for pair, results in self._results.items() if player not in pair}

    def keep(self, players: Iterable[str]) -> None:
        """Forget all others."""
        kept = set(players)
        self._results = {pair: results for pair, results in self._results.items() if kept.issuperset(pair)}

    def state(self) -> list[list[Any]]:
        """Plain, for `restore`."""
        return [[*pair, *results] for pair, results in sorted(self._results.items())]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Go on from what `state` gave."""
        self._results = {(one, other): Results(*results) for one, other, *results in state}

    def content(self, players: Sequence[str], ratings: Mapping[str, float]) -> dict[str, Any]:
        """Plain, for files and tables: wins and draws of each player of a row against each of a column."""
        wins, draws = self._counts(players)
        return {
            "players": list(players),
            "ratings": dict(ratings),
            "wins": wins.tolist(),
            "draws": draws.tolist(),
        }

    def scores(self, players: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[n, n] points of each against each, a draw 0.5, and [n, n] matches."""
        wins, draws = self._counts(players)
        return wins + 0.5 * draws, np.asarray(wins + wins.T + draws, np.float64)

    def _counts(self, players: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[n, n] wins of each against each, and draws."""
        place = {player: index for index, player in enumerate(players)}
        wins, draws = np.zeros((2, len(players), len(players)), np.int64)
        for (one, other), results in self._results.items():
            if one in place and other in place:
                i, j = place[one], place[other]
                wins[i, j], wins[j, i] = results.wins, results.losses
                draws[i, j] = draws[j, i] = results.draws
        return wins, draws


def elo_ratings(
    matrix: WinMatrix, players: Sequence[str], zero: str, grown_from: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Ratings under which the results are most probable, in Elo's units.

    The model is that of Bradley and Terry (1952, doi:10.2307/2334029), a draw counting as half a win for each::

        P[i beats j] = 1 / (1 + exp(t_j - t_i))
        L(t) = sum over i of points_i t_i - sum over i < j of matches_ij log(exp(t_i) + exp(t_j))

    L is concave; Newton's method finds its maximum. A rating is t in units of which 400 are ten wins for a loss.

    Unlike an Elo number that is moved after each match, they depend neither on the order of the matches nor on how
    strong the opponents were when they were met.

    Args:
        matrix: who has beaten whom.
        players: to be rated.
        zero: the player whose rating is 0; when it is none of them, or has not played, their mean is.
        grown_from: player -> the one that it was a moment ago, where its own matches are still few.
    """
    if not players:
        return {}
    points, matches = matrix.scores(players)
    has_played = {player: bool(met.any()) for player, met in zip(players, matches, strict=True)}
    for player, before in (grown_from or {}).items():
        i, j = players.index(player), players.index(before)
        for one, other in ((i, j), (j, i)):
            points[one, other] += _FROM_BEFORE / 2
            matches[one, other] += _FROM_BEFORE
    own, rating = points.sum(axis=1) + _PRIOR / 2, np.zeros(len(players))
    for _ in range(_STEPS):
        expected, against_average = _sigmoid(rating[:, None] - rating), _sigmoid(rating)
        gradient = own - (matches * expected).sum(axis=1) - _PRIOR * against_average
        weights = matches * expected * (1.0 - expected)
        curvature = np.diag(weights.sum(axis=1) + _PRIOR * against_average * (1.0 - against_average)) - weights
        step = np.linalg.solve(curvature, gradient).clip(-_LONGEST_STEP, _LONGEST_STEP)
        rating = rating + step
        if np.abs(step).max() < _CLOSE:
            break
    ratings = _ELO * rating
    offset = ratings[players.index(zero)] if has_played.get(zero) else ratings.mean()
    return {player: float(rating - offset) for player, rating in zip(players, ratings, strict=True)}


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-values))


class PlacementRatings:
    """Ratings from the order in which more than two players of a match end (`openskill`, Plackett and Luce's model)."""

    def __init__(self) -> None:
        """Begin with average players."""
        from openskill.models import PlackettLuce

        self._model = PlackettLuce()
        self._known: dict[str, tuple[float, float]] = {}  # mean and standard deviation

    def add_match(self, players: Sequence[str], outcomes: Sequence[float]) -> None:
        """Take in a match; of a player with several seats, the best one."""
        best: dict[str, float] = {}
        for player, outcome in zip(players, outcomes, strict=True):
            best[player] = max(outcome, best.get(player, outcome))
        if len(best) < 2:
            return
        teams = [[self._rating(player)] for player in best]
        rated = self._model.rate(teams, scores=list(best.values()))
        self._known |= {player: (team[0].mu, team[0].sigma) for player, team in zip(best, rated, strict=True)}

    def rename(self, old: str, new: str) -> None:
        """A player stays as it is under another name; the old name goes on from the same rating."""
        if old in self._known:
            self._known[new] = self._known[old]

    def become(self, player: str, source: str) -> None:
        """A player is a copy of another one from now on: it has that one's rating, or none as long as that one has."""
        self._known.pop(player, None)
        self.rename(source, player)

    def keep(self, players: Iterable[str]) -> None:
        """Forget all others."""
        kept = set(players)
        self._known = {player: known for player, known in self._known.items() if player in kept}

    def of(self, players: Sequence[str], zero: str) -> dict[str, float]:
        """Conservative ratings, three standard deviations below the mean, of those who have played.

        As differences to that of `zero`, where that one has played.
        """
        found = {player: self._known[player] for player in players if player in self._known}
        known = {player: mean - 3.0 * deviation for player, (mean, deviation) in found.items()}
        offset = known.get(zero, 0.0)
        return {player: rating - offset for player, rating in known.items()}

    def state(self) -> dict[str, list[float]]:
        """Plain, for `restore`."""
        return {player: list(known) for player, known in self._known.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on from what `state` gave."""
        self._known = {player: (float(known[0]), float(known[1])) for player, known in state.items()}

    def _rating(self, player: str) -> Any:
        make: Callable[..., Any] = self._model.rating
        mu, sigma = self._known.get(player, (None, None))
        return make(mu=mu, sigma=sigma) if mu is not None else make()
