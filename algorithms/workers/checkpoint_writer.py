"""Checkpoints reach the disk on a thread of their own: a slow or hanging disk stalls neither training nor a heartbeat.

They are encoded by the caller of `submit`, so no tensor is read here, and written one after the other, oldest first.
Every request is answered, once.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from appo.algorithms import checkpoints
from appo.algorithms.checkpoints import CheckpointError, Encoded
from appo.algorithms.messages import CheckpointFailed, CheckpointSaved, SaveCheckpoint

# Each is as large as the model with its optimizer; a disk so slow that more would wait gets no more to do, but for the
# newest of kind "latest" in the place of the older ones.
MOST_WAITING = 4

log = logging.getLogger(__name__)


class CheckpointFolder:
    """Where the checkpoints of one policy go."""

    def __init__(self, policy: int, folder: Path, keep: int) -> None:
        """`keep`: how many of kind "latest" stay."""
        self._policy = policy
        self._folder = folder
        self._keep = keep

    def write(self, command: SaveCheckpoint, encoded: Encoded) -> CheckpointSaved | CheckpointFailed:
        """Write one, and tell how that went."""
        try:
            path = checkpoints.write(self._folder, encoded, keep=self._keep)
        except CheckpointError as error:
            return self.failed(command, str(error))
        return CheckpointSaved(self._policy, command.kind, str(path), command.request)

    def failed(self, command: SaveCheckpoint, reason: str) -> CheckpointFailed:
        """Tell that one was not written."""
        log.error("%s", reason)
        return CheckpointFailed(self._policy, command.kind, reason, command.request)

    def __str__(self) -> str:
        return str(self._folder)


class CheckpointWriter:
    """Writes what is submitted."""

    def __init__(self, folder: CheckpointFolder) -> None:
        """Starts the thread, which ends with the process, whatever the disk does."""
        self._folder = folder
        self._waiting: queue.SimpleQueue[tuple[SaveCheckpoint, Encoded] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[CheckpointSaved | CheckpointFailed] = queue.SimpleQueue()
        self._submitted = self._written = self._replaced = 0
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def submit(self, command: SaveCheckpoint, encode: Callable[[SaveCheckpoint], Encoded]) -> None:
        """Encode a checkpoint now and write it soon; a failure of either is an answer of `finished`."""
        waiting = self._submitted - self._written - self._replaced
        is_replacing = waiting >= MOST_WAITING and command.kind == "latest"
        if waiting >= MOST_WAITING and not is_replacing:
            reason = f"{self._folder} is too slow: {waiting} checkpoints wait for it, so the next one is left out"
            self._answers.put(self._folder.failed(command, reason))
            return
        try:
            encoded = encode(command)
        except CheckpointError as error:
            self._answers.put(self._folder.failed(command, str(error)))
            return
        if is_replacing:
            self._replace_waiting()
        self._submitted += 1
        self._waiting.put((command, encoded))

    def finished(self) -> list[CheckpointSaved | CheckpointFailed]:
        """What was answered since the last call."""
        answers = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        return answers

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for so long; False when the disk is still busy then, which is left to itself."""
        self._waiting.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _replace_waiting(self) -> None:
        """Leave out what waits of kind "latest": a newer one is there, and may be the last of the run."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._waiting.get_nowait())
        for item in found:
            if item is not None and item[0].kind == "latest":
                reason = f"{self._folder} is too slow: a newer checkpoint takes the place of one that waits for it"
                self._answers.put(self._folder.failed(item[0], reason))
                self._replaced += 1
            else:
                self._waiting.put(item)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            command, encoded = item
            try:
                answer = self._folder.write(command, encoded)
            except Exception as error:  # an unforeseen error must not leave a request without its answer
                log.exception("a checkpoint was not written")
                answer = self._folder.failed(command, f"{self._folder} was not written to ({error!r})")
            self._written += 1
            self._answers.put(answer)
