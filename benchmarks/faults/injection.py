"""Fault injection: a plan of signals from a seed, and their delivery to the processes of workers.

kill    SIGKILL
stop    SIGSTOP, and SIGCONT a while later
freeze  SIGSTOP for good: the run has to notice by itself
term    SIGTERM, which a worker has to survive: ending workers is the driver's business
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psutil

from benchmarks.faults.events import Hit, kind_of

SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "freeze": signal.SIGSTOP,
    "term": signal.SIGTERM,
}


class Fault(NamedTuple):
    """One signal that is going to be sent."""

    at_s: float  # after the first moment of the disturbance
    kind: str
    signal: str
    pick: float  # in [0, 1): which of those of its kind that live then


class Stopped(NamedTuple):
    """A stopped process that has to be continued."""

    process: psutil.Process
    until: float  # monotonic clock


def plan(seed: int, count: int, interval_s: float, kinds: Sequence[str], signals: Sequence[str]) -> list[Fault]:
    """Faults at random moments, `interval_s` apart on average; a name that is listed twice is drawn twice as often."""
    rng, faults, at_s = random.Random(seed), [], 0.0
    for _ in range(count):
        at_s += rng.expovariate(1.0 / interval_s)
        faults.append(Fault(at_s, rng.choice(kinds), rng.choice(signals), rng.random()))
    return faults


def workers_below(root: psutil.Process) -> dict[str, psutil.Process]:
    """Title -> process, for every worker that runs below a driver; a process that has ended counts no more."""
    found = {}
    for process in root.children(recursive=True):
        try:
            title = process.name()
            # Until it has set a title of its own a worker bears the forkserver's; those that ended bear it on.
            if kind_of(title) and process.status() != psutil.STATUS_ZOMBIE:
                found[title] = process
        except psutil.NoSuchProcess:
            continue  # it has ended since it was listed
    return found


class FaultInjector:
    """Carries a plan out: injects the faults that are due, and continues processes that were stopped long enough."""

    def __init__(self, faults: Sequence[Fault], stop_s: float) -> None:
        """The clock starts with the first call. `stop_s`: how long a stopped process stands still."""
        self._waiting = list(faults)
        self._stop_s = stop_s
        self._began: float | None = None
        self._stopped: list[Stopped] = []
        self._killed: set[int] = set()
        self.hits: list[Hit] = []

    @property
    def is_done(self) -> bool:
        """Every signal was sent, and no process is stopped any more."""
        return not self._waiting and not self._stopped

    @property
    def waiting(self) -> int:
        """Faults that are still to come."""
        return len(self._waiting)

    def give_up(self) -> None:
        """Inject no more faults; stopped processes go on now."""
        self._waiting = []
        self._stopped = [stopped._replace(until=0.0) for stopped in self._stopped]

    def act(self, root: psutil.Process) -> None:
        """Do what is due."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        self._continue_stopped(now)
        due = [fault for fault in self._waiting if fault.at_s <= now - self._began]
        if not due:
            return
        living = workers_below(root)
        for fault in due:
            # Where no worker of that kind lives just now, the fault waits for the next one.
            if self._inject(fault, living):
                self._waiting.remove(fault)

    def _inject(self, fault: Fault, living: Mapping[str, psutil.Process]) -> bool:
        # Neither stopped processes nor killed ones, which may be listed for a moment more.
        still = {stopped.process.pid for stopped in self._stopped} | self._killed
        titles = sorted(title for title, p in living.items() if kind_of(title) == fault.kind and p.pid not in still)
        if not titles:
            return False
        title = titles[int(fault.pick * len(titles))]
        # Before the signal: the run may tell of the loss sooner than we come back.
        hit = Hit(time.time(), title, fault.signal)
        try:
            living[title].send_signal(SIGNALS[fault.signal])
        except psutil.NoSuchProcess:
            return False
        self.hits.append(hit)
        if fault.signal == "stop":
            self._stopped.append(Stopped(living[title], time.monotonic() + self._stop_s))
        elif fault.signal == "kill":
            self._killed.add(living[title].pid)
        return True

    def _continue_stopped(self, now: float) -> None:
        for stopped in [stopped for stopped in self._stopped if stopped.until <= now]:
            self._stopped.remove(stopped)
            try:
                stopped.process.send_signal(signal.SIGCONT)  # psutil looks whether the pid is still that process
            except psutil.NoSuchProcess:
                continue  # the run has replaced it meanwhile
