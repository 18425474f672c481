"""Running a training program and watching it from outside: frames, processor time and memory of its whole process tree.

Nothing here knows which program it is. The caller gives the command, a way to read how many environment frames it has
counted, and a name for each process.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

POLL_S = 0.25
STOP_S = 15.0
STALL_S = 30.0
# A process is forked under its parent's name, and may be adopted by the driver before it has one of its own.
_UNSURE = ("starting", "helpers")
ROOT = Path(__file__).resolve().parents[1]


class MeasurementError(RuntimeError):
    """The program could not be measured. The message says why."""


class Usage(NamedTuple):
    """What one kind of process took during the measured window."""

    processes: int
    cpu_seconds: float
    cores: float  # cpu_seconds per second
    peak_mb: float  # resident memory of all processes of the kind, at the moment when the whole tree was largest


class Measurement(NamedTuple):
    """One run of a program, after its warm-up."""

    frames_per_second: float
    seconds: float  # of the measured window
    first_frame_s: float  # from the command to the first frame it counted
    usage: dict[str, Usage]  # by kind of process
    peak_mb: float  # resident memory of the whole tree

    @property
    def cores(self) -> float:
        """Cores that were kept busy on average."""
        return sum(usage.cores for usage in self.usage.values())

    def as_json(self) -> dict[str, Any]:
        """Every number."""
        kinds = {kind: usage._asdict() for kind, usage in self.usage.items()}
        return self._asdict() | {"cores": self.cores, "usage": kinds}


def let_children_hear_hangups() -> None:
    """Under nohup, which has SIGHUP ignored, stay alive on SIGHUP, and start processes that do not ignore it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # what is handled, not ignored, has its default after an exec


class ProcessTree:
    """Processor time and memory of a process and everything below it, by kind, over processes that come and go."""

    def __init__(self, root: int, kind_of: Callable[[psutil.Process], str]) -> None:
        """`kind_of` names a process; asked again as long as it answers `starting` or `helpers`."""
        self._root = psutil.Process(root)
        self._kind_of = kind_of
        self._members: dict[int, psutil.Process] = {root: self._root}
        self._kinds: dict[int, str] = {}
        self._cpu_s: dict[int, float] = {}
        self.peak_mb = 0.0
        self.peak_by_kind: dict[str, float] = {}

    def look(self) -> None:
        """Take one look at every process there is."""
        by_kind: dict[str, float] = {}
        try:
            members = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for member in members:
            self._members[member.pid] = member
            try:
                with member.oneshot():
                    times, memory_mb = member.cpu_times(), member.memory_info().rss / 1e6
                    kind = self._kinds.get(member.pid, "starting")
                    kind = self._kind_of(member) if kind in _UNSURE else kind
            except psutil.NoSuchProcess:
                continue  # what it had used is known from the look before
            self._kinds[member.pid] = kind
            self._cpu_s[member.pid] = times.user + times.system
            by_kind[kind] = by_kind.get(kind, 0.0) + memory_mb
        if sum(by_kind.values()) > self.peak_mb:
            self.peak_mb, self.peak_by_kind = sum(by_kind.values()), by_kind

    def members(self) -> list[psutil.Process]:
        """Every process ever seen, whether it lives or not."""
        return list(self._members.values())

    def cpu_seconds(self) -> dict[int, float]:
        """pid -> processor time, of every process ever seen."""
        return dict(self._cpu_s)

    def usage(self, before: Mapping[int, float], seconds: float) -> dict[str, Usage]:
        """What each kind took since `before`."""
        taken: dict[str, list[float]] = {}
        for pid, cpu_s in self._cpu_s.items():
            taken.setdefault(self._kinds.get(pid, "starting"), []).append(cpu_s - before.get(pid, 0.0))
        return {
            kind: Usage(len(each), sum(each), sum(each) / seconds, self.peak_by_kind.get(kind, 0.0))
            for kind, each in sorted(taken.items())
        }


