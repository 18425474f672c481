"""The parent's side of one process of environments: its start, messages to it, its end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from appo.envs.faults import RestartQuota, Restarts, ignore
from appo.envs.vector.channel import ParentChannel
from appo.envs.vector.env_process import ChildFaults, ChildJob, run
from appo.envs.vector.errors import EnvTimeout, EnvWorkerDied, EnvWorkerError, Failure
from appo.envs.vector.process_guard import KILLED_S, start_process
from appo.utils import processes
from appo.utils.doorbells import Doorbell, SharedDescriptor

# A process that never gets as far as a step is not restarted for ever, whatever the quota says.
MOST_IN_A_ROW = 10
PRELOAD = ["numpy", "gymnasium", "setproctitle", "threadpoolctl", "appo.envs.vector.env_process"]


@dataclass
class ProcessSettings:
    """How processes are started and what is done about those that fail."""

    num_workers: int
    start_method: str = "forkserver"
    reset_timeout_s: float = 120.0
    step_timeout_s: float | None = None
    restarts: Restarts = field(default_factory=Restarts)
    remedy: str = ""  # what would start a process again that is not restarted: the end of its error
    child_faults: ChildFaults | None = None
    keeps_final: bool = False
    own_group: bool = True
    cores: tuple[int, ...] = ()  # to which processes are pinned in turn; empty: they run where this one does
    first_core: int = 0  # place among these of the first process
    single_thread: bool = True
    count: Callable[[bool, str], None] = ignore  # called for each failure that is survived
    beat: Callable[[], Any] = lambda: None  # called while processes start or answer: a sign of life


class ProcessHandle:
    """One process, and what is known of it."""

    def __init__(self, worker: int, envs: range, quota: RestartQuota) -> None:
        self.worker, self.envs, self.quota = worker, envs, quota
        self.slice = slice(envs.start, envs.stop)
        self.attempt, self.in_a_row = 0, 0
        self.done_at_end = -1  # steps that had been done when it last ended
        self.done_at_look, self.progress_at = -1, 0.0  # steps, and when their number was last seen to grow
        self.end: tuple[int | None, str] = (None, "has not been started")
        self.why = ""  # it was not restarted
        self.mark = ""
        self.process: Any = None
        self.channel: ParentChannel
        self.own, self.parents = Doorbell(), Doorbell()  # its own, and the one that it rings for us
        self.pidfd: int | None = None
        self.poll = select.poll()  # of this process alone
        self.is_ready = self.has_ended = self.is_closed = False
        self.failure: Failure | None = None  # as it told before it ended
        self.late: tuple[list[int], float, str] | None = None  # why it was killed: environments, seconds, doing what
        self.deadline = 0.0  # by which it is ready
        self.waiting: list[bytes] = []  # messages until it is
        self.requests: deque[int] = deque()  # that it has not answered, in the order of its answers

    @property
    def pid(self) -> int:
        """Of the process."""
        return int(self.process.pid or 0)

    @property
    def is_gone(self) -> bool:
        """Nothing of it runs."""
        return self.process is None or self.process.exitcode is not None

    def start(self, job: ChildJob, start_method: str, timeout_s: float, selector: selectors.BaseSelector) -> None:
        """Start a process.

        Args:
            job: what it does.
            start_method: of multiprocessing.
            timeout_s: seconds in which each of its environments is to be built.
            selector: wakes for what it does.

        Raises:
            OSError: the system gives no process, or no descriptors.
        """
        context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            context.set_forkserver_preload(PRELOAD)
        bells = [[SharedDescriptor(number) for number in bell.descriptors] for bell in (self.own, self.parents)]
        near, far = socket.socketpair()
        try:
            process = context.Process(target=run, args=(job, SharedDescriptor(far.fileno()), *bells), name=job.title)
            start_process(process)
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        self.channel = ParentChannel(near)
        self.is_ready = self.has_ended = self.is_closed = False
        self.failure = self.late = None
        self.waiting.clear()
        self.requests.clear()
        self.process = process
        self.deadline = time.monotonic() + timeout_s * len(self.envs)
        self.pidfd = processes.watch(self.pid)
        end = self.process.sentinel if self.pidfd is None else self.pidfd
        selector.register(self.channel, selectors.EVENT_READ, self)
        selector.register(self.parents.descriptors[0], selectors.EVENT_READ, self)
        selector.register(end, selectors.EVENT_READ, self)
        self.poll = select.poll()
        for watched in (self.channel.fileno(), self.parents.descriptors[0], end):
            self.poll.register(watched, select.POLLIN)

    def post(self, message: Any) -> None:
        """Send a message, once the process is ready for it."""
        import cloudpickle  # what is called or set may be a lambda

        content = cloudpickle.dumps(message)
        if self.is_ready:
            self.channel.post(content)
        else:
            self.waiting.append(content)
        self.own.ring()

    def take_restart(self, done: int) -> bool:
        """Use up a restart, if there is one left.

        Args:
            done: steps of its environments so far.
        """
        if self.failure is not None and not self.failure.retryable:
            return False
        self.in_a_row = self.in_a_row + 1 if done == self.done_at_end else 1
        self.done_at_end = done
        if self.in_a_row > MOST_IN_A_ROW:
            self.why = f"it has ended {self.in_a_row} times in a row without a step in between"
            return False
        if not self.quota.take(time.monotonic()):
            self.why = self.quota.why
            return False
        return True

    def raise_end(self) -> NoReturn:
        """Say why it is not there any more.

        Raises:
            EnvWorkerError, EnvTimeout, EnvWorkerDied: always one of them, or
            UnsupportedSpaceError, ConfigError: it refused to build its environments.
        """
        if self.failure is not None:
            self.failure.raise_refusal()
            told = f"{self.failure.message}; {self.why}" if self.why else self.failure.message
            raise EnvWorkerError.of(self.failure._replace(message=told), self.worker)
        if self.late is not None:
            raise EnvTimeout(*self.late, self.why)
        code, how = self.end
        raise EnvWorkerDied(list(self.envs), self.worker, code, f"{how}; {self.why}" if self.why else how)

    def release(self, selector: selectors.BaseSelector) -> None:
        """Give back what belongs to a process that has ended."""
        self.forget(selector)
        for bell in (self.own, self.parents):
            bell.close()

    def forget(self, selector: selectors.BaseSelector) -> None:
        """Release what belongs to a process that has ended; its doorbells stay, for a successor."""
        if self.process is None:
            return
        end = self.process.sentinel if self.pidfd is None else self.pidfd
        for watched in (self.channel, self.parents.descriptors[0], end):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(watched)
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.channel.close()
        self.process.join(KILLED_S)
        with contextlib.suppress(ValueError):  # it is still there: nothing more can be done
            self.process.close()
        self.process = None


def spread(num_envs: int, num_workers: int) -> list[range]:
    """Environments of each process, as even as can be, in order."""
    share, rest = divmod(num_envs, num_workers)
    sizes = [share + (worker < rest) for worker in range(num_workers)]
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def name_of(envs: range) -> str:
    """Their numbers, for a title."""
    return f"{envs.start}-{envs.stop - 1}" if len(envs) > 1 else f"{envs.start}"
