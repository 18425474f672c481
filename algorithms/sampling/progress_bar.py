"""A bar in a terminal that shows how far a call has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ProgressBar:
    """A bar on the error stream; entered, it gives a function that is told how many units have been done since."""

    def __init__(self, unit: str, total: int, *, is_shown: bool) -> None:
        """Of so many units."""
        self._unit, self._total, self._is_shown = unit, total, is_shown
        self._bar: Any = None

    def __enter__(self) -> Callable[[int], None]:
        if not self._is_shown:
            return lambda number: None
        from rich.progress import Progress

        from appo.utils.logs import terminal

        self._bar = Progress(console=terminal(stderr=True), transient=True)
        self._bar.start()
        task = self._bar.add_task(self._unit, total=self._total)
        return lambda number: self._bar.advance(task, number)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
