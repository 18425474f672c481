"""A run under observation: its `status.json` ten times a second, its processes once a second, and whether it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.run.config import STATUS_FILE
from appo.utils.files import read_json_lines
from benchmarks.faults.events import Look, Sample, sample_of
from benchmarks.measuring import MeasurementError

STATUS_POLL_S = 0.1
PROCESSES_POLL_S = 1.0
EVENTS_FILE = "events.jsonl"
FORKSERVER, TORCH_SERVER = "forkserver", "torch server"
_SHARED_MEMORY = Path("/dev/shm")


class AtRest(NamedTuple):
    """What a run holds without faults."""

    processes: Counter[str]  # by title
    descriptors: Counter[str]  # open files, by title


class Watch:
    """Looks at one run again and again, and keeps what it saw."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], log: Path, hang_s: float) -> None:
        """`hang_s`: how long no frame may be counted once there was one."""
        self.root = psutil.Process(process.pid)
        self.samples: list[Sample] = []
        self.status: dict[str, Any] = {}
        self.looks: dict[tuple[int, str], list[Look]] = {}  # by pid and title
        self._folder, self._process, self._log = folder, process, log
        self._hang_s = hang_s
        self._began = time.time()
        self._newest_frame = time.monotonic()
        self._next_processes = 0.0

    def until(self, is_over: Callable[[], bool], seconds: float, act: Callable[[], None] = lambda: None) -> bool:
        """Watch until something holds, or for so many seconds at most; whether it held. `act` is called every time.

        Raises:
            MeasurementError: the run ended, or counts no frames any more.
        """
        deadline = time.monotonic() + seconds
        while not is_over():
            if time.monotonic() >= deadline:
                return False
            act()
            self._look()
            time.sleep(STATUS_POLL_S)
        return True

    def trains(self) -> bool:
        """Frames were counted and weights changed since this start."""
        if not self.has_counted():
            return False
        before, now = self.samples[0].counters, self.samples[-1].counters
        return all(now[name] > before[name] for name in now if name.endswith("train_steps"))

    def has_counted(self) -> bool:
        """Frames were counted since this start."""
        return bool(self.samples) and self.samples[-1].env_frames > self.samples[0].env_frames

    def events(self) -> list[dict[str, Any]]:
        """Everything that the run told of its workers."""
        path = self._folder / EVENTS_FILE
        return list(read_json_lines(path)) if path.exists() else []

    def at_rest(self, seconds: float) -> AtRest:
        """How many processes there are by title, and how many files each has open; the least of several looks."""
        processes: list[Counter[str]] = []
        descriptors: list[Counter[str]] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            family = dict(self.family())
            # A torch server is there once a policy worker or a learner was lost, and the driver holds a pipe to it.
            servers = [process for process, title in family.items() if title == TORCH_SERVER][:1]
            for server in servers:
                del family[server]
            processes.append(Counter(family.values()))
            # Only of processes that are not replaced: a successor of a worker is another process.
            lasting = {title: p for p, title in family.items() if processes[-1][title] == 1}
            own = {self.root: len(servers)}
            descriptors.append(Counter({title: _held(one) - own.get(one, 0) for title, one in lasting.items()}))
            self.until(lambda: False, PROCESSES_POLL_S / 2)
        return AtRest(_least(processes), _least(descriptors))

    def family(self) -> Iterable[tuple[psutil.Process, str]]:
        """Every process of the run with its title, those that ended and were not reaped too."""
        try:
            members = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for member in members:
            try:
                ended = " (ended)" if member.status() == psutil.STATUS_ZOMBIE else ""
                yield member, _title(member) + ended
            except psutil.NoSuchProcess:
                continue  # it has ended since it was listed

    def _look(self) -> None:
        if self._process.poll() is not None:
            raise MeasurementError(f"the run ended with {self._process.returncode}; {last_line(self._log)}")
        now = time.monotonic()
        path = self._folder / STATUS_FILE
        if path.exists() and path.stat().st_mtime >= self._began:  # not one of an earlier start
            self.status = json.loads(path.read_text())
            sample = sample_of(self.status)
            if not self.samples or sample.env_frames > self.samples[-1].env_frames:
                self._newest_frame = now
            if not self.samples or sample != self.samples[-1]:
                self.samples.append(sample)
        if self.samples and now - self._newest_frame > self._hang_s:
            raise MeasurementError(f"the run hangs: no frame for {self._hang_s:g} s; {last_line(self._log)}")
        if now >= self._next_processes:
            self._next_processes = now + PROCESSES_POLL_S
            self._look_at_processes()

    def _look_at_processes(self) -> None:
        now = time.time()
        for process, title in self.family():
            try:
                memory = process.memory_info()
            except psutil.Error:
                continue  # it has ended, and is looked at no more
            own_mb = (memory.rss - getattr(memory, "shared", 0)) / 1e6
            self.looks.setdefault((process.pid, title), []).append(Look(now, own_mb, _descriptors(process)))


