"""Who beat whom: the results that self-play and tournaments leave, read from their files, and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from appo.algorithms.evaluation.win_table import WinTable
from appo.tools.curves import PlotError


def read_wins(path: Path) -> WinTable | None:
    """The results in `self_play.json` or `tournament.json`; None: there is no such file.

    Raises:
        PlotError: it cannot be read.
    """
    try:
        return WinTable.of(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlotError(f"{path} cannot be read ({error!r})") from error


def draw_wins(table: WinTable, axes: Any) -> None:
    """Colour the matrix on matplotlib axes."""
    axes.imshow(table.scores, vmin=0.0, vmax=1.0, cmap="RdYlGn")
    places = range(len(table.players))
    axes.set_xticks(places, [str(i + 1) for i in places], fontsize="small")
    axes.set_yticks(places, [f"{i + 1} {player}" for i, player in enumerate(table.players)], fontsize="small")
    for i in places:
        for j in places:
            if table.matches[i, j]:
                axes.text(j, i, f"{100 * table.scores[i, j]:.0f}", ha="center", va="center", fontsize="x-small")
    axes.set_title("points of a row against a column, in %", fontsize="small")
