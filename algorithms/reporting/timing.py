"""Where the time of a run goes: one tree for each kind of process, added up over all of its processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.counters import IN_PARALLEL, PART_OF, Timer
from appo.algorithms.memory.layout import SharedArrays

TIMING_FILE = "timing.json"  # in an experiment's folder


class TimingNode(NamedTuple):
    """A stage of the work of some processes, with its parts."""

    name: str
    times: int  # how often it was booked; of a kind of process how many processes there are
    total_s: float  # over all processes
    parallel: bool  # several processes or threads do this at one time: it may take longer than what it is a part of
    parts: tuple[TimingNode, ...] = ()

    @property
    def self_s(self) -> float:
        """Seconds that belong to none of the parts."""
        return max(0.0, self.total_s - sum(part.total_s for part in self.parts if not part.parallel))

    def as_json(self) -> dict[str, Any]:
        """What `timing.json` holds of it."""
        numbers = {"name": self.name, "times": self.times, "total_s": round(self.total_s, 6)}
        numbers |= {"self_s": round(self.self_s, 6), "parallel": self.parallel}
        return numbers | ({"parts": [part.as_json() for part in self.parts]} if self.parts else {})

    @classmethod
    def from_json(cls, numbers: Mapping[str, Any]) -> TimingNode:
        """The node that `as_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        parts = tuple(cls.from_json(part) for part in numbers.get("parts", ()))
        name, parallel = str(numbers["name"]), bool(numbers["parallel"])
        return cls(name, int(numbers["times"]), float(numbers["total_s"]), parallel, parts)


def read_tree(path: Path) -> tuple[TimingNode, ...]:
    """The nodes of a `timing.json`, one for each kind of process.

    Raises:
        OSError: it cannot be read.
        KeyError, TypeError, ValueError: it is not what a run writes.
    """
    return tuple(TimingNode.from_json(kind) for kind in json.loads(path.read_text(encoding="utf-8"))["processes"])


class StageTimes:
    """Adds up what all processes have booked since the start, those that were replaced included."""

    def __init__(self, arrays: SharedArrays, kinds: Mapping[str, slice]) -> None:
        """`kinds`: beginning of the names of a kind's timers -> the places of its workers in the shared arrays."""
        self._arrays, self._kinds = arrays, kinds
        self._seconds_seen, self._laps_seen = arrays["timers"].copy(), arrays["laps"].copy()
        self.seconds = np.zeros_like(self._seconds_seen)
        """[N, timers] by place in the shared arrays."""
        self._laps = np.zeros_like(self._laps_seen)

    def look(self) -> None:
        """Add what was booked since the last call; what a process booked between that and its end is lost."""
        laps = self._arrays["laps"].copy()  # first, see `WorkerCounters.restart_clock`
        seconds = self._arrays["timers"].copy()
        began_anew = (laps < self._laps_seen).any(axis=1, keepdims=True)
        self.seconds += (seconds - np.where(began_anew, 0.0, self._seconds_seen)).clip(min=0.0)
        self._laps += laps - np.where(began_anew, 0, self._laps_seen)
        self._seconds_seen, self._laps_seen = seconds, laps

    def shares(self, seconds: NDArray[np.float64]) -> dict[str, float]:
        """The `stats/` tags of some seconds [N, timers]: shares of the time of all processes of a kind."""
        tags = {}
        for kind, places in self._kinds.items():
            of_kind = seconds[places].sum(axis=0)
            timers = [timer for timer in Timer if timer.name.startswith(kind)]
            total = float(sum(of_kind[timer] for timer in timers if timer not in PART_OF))
            for timer in timers:
                tags[f"stats/{timer.name.lower()}"] = float(of_kind[timer]) / total if total else 0.0
        return tags

    def tree(self) -> tuple[TimingNode, ...]:
        """A node for each kind of process that there is, with its stages and their parts."""
        return tuple(self._of_kind(kind, places) for kind, places in self._kinds.items())

    def _of_kind(self, kind: str, places: slice) -> TimingNode:
        seconds, laps = self.seconds[places].sum(axis=0), self._laps[places].sum(axis=0)

        def node(timer: Timer) -> TimingNode:
            name = timer.name.removeprefix(f"{kind}_").lower()
            parts = tuple(node(part) for part, whole in PART_OF.items() if whole is timer and laps[part])
            return TimingNode(name, int(laps[timer]), float(seconds[timer]), timer in IN_PARALLEL, parts)

        top = [timer for timer in Timer if timer.name.startswith(kind) and PART_OF.get(timer) is None]
        parts = tuple(node(timer) for timer in top if laps[timer])
        total = sum(part.total_s for part in parts if not part.parallel)
        processes = places.stop - places.start
        return TimingNode(kind.lower(), processes, total, processes > 1, parts)


class OwnTimes:
    """The stages of the process that calls this, which follow each other."""

    def __init__(self, name: str) -> None:
        """Of a kind of process of which there is one."""
        self._name = name
        self._stages: dict[str, tuple[int, float]] = {}
        self._since = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under a stage."""
        now = time.perf_counter()
        times, seconds = self._stages.get(stage, (0, 0.0))
        self._stages[stage] = times + 1, seconds + now - self._since
        self._since = now

    def node(self) -> TimingNode:
        """What was booked since the start."""
        parts = tuple(TimingNode(stage, *booked, parallel=False) for stage, booked in self._stages.items())
        return TimingNode(self._name, 1, sum(part.total_s for part in parts), False, parts)


def in_lines(tree: tuple[TimingNode, ...]) -> Iterator[str]:
    """The tree in words: seconds, share of the kind's time, how often, and seconds outside of all parts."""
    for kind in tree:
        if not kind.total_s:
            continue
        yield f"{kind.times} x {kind.name}: {kind.total_s:.1f} s"
        for part in kind.parts:
            yield from _lines_of(part, kind.total_s, 1)


def _lines_of(node: TimingNode, whole_s: float, depth: int) -> Iterator[str]:
    name = f"{'  ' * depth}{node.name}"
    own = f"  {node.self_s:8.1f} s itself" if node.parts else ""
    beside = "  in parallel" if node.parallel else ""
    yield f"{name:<26}{node.total_s:9.1f} s  {node.total_s / whole_s:6.1%}  {node.times:>10} x{own}{beside}"
    for part in node.parts:
        yield from _lines_of(part, whole_s, depth + 1)


def in_one_line(kind: TimingNode) -> str:
    """The stages of a kind of process and their shares, the longest first."""
    stages = sorted((part for part in kind.parts if not part.parallel), key=lambda part: -part.total_s)
    shares = ", ".join(f"{part.name} {part.total_s / kind.total_s:.0%}" for part in stages)
    return f"{kind.times} x {kind.name}: {shares}"
