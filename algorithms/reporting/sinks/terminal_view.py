"""The run as a frame at the lower end of the terminal, drawn anew once a second; log lines appear above it."""

from __future__ import annotations

import logging
import sys
import time

from appo.algorithms.reporting.live_frame import LinesAbove, LiveFrame
from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.sinks.terminal import tell_times
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.view import as_text, render
from appo.algorithms.reporting.view_state import ViewHistory
from appo.utils.logs import TerminalHandler

FRAME_EVERY_S = 1.0


class TerminalView:
    """Draws on the terminal that log lines go to, from the first snapshot on; the last frame stays."""

    def __init__(self, files: OutputFiles) -> None:
        """Nothing is drawn before the first snapshot. `sys.stderr` has to be a terminal, see `can_draw`."""
        self._history = ViewHistory(f"{files.options['experiment']} · {files.options['env']}")
        self._frame: LiveFrame | None = None
        self._redirected: dict[str, LinesAbove] = {}
        self._next = 0.0

    def write(self, snapshot: RunSnapshot) -> None:
        """Draw a frame, if that is due; at the end, tell where the time has gone."""
        for point in snapshot.points:
            self._history.add(point)
        has_ended = snapshot.state == "ended"
        if time.monotonic() < self._next and not has_ended:
            return
        self._next = time.monotonic() + FRAME_EVERY_S
        if self._frame is None:
            self._frame = LiveFrame(sys.stderr)
            self._redirect(self._frame)
        if has_ended:
            tell_times(snapshot)
        columns, rows = self._frame.size()
        self._frame.draw(as_text(render(self._history.state(snapshot), columns, rows), columns, is_terminal=True))

    def close(self) -> None:
        """Give the terminal back."""
        if self._frame is None:
            return
        for name, lines in self._redirected.items():
            lines.end_line()
            setattr(sys, name, lines.stream)
        for handler in _handlers():
            handler.print_above = None
        self._frame.close()
        self._frame = None

    def _redirect(self, frame: LiveFrame) -> None:
        """Let what this process prints appear above the frame: log records, and what a callback prints."""
        for handler in _handlers():
            handler.print_above = frame.print_above
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream.isatty():
                self._redirected[name] = LinesAbove(stream, frame.print_above)
                setattr(sys, name, self._redirected[name])


def _handlers() -> list[TerminalHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, TerminalHandler)]