def measure(
    command: Sequence[str],
    log: Path,
    frames: Callable[[], float],
    kind_of: Callable[[psutil.Process], str],
    *,
    warm_up_s: float,
    seconds: float,
    start_limit_s: float = 120.0,
    cwd: Path = ROOT,
) -> Measurement:
    """Start a training program, let it warm up, watch it, and end it with Ctrl+C.

    Args:
        command: the program; stopped when the window is over.
        log: where its output goes.
        frames: environment frames it has counted so far.
        kind_of: names one of its processes, see `ProcessTree`.
        warm_up_s: seconds after the first frame that do not count.
        seconds: length of the window.
        start_limit_s: how long the first frame may take.
        cwd: where it runs.

    Raises:
        MeasurementError: it ended by itself, or counted no frame in time; the message holds the end of its output.
    """
    began = time.monotonic()
    with started(command, log, kind_of, cwd) as (process, tree):
        _watch(process, tree, lambda: frames() > 0, began + start_limit_s, log)
        first_frame_s = time.monotonic() - began
        if not frames():
            raise MeasurementError(f"no frame within {start_limit_s:.0f} s; its output ends: {_tail(log)}")
        _watch(process, tree, lambda: False, time.monotonic() + warm_up_s, log)
        window_began, cpu, frames_before = _next_frames(process, tree, frames, log)
        _watch(process, tree, lambda: False, window_began + seconds, log)
        window_ended, _, frames_after = _next_frames(process, tree, frames, log)
        window_s = window_ended - window_began
        usage = tree.usage(cpu, window_s)
        return Measurement((frames_after - frames_before) / window_s, window_s, first_frame_s, usage, tree.peak_mb)


@contextmanager
def started(
    command: Sequence[str], log: Path, kind_of: Callable[[psutil.Process], str] = lambda _: "all", cwd: Path = ROOT
) -> Iterator[tuple[subprocess.Popen[bytes], ProcessTree]]:
    """A program that runs until the block ends, however it ends; then nothing of it is left.

    SIGTERM ends the block as well: a benchmark that is killed must not leave the next one half of the machine.
    """
    before = signal.signal(signal.SIGTERM, _raise_exit)
    try:
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=output, start_new_session=True)
        tree = ProcessTree(process.pid, kind_of)
        try:
            yield process, tree
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
            _stop(process, tree)
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_exit(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _next_frames(
    process: subprocess.Popen[bytes], tree: ProcessTree, frames: Callable[[], float], log: Path
) -> tuple[float, dict[int, float], float]:
    """The moment at which the count of frames changes next: programs tell it every few seconds only."""
    before = frames()
    _watch(process, tree, lambda: frames() != before, time.monotonic() + STALL_S, log, poll_s=0.02)
    now, count = time.monotonic(), frames()
    if count == before:
        raise MeasurementError(f"no further frame for {STALL_S:.0f} s; its output ends: {_tail(log)}")
    tree.look()
    return now, tree.cpu_seconds(), count


def _watch(
    process: subprocess.Popen[bytes],
    tree: ProcessTree,
    is_over: Callable[[], bool],
    deadline: float,
    log: Path,
    poll_s: float = POLL_S,
) -> None:
    next_look = 0.0
    while time.monotonic() < deadline and not is_over():
        if process.poll() is not None:
            raise MeasurementError(f"the program ended with {process.returncode}; its output ends: {_tail(log)}")
        if time.monotonic() >= next_look:
            tree.look()
            next_look = time.monotonic() + POLL_S
        time.sleep(poll_s)


def _stop(process: subprocess.Popen[bytes], tree: ProcessTree) -> None:
    """Ctrl+C, and no survivors: the next measurement must have the machine to itself."""
    tree.look()
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    # All that were ever seen: those whose parent ended before them are no longer below the program.
    family = [member for member in tree.members() if member.pid != process.pid]
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue  # it has ended by itself, as it should
    psutil.wait_procs(family, timeout=STOP_S)


def _tail(log: Path, lines: int = 12) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def last_line(log: Path) -> str:
    """The last line with text that a program printed."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next(filter(None, reversed(lines)), "it told nothing")


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Of a benchmark's own options. None may be shortened: what begins like one may be an option of a training run."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def refuse_output(out: Path | None) -> None:
    """Refuse a file that could not be written after hours of work.

    Raises:
        ValueError: it is a folder, or there is no folder to write it into.
    """
    if out is None:
        return
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out={out}: there is no folder {out.parent}")
    if out.is_dir():
        raise ValueError(f"--out={out} is a folder; name a file")


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for the eye, and the same for a page."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    print(markdown(columns, rows))


def mean_and_range(values: Sequence[float]) -> str:
    """The mean, and the smallest and the largest."""
    return f"{statistics.mean(values):.4g} ({min(values):.4g} .. {max(values):.4g})"


def tell(line: str) -> None:
    """Print a line at once, so that a long measurement shows its progress."""
    print(line, flush=True)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a page."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *rows])