def end(process: subprocess.Popen[bytes], act: Callable[[], None], limit_s: float) -> tuple[int | None, float]:
    """Do what ends a driver and wait: its exit code, None when it does not end, and the seconds it took."""
    began = time.monotonic()
    act()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - began
    return process.returncode, time.monotonic() - began


def survivors(session: int, seconds: float) -> list[str]:
    """Processes that were started below a program and still run so much later, whatever their parent is by now.

    Args:
        session: pid of the program, which was started as leader of a session of its own; children stay in it.
        seconds: how long they may take to end.
    """
    deadline = time.monotonic() + seconds
    while (left := _of_session(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    named = []
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
            named.append(f"{_title(process)} (process {process.pid})")
    return named


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return {path.name for path in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.exists() else set()


def abandoned_shared_memory(before: set[str]) -> set[str]:
    """Names in /dev/shm that were not there before, and that no living process has mapped."""
    if not (new := shared_memory() - before):
        return new
    maps = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            maps.append((process / "maps").read_text(errors="replace"))
    return {name for name in new if not any(f"{_SHARED_MEMORY}/{name}\n" in text for text in maps)}


def last_line(log: Path) -> str:
    """How a program's output ends."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f"its output ends: {lines[-1]}" if lines else "it printed nothing"


def session_members(session: int) -> list[int]:
    """Process ids of those that run in a session."""
    return [process.pid for process in _of_session(session)]


def _of_session(session: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError, PermissionError):
            continue  # it has ended, or belongs to another user, and then is none of ours
    return found


def helper(process: psutil.Process) -> str:
    """What a helper of a run is for; empty for all others."""
    words = " ".join(process.cmdline())
    if FORKSERVER in words and "'torch'" in words:
        return TORCH_SERVER
    return next((name for name in ("guardian", FORKSERVER, "resource_tracker") if name in words), "")


def _title(process: psutil.Process) -> str:
    """A worker's own title; of Python's helpers what they are for."""
    return helper(process) or process.name()


def _descriptors(process: psutil.Process) -> int:
    try:
        return process.num_fds()
    except psutil.Error:
        return 0


def _held(process: psutil.Process) -> int:
    """Open files without the one that is opened with the first loss, to tell of it, and then stays open.

    Left out too: the pipes by which a forkserver tells of its children; there are more of them once it has replaced
    children of other processes.
    """
    try:
        named = [entry.path for entry in process.open_files()]
        children = len(process.children()) if _title(process) == FORKSERVER else 0
        return process.num_fds() - sum(path.endswith(EVENTS_FILE) for path in named) - children
    except psutil.Error:
        return 0


def _least(looks: list[Counter[str]]) -> Counter[str]:
    """The smallest count of each title that was there every time: what opens and closes at once is no leak."""
    return Counter({title: min(look[title] for look in looks) for title in set().union(*looks)}) if looks else Counter()
