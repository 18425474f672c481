"""Log records of the main process: to the terminal for the user, and all of them to a file."""

from __future__ import annotations

import logging
from pathlib import Path


def log_to_terminal_and_file(path: Path) -> None:
    """Send records to the terminal as short lines, and with their time and origin to the end of a file."""
    from rich.console import Console
    from rich.logging import RichHandler

    console = Console(stderr=True, soft_wrap=True)
    terminal = RichHandler(console=console, show_path=False, omit_repeated_times=False, log_time_format="%H:%M:%S")
    terminal.setFormatter(logging.Formatter("%(message)s"))
    terminal.setLevel(logging.INFO)
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    file.setLevel(logging.DEBUG)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("algorithms").setLevel(logging.DEBUG)
    root.addHandler(terminal)
    root.addHandler(file)
