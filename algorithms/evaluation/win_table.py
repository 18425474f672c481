"""Who beat whom, as a table: of `self_play.json` and `tournament.json`. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from appo.utils.logs import terminal

_NAME_WIDTH, _CELL_WIDTH = 44, 4  # beyond the width of a terminal, lines are long rather than cut


class WinTable(NamedTuple):
    """Results of n players, the best first."""

    players: list[str]
    ratings: dict[str, float]  # of those that have one
    scores: NDArray[np.float64]  # [n, n] points of a row against a column, a draw half, in 0..1; NaN: they have not met
    matches: NDArray[np.int64]  # [n, n]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> WinTable:
        """From what `WinMatrix.content` gives.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        players, ratings = told["players"], told["ratings"]
        wins, draws = np.array(told["wins"], np.int64), np.array(told["draws"], np.int64)
        order = sorted(range(len(players)), key=lambda i: -ratings.get(players[i], float("-inf")))
        matches = (wins + wins.T + draws)[np.ix_(order, order)]
        points = (wins + draws / 2)[np.ix_(order, order)]
        scores = np.divide(points, matches, out=np.full(points.shape, np.nan), where=matches > 0)
        return cls([players[i] for i in order], ratings, scores, matches)


def show_wins(table: WinTable, console: Console | None = None) -> None:
    """Print ratings, and points in percent of each row against each column."""
    title = "points of a row against a column, in %; a draw counts half"
    printed = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title)
    printed.add_column("", no_wrap=True)
    for heading in ("rating", "matches", *map(str, range(1, len(table.players) + 1))):
        printed.add_column(heading, justify="right", no_wrap=True)
    for i, player in enumerate(table.players):
        rating = f"{table.ratings[player]:.0f}" if player in table.ratings else "-"
        cells = ["" if np.isnan(score) else f"{100 * score:.0f}" for score in table.scores[i]]
        printed.add_row(f"{i + 1} {player}", rating, str(table.matches[i].sum()), *cells)
    console = console or terminal()
    console.print(printed, width=max(console.width, _NAME_WIDTH + _CELL_WIDTH * len(table.players)), crop=False)
