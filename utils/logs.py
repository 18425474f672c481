"""What the main process says: log records, on the terminal and all of them in a file, and why it cannot start."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}


class TerminalHandler(logging.Handler):
    """One line per record, never broken by us: the last line of a failed run holds its whole cause.

    Warnings and errors carry their level as a word: colours do not survive a pipe or a file.
    With `NO_COLOR` set there are none on a terminal either.
    """

    def __init__(self) -> None:
        """Writes to stderr."""
        super().__init__(logging.INFO)
        self._console = terminal(stderr=True)
        self.print_above: Callable[[str], None] | None = None
        """Takes the lines instead, as long as something else is drawn on the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        line = Text(time.strftime("%H:%M:%S ", time.localtime(record.created)), style="dim")
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        line.append(level + record.getMessage(), style=_COLOURS.get(record.levelno, "not dim"))
        if self.print_above is not None:
            with self._console.capture() as captured:
                self._console.print(line, soft_wrap=True, highlight=False)
            self.print_above(captured.get())
            return
        with contextlib.suppress(OSError):  # the terminal may be gone, or a file on a full disk
            self._console.print(line, soft_wrap=True, highlight=False)


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Go on when the reader has closed the pipe; rich by itself would end the process."""


def terminal(*, stderr: bool = False, width: int | None = None) -> Console:
    """Where text goes: without colours, and without any escape sequence where NO_COLOR is set or nobody looks.

    What it prints is what is given: `old:Leaves` and `[a]` in a user's name are neither an emoji nor markup.

    Args:
        stderr: not standard output.
        width: columns; None: as many as there are.
    """
    return _Terminal(
        stderr=stderr,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        width=width,
        markup=False,
        emoji=False,
    )


def say_error(program: str, text: str) -> None:
    """Say on stderr why a program ends that has no log: `train_appo.py: error: ...`, in one line."""
    line = Text(f"{program}: ")
    line.append(f"error: {text}", style=_COLOURS[logging.ERROR])
    with contextlib.suppress(OSError):
        terminal(stderr=True).print(line, soft_wrap=True, highlight=False)


class LogFile(logging.handlers.WatchedFileHandler):
    """The end of a file, made anew when it vanishes. What the disk does not take is lost; the terminal has it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say nothing about a full disk; about a mistake in a format, what logging says."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def log_to_terminal_and_file(path: Path) -> None:
    """Send records to the terminal as short lines, and with their time and origin to the end of a file."""
    file = LogFile(path, delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    log_to_terminal()
    logging.getLogger("appo.algorithms").setLevel(logging.DEBUG)
    logging.getLogger().addHandler(file)


def log_to_terminal() -> None:
    """Send records to the terminal as short lines, and nowhere else."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.INFO)
    root.addHandler(TerminalHandler())
