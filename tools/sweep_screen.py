"""What a sweep shows while it runs: a table that is kept up to date in a terminal, lines where it is piped."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from appo.tools.sweep_state import RUNNING, Sweep, clock, counts, front_of, in_order, result_of, results_of, table_of
from appo.utils.logs import terminal

_SHOW_EVERY_S = 1.0
_PIPED_WIDTH = 200  # of a table that no terminal shows


def console() -> Console:
    """Where tables are printed; wide enough for names of trials where it is piped."""
    found = terminal()
    return found if found.is_terminal else terminal(width=_PIPED_WIDTH)


class Screen:
    """The terminal of a sweep. Starts no thread."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the sweep."""
        self._folder = folder
        self._console = console()
        # A refresh from a thread of rich's own would run while processes are forked.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._next = 0.0

    def __enter__(self) -> Screen:
        """Begin."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the table away."""
        self._live.stop()

    def tell(self, what: str) -> None:
        """One line about something that has happened."""
        self._console.print(Text(f"{clock()}  {what}"), soft_wrap=True)

    def show(self, sweep: Sweep) -> None:
        """Bring the table of what runs up to date, if that is due."""
        if not self._console.is_terminal or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SHOW_EVERY_S
        running = [name for name, record in sweep.records.items() if record.state == RUNNING]
        results = {name: result_of(self._folder / name, sweep.objective, sweep.direction) for name in running}
        self._live.update(Group(table_of(sweep, results, running), Text(counts(sweep))), refresh=True)

    def show_end(self, sweep: Sweep) -> None:
        """All trials, the best one first."""
        show_all(self._folder, sweep)


def show_all(folder: Path, sweep: Sweep) -> None:
    """Print a table of all trials, the best one first."""
    results = results_of(folder, sweep)
    where = console()
    where.print(table_of(sweep, results, in_order(sweep, results), front_of(sweep, results)))
    where.print(Text(counts(sweep)))
