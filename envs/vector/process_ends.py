"""Processes of environments are ended: asked to, then with SIGTERM, then with SIGKILL, and all that they started."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from appo.envs.vector.process_guard import KILLED_S, kill_marked, send_signal
from appo.envs.vector.process_handle import ProcessHandle
from appo.envs.vector.talk import Close

TERMINATE_S = 0.5  # from SIGTERM to SIGKILL


class Ends(NamedTuple):
    """Which processes ended how."""

    closed: list[ProcessHandle]
    terminated: list[ProcessHandle]
    killed: list[ProcessHandle]


def end_processes(
    living: Sequence[ProcessHandle], mark: str, timeout_s: float, receive: Callable[[ProcessHandle], None]
) -> Ends:
    """End processes, however they are.

    Args:
        living: those that have not ended.
        mark: of whatever these, and those that have ended before, have started.
        timeout_s: seconds until those that do not end are sent signals.
        receive: takes the messages of one; called while it is waited for.
    """
    deadline = time.monotonic() + timeout_s
    closed: list[ProcessHandle] = []
    terminated: list[ProcessHandle] = []
    rest = list(living)
    try:
        for worker in living:
            if worker.is_ready:
                worker.post(Close())
            else:
                send_signal(worker.pid, signal.SIGTERM)
        closed = _await_ends(living, deadline, receive)
        rest = [worker for worker in living if worker not in closed]
        for worker in rest:
            send_signal(worker.pid, signal.SIGTERM)
        terminated = _await_ends(rest, time.monotonic() + TERMINATE_S, receive) if rest else []
        rest = [worker for worker in rest if worker not in terminated]
    finally:  # also where Ctrl+C came between
        for worker in rest:
            send_signal(worker.pid, signal.SIGKILL)
        kill_marked(mark)
        for worker in rest:
            worker.process.join(KILLED_S)
    return Ends(closed, terminated, rest)


def _await_ends(
    workers: Sequence[ProcessHandle], deadline: float, receive: Callable[[ProcessHandle], None]
) -> list[ProcessHandle]:
    """Let processes end until then; those that have."""
    left = list(workers)
    while left:
        has_ended = {worker: worker.is_gone for worker in left}
        for worker in left:
            receive(worker)  # after the look, so that nothing it said before it ended is missed
        left = [worker for worker in left if not has_ended[worker]]
        remaining = deadline - time.monotonic()
        if not left or remaining <= 0:
            break
        time.sleep(min(0.005, remaining))  # what has ended would wake a selector again and again
    return [worker for worker in workers if worker not in left]
