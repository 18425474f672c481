"""Every sink of a run. To add one: a file in this folder, and its class in this table."""

from __future__ import annotations

import sys
from collections.abc import Callable

from appo.algorithms.reporting.live_frame import can_draw
from appo.algorithms.reporting.outputs import OutputFiles, Sink
from appo.algorithms.reporting.sinks.metrics import MetricsLines
from appo.algorithms.reporting.sinks.status import StatusFile
from appo.algorithms.reporting.sinks.tensorboard import TensorBoardEvents
from appo.algorithms.reporting.sinks.terminal import NoLines, TerminalLines
from appo.algorithms.reporting.sinks.terminal_view import TerminalView
from appo.algorithms.reporting.sinks.timing import TimingFile

VIEWS: dict[str, Callable[[OutputFiles], Sink]] = {"full": TerminalView, "lines": TerminalLines, "off": NoLines}


def view(files: OutputFiles) -> Sink:
    """What the terminal shows, as `--view` says; a frame only on a terminal that can draw one."""
    asked = files.options.get("view", "auto")
    if asked == "auto":  # a debugger needs the terminal of a serial run for itself
        asked = "lines" if files.options.get("serial_mode") else "full"
    return VIEWS["lines" if asked == "full" and not can_draw(sys.stderr) else asked](files)


SINKS: tuple[Callable[[OutputFiles], Sink], ...] = (
    TensorBoardEvents,
    MetricsLines,
    StatusFile,
    TimingFile,
    view,
)
