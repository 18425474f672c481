"""Log records of the main process: to the terminal for the user, and all of them to a file."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "bold red", logging.CRITICAL: "bold red"}


class TerminalHandler(logging.Handler):
    """One line per record, never broken by us: the last line of a failed run holds its whole cause."""

    def __init__(self) -> None:
        """Writes to stderr."""
        super().__init__(logging.INFO)
        self._console = Console(stderr=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        line = Text(time.strftime("%H:%M:%S ", time.localtime(record.created)), style="dim")
        line.append(record.getMessage(), style=_COLOURS.get(record.levelno, "not dim"))
        self._console.print(line, soft_wrap=True, highlight=False)


def log_to_terminal_and_file(path: Path) -> None:
    """Send records to the terminal as short lines, and with their time and origin to the end of a file."""
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.INFO)
    logging.getLogger("algorithms").setLevel(logging.DEBUG)
    root.addHandler(TerminalHandler())
    root.addHandler(file)
