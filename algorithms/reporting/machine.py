"""How busy the machine is: processor time of this run, and of everything on the cores that it may use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from appo.utils.processes import usable_cores

# Listing all processes of a machine takes milliseconds, asking the ten of a run for their times one.
LIST_EVERY_S = 60.0
_NOT_BUSY = {"idle", "iowait", "guest", "guest_nice"}  # guests are part of user and nice


class ProcessorTime(NamedTuple):
    """Seconds until now; only differences mean something."""

    clock_s: float
    run_s: float  # of the process and all below it, over all cores
    waited_s: float  # in which the main threads of the run could have computed and had no core; 0 outside Linux
    busy_s: float  # of the cores that this process may use, by whatever, other virtual machines included


class Machine:
    """Looks at the processor time of a process, of all below it, and of this process's cores."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid`: of the process; None: this one."""
        self._root = psutil.Process(pid)
        self._family: list[psutil.Process] = []
        self._list_at = 0.0
        self._cores = usable_cores()  # now: a run may keep itself to some of them later

    def look(self) -> ProcessorTime:
        """The times now. What a process uses that ends before it was seen is counted when its parent has reaped it."""
        now = time.monotonic()
        if now >= self._list_at:
            self._list_at = now + LIST_EVERY_S
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                self._family = [self._root, *self._root.children(recursive=True)]
        ran_s, waited_s = (sum(map(of_one, self._family)) for of_one in (_seconds_of, _waited_of))
        return ProcessorTime(now, ran_s, waited_s, busy_seconds(self._cores))

    def list_again(self) -> None:
        """Processes were started or have ended."""
        self._list_at = 0.0


def busy_seconds(cores: Sequence[int]) -> float:
    """Seconds that these cores have worked so far, for whatever, added up."""
    mine = [times._asdict() for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
    return sum(seconds for times in mine for name, seconds in times.items() if name not in _NOT_BUSY)


def _seconds_of(process: psutil.Process) -> float:
    """Of a process, and of those of its children that it has reaped; 0 where it is gone: its parent has its time."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def _waited_of(process: psutil.Process) -> float:
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # not Linux, a kernel without these numbers, or it is gone
        return 0.0
