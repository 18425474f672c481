"""Signals to the main process: noted, and acted on by its loop. SIGINT and SIGTERM ask it to end, SIGUSR1 to save.

A second Ctrl+C ends at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class StopSignals:
    """Remembers the first SIGINT or SIGTERM, and counts SIGUSR1."""

    def __init__(self, end_at_once: Callable[[], None]) -> None:
        """Install the handlers. `end_at_once` is called by a second SIGINT and must not return."""
        self.received: signal.Signals | None = None
        self.saves_requested = 0
        self._end_at_once = end_at_once
        self._earlier = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        self._earlier[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._note_save)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that this signal ended; 0 without one."""
        return 0 if self.received is None else 128 + self.received

    def restore(self) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None and number == signal.SIGINT:
            self._end_at_once()
        if self.received is None:
            self.received = signal.Signals(number)

    def _note_save(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.saves_requested += 1
