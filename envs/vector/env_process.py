"""A process that steps environments for another one: its entry point, and what it does with each command.

Waits for its doorbell and its socket. Steps and resets are asked for in shared memory, everything else by message. It
never outlives its parent, and ends in a way that lets environments close: SIGTERM is an exception in the main thread.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from appo.envs.api import BatchEnv, EnvContext, EnvError, EnvSpec
from appo.envs.contract import reported
from appo.envs.faults import FAILURES, FailureStreak, FaultPolicy, Restarts
from appo.envs.registry import ResolvedEnv, make_batch_env
from appo.envs.vector.channel import ChannelClosed, ChildChannel
from appo.envs.vector.errors import Failure
from appo.envs.vector.shared_rows import (
    DONE,
    DONE_WITH_INFO,
    FAILED,
    IDLE,
    RESET,
    RESET_AS_TOLD,
    STEP,
    SharedRows,
    add_time,
    map_rows,
    rows_of,
)
from appo.envs.vector.talk import (
    Answer,
    Ask,
    Close,
    Closed,
    Counted,
    Failed,
    Fatal,
    Infos,
    Ready,
    Shared,
    answer,
    prepare_reset_of_all,
)
from appo.utils import processes
from appo.utils.doorbells import Doorbell, SharedDescriptor
from appo.utils.segment import Segment

# Results that are ready are told before the next environment of this process is stepped, at most this often.
TELL_EVERY_S = 0.001
# How soon a parent's end is noticed where the system does not tell of it.
LOOK_EVERY_MS = 1000

log = logging.getLogger(__name__)


class ChildFaults(NamedTuple):
    """What a child does about environments that raise."""

    max_rebuilds: int  # in a row
    drops_bad_data: bool
    restarts: Restarts | None = None  # in all; None: without a limit

    def policy(self, count: Callable[[bool, str], None]) -> FaultPolicy:
        """The fault policy of a batch; `count`: told of each failure that is survived."""
        return FaultPolicy(self.max_rebuilds, drops_bad_data=self.drops_bad_data, count=count, restarts=self.restarts)


@dataclass
class ChildJob:
    """Which environments a process steps, and for whom."""

    env: ResolvedEnv
    options: Any  # of its family
    contexts: list[EnvContext]
    first: int  # place of its first environment among all
    worker: int  # its own place among the processes
    num_envs: int  # of all processes
    num_workers: int
    spec: EnvSpec | None  # that is expected
    keeps_final: bool
    faults: ChildFaults | None  # None: failures are the parent's to know
    title: str
    mark: str  # of this process and what it starts, see `guardian`
    parent: int  # pid of the process that forks it; 0: that of a server
    remembered: list[Ask]  # what a predecessor was told
    log_level: int
    own_group: bool
    shows_progress: bool  # environments are stepped one by one, so that one that takes too long is known
    cores: tuple[int, ...]  # empty: those of its parent
    single_thread: bool


class Terminated(BaseException):
    """SIGTERM; no environment takes it for a failure of its own."""


class FailureRecorder(FaultPolicy):
    """Lets a batch go on without the environments that failed, and keeps how they did."""

    def __init__(self) -> None:
        """With no failures."""
        super().__init__(0)
        self.failures: list[EnvError] = []

    def recover(
        self,
        failed: EnvError | None,
        streak: FailureStreak,
        step: int,
        restart: Callable[[EnvError], EnvError | None],
    ) -> None:
        """Keep it; nothing is restarted."""
        assert failed is not None
        self.failures.append(failed)


def run(
    job: ChildJob, end: SharedDescriptor, bell: Sequence[SharedDescriptor], parents: Sequence[SharedDescriptor]
) -> None:
    """Entry point of the process.

    Args:
        job: what it does.
        end: its end of the socket.
        bell: its own doorbell.
        parents: that of its parent.
    """
    code = 1
    try:
        _settle(job)
        _held = processes.mark_descendants(job.mark)
        channel = ChildChannel(socket.socket(fileno=end.descriptor))
        own, other = (Doorbell([each.descriptor for each in some]) for some in (bell, parents))
        child = Child(job, channel, own, other)
        code = child.main()
    except (ChannelClosed, Terminated):
        code = 0
    except BaseException:
        log.exception("%s failed", job.title)
    finally:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _settle(job: ChildJob) -> None:
    """Set signals, title, cores and logging of the new process."""
    if job.own_group:
        # Out of reach of a terminal's Ctrl+C. Not a session: Linux schedules each as a whole (autogroup), and sixteen
        # processes of eight Doom environments then made 0.87 of the steps.
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL if job.own_group else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    processes.die_with_parent(job.parent or os.getppid())
    processes.set_title(job.title)
    if job.cores:
        processes.pin_to_cores(job.cores)
    logging.basicConfig(level=job.log_level, force=True, format=f"%(asctime)s {job.title} %(levelname)s %(message)s")


def _terminate(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: environments are being closed
    raise Terminated


class Child:
    """The environments of this process."""

    def __init__(self, job: ChildJob, channel: ChildChannel, bell: Doorbell, parent: Doorbell) -> None:
        """Nothing is built yet."""
        self._job, self._channel, self._bell, self._parent = job, channel, bell, parent
        self._recorder = FailureRecorder() if job.faults is None else None
        self._batch: BatchEnv
        self._rows: SharedRows
        self._seeds: dict[int, int | None] = {}  # of the next reset, by environment
        self._options: dict[int, dict[str, Any] | None] = {}
        self._told_at = 0.0
        self._parent_pid = os.getppid()  # 1 in a container whose first process is the parent

    def main(self) -> int:
        """Build the environments, obey until told to close; the exit code."""
        job = self._job
        faults: FaultPolicy | None = self._recorder
        if job.faults is not None:
            faults = job.faults.policy(self._count)
        try:
            self._batch = make_batch_env(job.env, job.options, job.contexts, faults, job.spec)
        except FAILURES as error:
            self._send(Failed(Failure.of(error, job.first + getattr(error, "env_index", 0), "make")))
            return 1
        if job.single_thread:
            processes.limit_native_threads()
        try:
            self._serve()
        except ChannelClosed:
            raise
        except FAILURES as error:  # what the fault policy does not recover from
            self._send(Fatal(Failure.of(error, job.first + getattr(error, "env_index", 0), "step")))
            return 1
        finally:
            self._close()
        return 0

    def _serve(self) -> None:
        """Tell that the environments are built, and obey."""
        job, batch = self._job, self._batch
        for told in job.remembered:
            if (failure := answer(told, batch, job.first).failure) is not None:
                self._send(Failed(failure))
                return
        try:
            self._channel.send(Ready(batch.spec, batch.spaces, hasattr(batch, "step_envs")))
        except ChannelClosed:
            raise
        except FAILURES as error:  # a space that cannot be pickled
            self._send(Failed(Failure.of(error, job.first, "make")))
            return
        descriptor = self._channel.take_descriptor()
        shared = self._channel.take()
        assert isinstance(shared, Shared)
        self._map(descriptor, shared.spec)
        self._obey_commands()

    def _map(self, descriptor: int, spec: EnvSpec) -> None:
        """Share memory with the parent, whose `spec` says how rows lie in it."""
        job, batch = self._job, self._batch
        segment = Segment(descriptor, os.fstat(descriptor).st_size)
        self._rows = map_rows(segment, spec, job.num_envs, job.num_workers, job.keeps_final)
        segment.close()
        agents = batch.spec.agents_per_env
        mine = slice(job.first, job.first + len(job.contexts))
        rows = slice(mine.start * agents, mine.stop * agents)
        self._out, self._actions = rows_of(self._rows.steps, rows), self._rows.actions[rows]
        self._asked, self._done = self._rows.asked[mine], self._rows.done[mine]
        self._command, self._outcome = self._rows.command[mine], self._rows.outcome[mine]
        self._clocks = self._rows.clocks[job.worker]

    def _obey_commands(self) -> None:
        """Carry out what is asked for until told to close."""
        self._messages = select.poll()
        self._messages.register(self._channel, select.POLLIN)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._bell.descriptors[0], select.POLLIN)
        while True:
            wanted = self._asked.copy()  # what is asked for from now on is for the next round
            if (wanted > self._done).any():
                if not self._obey_all():  # messages that were sent before come first
                    return
                self._work(wanted)
                continue
            began = time.perf_counter_ns()
            events = poll.poll(LOOK_EVERY_MS)
            add_time(self._clocks[IDLE], 1, time.perf_counter_ns() - began)
            if not events and os.getppid() != self._parent_pid:
                return
            for descriptor, _ in events:
                if descriptor != self._channel.fileno():
                    self._bell.wait(0.0)
                elif not self._obey_all():
                    return

    def _work(self, wanted: np.ndarray) -> None:
        """Carry out what is asked for, each environment in turn unless all are to be stepped at once."""
        indices = np.flatnonzero(wanted > self._done)
        to_reset = self._command[indices] != STEP
        if to_reset.any():
            self._reset(indices[to_reset].tolist(), wanted)
        to_step = indices[~to_reset].tolist()
        if not to_step:
            pass
        elif not hasattr(self._batch, "step_envs") or (
            len(to_step) == self._batch.num_envs and not self._job.shows_progress
        ):
            self._step(to_step, wanted)
        else:
            for index in to_step:
                self._step([index], wanted)
                if time.monotonic() - self._told_at > TELL_EVERY_S:
                    self._ring()
        self._ring()

    def _step(self, indices: list[int], wanted: np.ndarray) -> None:
        began = time.perf_counter_ns()
        partial = getattr(self._batch, "step_envs", None)
        if partial is None or len(indices) == self._batch.num_envs:  # a single one as well
            infos = self._batch.step(self._actions, self._out)
        else:
            infos = partial(indices, self._actions, self._out)
        add_time(self._clocks[STEP], len(indices), time.perf_counter_ns() - began)
        self._outcome[indices] = DONE
        if infos:
            self._send_infos(infos)
        self._tell_failures()
        self._done[indices] = wanted[indices]

    def _reset(self, indices: list[int], wanted: np.ndarray) -> None:
        told_of = [index for index in indices if self._command[index] == RESET_AS_TOLD]
        while not self._seeds.keys() >= set(told_of):
            if not self._obey():
                raise Terminated
        began = time.perf_counter_ns()
        self._outcome[indices] = DONE
        if hasattr(self._batch, "reset_envs"):
            for index in indices:
                seed, options = self._seeds.pop(index, None), self._options.pop(index, None)
                self._batch.reset_envs([index], self._out, [seed], options)
                self._tell_failures()
                self._done[index] = wanted[index]
        else:
            prepare_reset_of_all(self._batch, self._seeds, self._options)
            self._batch.reset(self._out)
            self._tell_failures()
            self._done[indices] = wanted[indices]
        add_time(self._clocks[RESET], len(indices), time.perf_counter_ns() - began)

    def _send_infos(self, infos: dict[int, dict[str, Any]]) -> None:
        agents = self._batch.spec.agents_per_env
        first = self._job.first * agents
        self._outcome[[row // agents for row in infos]] = DONE_WITH_INFO
        self._send(Infos({first + row: info for row, info in reported(infos).items()}))

    def _tell_failures(self) -> None:
        if self._recorder is None or not self._recorder.failures:
            return
        for failed in self._recorder.failures:
            self._outcome[failed.env_index] = FAILED
            self._send(Failed(Failure.of(failed, self._job.first + failed.env_index, failed.phase)))
        self._recorder.failures.clear()

    def _count(self, is_bad_data: bool, cause: str) -> None:
        self._send(Counted(is_bad_data, cause))

    def _obey_all(self) -> bool:
        """Carry out the messages that have arrived; False: one of them was the last one."""
        while self._messages.poll(0):
            if not self._obey():
                return False
        return True

    def _obey(self) -> bool:
        """Carry out one message; False: it was the last one."""
        message = self._channel.take()
        if isinstance(message, Close):
            return False
        assert isinstance(message, Ask)
        if message.what == "prepare_reset":
            seeds, options = message.arguments
            self._seeds |= dict(zip(message.indices, seeds, strict=True))
            self._options |= dict.fromkeys(message.indices, options)
            return True
        if message.what == "decorrelate":
            message = message._replace(what="batch", arguments=("decorrelate", *message.arguments, self._out))
        reply = answer(message, self._batch, self._job.first)
        try:
            self._channel.send(reply)
        except ChannelClosed:
            raise
        except FAILURES as error:  # it cannot be pickled
            self._channel.send(Answer(message.request, [], Failure.of(error, self._job.first, message.what)))
        self._parent.ring()
        return True

    def _close(self) -> None:
        try:
            self._batch.close()
        except FAILURES as error:
            self._send(Failed(Failure.of(error, self._job.first, "close")))
        self._send(Closed())

    def _send(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed:
            raise
        except FAILURES as error:  # it cannot be pickled
            self._channel.send(Failed(Failure.of(error, self._job.first, "send")))

    def _ring(self) -> None:
        self._told_at = time.monotonic()
        self._parent.ring()
