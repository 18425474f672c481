"""One worker from its start to its end: its specification, the driver's handle of it, and when it is overdue."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.counters import Phase
from appo.algorithms.messages import Failed
from appo.algorithms.workers import channels
from appo.algorithms.workers.channels import Inbox, Outbox
from appo.algorithms.workers.placement import Placement
from appo.algorithms.workers.roster import KINDS, WorkerId, WorkerKind
from appo.utils import processes

EXIT_LOST = 255  # what a process whose forkserver is gone seems to have ended with


class Limits(NamedTuple):
    """How long a worker may show no sign of life, in seconds, by what it is doing."""

    setup_s: float = 300.0
    reset_s: float = 120.0
    step_s: float = 60.0

    def of(self, phase: Phase) -> float:
        """The limit that holds now."""
        if phase in (Phase.NOT_STARTED, Phase.SETUP):
            return self.setup_s
        return self.reset_s if phase is Phase.RESET else self.step_s

    @staticmethod
    def option(phase: Phase) -> str:
        """The option that sets the limit."""
        prepares = phase in (Phase.NOT_STARTED, Phase.SETUP, Phase.RESET)
        return "--reset_timeout_seconds" if prepares else "--heartbeat_timeout_seconds"


class WorkerSpec(NamedTuple):
    """How to start one worker, the first time and again."""

    worker: WorkerId
    name: str  # as `ps`, the log and every message show it
    place: int  # in the shared counters
    worker_class: str  # "package.module:Class", so that the driver need not import what the worker does
    job: Any
    placement: Placement

    @property
    def kind(self) -> WorkerKind:
        """What is particular to workers of its kind."""
        return KINDS[self.worker.kind]


class Successor(NamedTuple):
    """A worker that is started again after a pause."""

    due: float
    spec: WorkerSpec
    generation: int
    lost_at: float


@dataclass
class WorkerHandle:
    """One worker and what the driver holds of its present incarnation."""

    spec: WorkerSpec
    generation: int
    process: BaseProcess
    inbox: Inbox
    outbox: Outbox
    event_counts: NDArray[np.int64]  # as its predecessors left them
    started_at: float
    lost_at: float  # when its predecessor was lost
    is_ready: bool = False
    is_working: bool = False
    kill_reason: str = ""  # why the supervisor killed it
    failure: Failed | None = None  # its last words
    watch: int | None = None  # a descriptor that tells when it ends
    _code: int | None = None  # what its parent was told, where that is this process

    @property
    def pid(self) -> int:
        """Process id of the present incarnation."""
        return self.process.pid or 0

    @property
    def sentinel(self) -> int:
        """Readable when it has ended."""
        return self.process.sentinel if self.watch is None else self.watch

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or when the process that forked it is stopped and cannot tell."""
        if self._code is None and self.process.exitcode == EXIT_LOST:
            self._code = processes.exit_code_of_child(self.pid)  # adopted when its forkserver ended
        return self._code if self._code is not None else self.process.exitcode

    def has_ended(self) -> bool:
        """It runs no more, whether or not the forkserver, which may be stopped or gone, could tell."""
        if self.exit_code in (None, EXIT_LOST):
            return not processes.is_alive(self.pid)
        return True

    def close(self) -> None:
        """Give back the descriptor, once it has ended."""
        if self.watch is not None:
            os.close(self.watch)
            self.watch = None

    def kill(self) -> None:
        """End it at once."""
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def await_ends(
    workers: list[WorkerHandle], timeout_s: float, meanwhile: Callable[[list[WorkerHandle]], None] = lambda _: None
) -> list[WorkerHandle]:
    """Wait until all workers have ended; returns those that have not in time. `meanwhile` is given those that run."""
    deadline = time.monotonic() + timeout_s
    while (living := [worker for worker in workers if not worker.has_ended()]) and time.monotonic() < deadline:
        told = connection.wait([worker.sentinel for worker in living], timeout=channels.BUSY_POLL_S)
        if len(told) == len(living):  # or their forkservers have ended, so that all sentinels are ready
            time.sleep(channels.BUSY_POLL_S)
        meanwhile(living)
    return living
