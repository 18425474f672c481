"""One worker from its start to its end: what it is started from, what the driver holds of it, when it is overdue."""

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

from algorithms.memory.counters import Phase, Tally
from algorithms.memory.layout import Sizes
from algorithms.messages import Failed
from algorithms.workers import channels
from algorithms.workers.channels import Inbox, Outbox
from algorithms.workers.placement import Placement
from algorithms.workers.restarts import Kind
from utils import processes

EXIT_LOST = 255  # what a process whose forkserver is gone seems to have ended with

# What a worker counts when it first does its own kind of work, and when it has done enough to be worth a restart.
FIRST_WORK = {
    Kind.ACTOR: Tally.ACTOR_STEPS_OF_SPLITS,
    Kind.POLICY_WORKER: Tally.POLICY_BATCHES,
    Kind.LEARNER: Tally.LEARNER_BATCHES,
}
WORTH_A_RESTART = FIRST_WORK | {Kind.ACTOR: Tally.ACTOR_ROLLOUTS}


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


class Recipe(NamedTuple):
    """How to start one worker, the first time and again."""

    name: str
    process: int  # place in the shared counters
    worker_type: str  # "package.module:Class", so that the driver need not import what the worker does
    job: Any
    placement: Placement


class Successor(NamedTuple):
    """A worker that is started again after a pause."""

    due: float
    recipe: Recipe
    generation: int
    lost_at: float


@dataclass
class Managed:
    """One worker and what the driver holds of its present incarnation."""

    recipe: Recipe
    generation: int
    process: BaseProcess
    inbox: Inbox
    outbox: Outbox
    tallies: NDArray[np.int64]  # as its predecessors left them
    started_at: float
    lost_at: float  # when its predecessor was lost
    is_ready: bool = False
    is_working: bool = False
    condemned: str = ""  # why the supervisor killed it
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
        """How it ended; None while it runs, or when whoever forked it is stopped and cannot tell."""
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


def kind_of(recipe: Recipe, sizes: Sizes) -> Kind:
    """Processes are numbered actors first, then policy workers, then learners."""
    if recipe.process < sizes.actors:
        return Kind.ACTOR
    return Kind.POLICY_WORKER if recipe.process < first_learner(sizes) else Kind.LEARNER


def uses_torch(recipe: Recipe, sizes: Sizes) -> bool:
    """It is a policy worker or a learner."""
    return kind_of(recipe, sizes) is not Kind.ACTOR


def first_learner(sizes: Sizes) -> int:
    """The place of policy 0's learner among the processes."""
    return sizes.processes - sizes.policies


def await_ends(
    workers: list[Managed], timeout_s: float, meanwhile: Callable[[list[Managed]], None] = lambda _: None
) -> list[Managed]:
    """Wait until all workers have ended; returns those that have not in time. `meanwhile` is given those that run."""
    deadline = time.monotonic() + timeout_s
    while (living := [worker for worker in workers if not worker.has_ended()]) and time.monotonic() < deadline:
        told = connection.wait([worker.sentinel for worker in living], timeout=channels.BUSY_POLL_S)
        if len(told) == len(living):  # or their forkservers have ended, so that all sentinels are ready
            time.sleep(channels.BUSY_POLL_S)
        meanwhile(living)
    return living
