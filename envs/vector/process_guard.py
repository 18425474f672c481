"""Nothing that processes of environments start outlives its owner: marks, signals, and a guardian per program."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from appo.utils import guardian, processes
from appo.utils.signals import withheld_from_new_processes

KILLED_S = 1.0  # for the system to clear up behind SIGKILL


def kill_marked(mark: str) -> None:
    """Kill every process that bears a mark, and all below them."""
    deadline = time.monotonic() + KILLED_S
    while (pids := guardian.run_processes(-1, mark)) and time.monotonic() < deadline:
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.005)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, if it is still there."""
    if pid > 0:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


@contextlib.contextmanager
def undisturbed() -> Any:
    """Signals that arrive while a process is started are delivered afterwards, to this process alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with withheld_from_new_processes():
        yield


def start_process(process: BaseProcess) -> None:
    """Start a process that lives as long as this one, whichever thread asks for it.

    What Linux calls the parent, and tells children of when it ends, is the thread that started them.
    """
    if threading.current_thread() is threading.main_thread():
        with withheld_from_new_processes():
            process.start()
    else:
        _lasting_thread_of(os.getpid()).call(process.start)


class _LastingThread:
    """Does what it is asked to for as long as this process lives."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="process starter", daemon=True).start()

    def call(self, function: Callable[[], None]) -> None:
        """Call a function there, and wait for it; what it raises is raised here."""
        result: Future[None] = Future()
        self._asked.put((function, result))
        result.result()

    def _work(self) -> None:
        while True:
            function, result = self._asked.get()
            try:
                function()
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(None)


@functools.cache
def _lasting_thread_of(pid: int) -> _LastingThread:
    """The process starter of this process, made at the first call; threads do not follow into a forked child."""
    del pid
    return _LastingThread()


class _Guardian(NamedTuple):
    """Kills what environments have started should this process be killed; ends with it."""

    process: subprocess.Popen[bytes]
    mark: str


@functools.cache
def _guardian_of(pid: int) -> _Guardian:
    """That of this process, which is started when it is first needed; a forked child has one of its own."""
    mark = f"appo-envs-{pid}-{secrets.token_hex(4)}"
    command = [sys.executable, "-I", "-S", guardian.__file__, f"/nonexistent/{mark}"]
    with undisturbed():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    # It kills when no process holds the other end any more; a forked child might hold it longer than this one lives.
    os.register_at_fork(after_in_child=process.stdin.close)
    return _Guardian(process, mark)


def guarded_mark() -> str:
    """The mark of all that is killed when this process ends: of its run, or its own."""
    if mark := os.environ.get(processes.MARK_VARIABLE):
        return mark
    if _guardian_of(os.getpid()).process.poll() is not None:
        _guardian_of.cache_clear()
    return _guardian_of(os.getpid()).mark
