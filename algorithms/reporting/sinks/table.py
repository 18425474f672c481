"""Every sink of a run. To add one: a file in this folder, and its class in this table."""

from __future__ import annotations

from collections.abc import Callable

from appo.algorithms.reporting.outputs import OutputFiles, Sink
from appo.algorithms.reporting.sinks.metrics import MetricsLines
from appo.algorithms.reporting.sinks.status import StatusFile
from appo.algorithms.reporting.sinks.tensorboard import TensorBoardEvents
from appo.algorithms.reporting.sinks.terminal import TerminalLines
from appo.algorithms.reporting.sinks.timing import TimingFile

SINKS: tuple[Callable[[OutputFiles], Sink], ...] = (
    TensorBoardEvents,
    MetricsLines,
    StatusFile,
    TimingFile,
    TerminalLines,
)
