"""`--with_wandb=True`: starts the process that sends a run's numbers, tells what it says, and ends it with the run."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from appo.algorithms.messages import Command, Report
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.utils.files import NewLines
from appo.utils.processes import import_root

LOOK_EVERY_S = 1.0
# For what is left to be sent when the run ends; the rest stays on disk. A run has ten seconds for its end.
END_S, KILL_S = 4.0, 1.0
LOG_FILE = "wandb.txt"

log = logging.getLogger(__name__)


class WeightsAndBiases(Controller):
    """Does nothing without the option; a process that fails costs one warning."""

    def __init__(self, context: ControllerContext) -> None:
        """Starts the process."""
        run = context.config.run
        self._process: subprocess.Popen[bytes] | None = None
        self._said = NewLines(context.log_dir / LOG_FILE)
        self._next_look = 0.0
        if not run.with_wandb:
            return
        words = [f"--project={run.wandb_project}", f"--user={run.wandb_user}", f"--group={run.wandb_group}"]
        words += [f"--tags={run.wandb_tags}", str(context.folder)]
        list(self._said.read())  # what earlier starts have said
        try:
            self._process = _started(words, context.log_dir / LOG_FILE)
        except OSError as error:
            log.warning("Weights & Biases: no process could be started (%s); nothing is sent", error)

    def note(self, report: Report) -> None:
        """Reports are not sent."""

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """Tell what is new; nothing is to be done."""
        del snapshot
        if self._process is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            has_ended = self._process.poll() is not None  # before the last words are read
            self._tell()
            if has_ended:
                log.warning("Weights & Biases: nothing more is sent, see log/%s; the run goes on", LOG_FILE)
                self._process = None
        return ()

    def end(self, last: RunSnapshot) -> None:
        """Let it send the rest, and wait a moment for that."""
        del last
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has just ended by itself
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        self._tell()
        if process.poll() is None:
            log.warning("Weights & Biases: not all was sent in %g s; `wandb sync` sends what wandb/ holds", END_S)
        for number in (signal.SIGTERM, signal.SIGKILL):  # what it has started is in its group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_S)

    def _tell(self) -> None:
        for said in self._said.read():
            line = said.decode(errors="replace")
            if line.startswith("error: "):
                log.warning("%s", line.removeprefix("error: "))
            elif line.startswith("Weights & Biases"):
                log.info("%s", line)


def _started(words: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    """A session of its own: a Ctrl+C reaches the run only, which then ends it."""
    search_path = os.pathsep.join(filter(None, [import_root(), os.environ.get("PYTHONPATH")]))
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "appo.algorithms.run.wandb_mirror", *words],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=os.environ | {"PYTHONPATH": search_path},
            start_new_session=True,
        )
