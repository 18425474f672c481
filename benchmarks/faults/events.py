"""What a run reported under faults, read and summed: losses and recoveries, counters, standstills, memory.

Pure: recorded lines of `events.jsonl`, samples of `status.json` and looks at processes in, numbers out.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

KINDS = ("actor", "policy", "learner")
ITSELF = "itself"  # how a worker was lost without a signal: a failpoint, or an error of its own
# A loss is told after the fault; clocks of two processes may differ by their resolution.
CLOCK_S = 0.05
# A loss answers no fault that is older than this: a process that was stopped goes on, and may die of something else.
ANSWER_S = 60.0
# A memory trend is judged after this much of a process's life, and over at least that much.
SLOPE_WARM_UP_S, SLOPE_LEAST_S = 120.0, 600.0
_TITLE = re.compile(rf"({'|'.join(KINDS)})-\d+(-\d+)?")


class Hit(NamedTuple):
    """A signal that was sent to a worker."""

    time: float  # wall clock
    worker: str
    signal: str


class Loss(NamedTuple):
    """A worker that was lost, and how soon another did its work."""

    worker: str
    how: str  # the signal that was sent to it, or `ITSELF`
    cause: str  # as the run tells it
    fault_time: float  # wall clock, when the signal was sent; without a signal: when the run noticed
    ready_s: float | None = None  # since `fault_time`; None: never, or lost again before
    working_s: float | None = None

    @property
    def kind(self) -> str:
        """Which kind of worker."""
        return kind_of(self.worker)


class Sample(NamedTuple):
    """One look at `status.json`."""

    time: float  # wall clock, the run's own
    env_frames: int
    counters: dict[str, float]  # everything that must never go back, env_frames among it
    mean_return: float = math.nan  # of the last episodes of the worst policy


class Look(NamedTuple):
    """One look at one process."""

    time: float
    own_mb: float  # resident memory that it shares with no other process
    descriptors: int


def kind_of(title: str) -> str:
    """Kind of the worker with this title; empty for any other process."""
    match = _TITLE.fullmatch(title)
    return match.group(1) if match else ""


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def losses(events: Iterable[Mapping[str, Any]], hits: Iterable[Hit] = ()) -> list[Loss]:
    """Every loss that the run told of, in order, each with the fault that it answers."""
    unanswered: dict[str, list[Hit]] = {}
    for hit in sorted(hits):
        unanswered.setdefault(hit.worker, []).append(hit)
    found: list[Loss] = []
    newest: dict[str, int] = {}  # worker -> place of its newest loss
    for event in events:
        worker, what, time = event.get("worker", ""), event["event"], event["time"]
        if what == "lost":
            waiting = unanswered.get(worker, [])
            # Without the clocks' difference first: a successor may have got a signal within it.
            for limit in (time, time + CLOCK_S):
                earlier = [hit for hit in waiting if hit.time <= limit]
                answered = _deadliest([hit for hit in earlier if hit.time >= time - ANSWER_S])
                if answered:
                    break
            unanswered[worker] = waiting[len(earlier) :]
            how, fault_time = (answered.signal, answered.time) if answered else (ITSELF, time)
            newest[worker] = len(found)
            found.append(Loss(worker, how, event.get("cause", ""), fault_time))
        elif worker in newest and what in ("ready", "working"):
            place = newest[worker]
            if getattr(found[place], f"{what}_s") is None:
                found[place] = found[place]._replace(**{f"{what}_s": time - found[place].fault_time})
    return found


def _deadliest(hits: Sequence[Hit]) -> Hit | None:
    """The one that a loss answers: a killing signal if there was one, and the last of those."""
    deadly = [hit for hit in hits if hit.signal in ("kill", "freeze")] or [hit for hit in hits if hit.signal == "stop"]
    return deadly[-1] if deadly else None


def not_back(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Workers that were lost and have done nothing since; those that the run gave up on purpose are left out."""
    missing: set[str] = set()
    for event in events:
        worker = event.get("worker", "")
        if event["event"] == "lost":
            missing.add(worker)
        elif event["event"] in ("working", "quarantined"):
            missing.discard(worker)
    return sorted(missing)


def sample_of(status: Mapping[str, Any]) -> Sample:
    """What has to be kept of a `status.json`."""
    counters = {"env_frames": status["env_frames"], "train_seconds": status["train_seconds"]}
    for number, policy in enumerate(status["policies"]):
        counters |= {f"policy {number} {name}": policy[name] for name in ("env_frames", "train_steps", "episodes")}
    returns = [policy.get("avg_reward") for policy in status["policies"]]
    worst = math.nan if None in returns else min(returns)
    return Sample(status["time"], int(status["env_frames"]), counters, worst)


def backwards(samples: Sequence[Sample]) -> list[str]:
    """Counters that went back, in words."""
    return [
        f"{name} went from {before.counters[name]:g} to {after.counters[name]:g}"
        for before, after in itertools.pairwise(samples)
        for name in after.counters
        if name in before.counters and after.counters[name] < before.counters[name]
    ]


def between(samples: Sequence[Sample], began: float, ended: float) -> list[Sample]:
    """The samples of a time, by wall clock."""
    return [sample for sample in samples if began <= sample.time <= ended]


def frames_per_second(samples: Sequence[Sample]) -> float:
    """From the first sample to the last; nan when there are not two."""
    if len(samples) < 2 or samples[-1].time <= samples[0].time:
        return math.nan
    return (samples[-1].env_frames - samples[0].env_frames) / (samples[-1].time - samples[0].time)


def frames_at(samples: Iterable[Sample], bar: float, episodes: int) -> int | None:
    """How many frames had been counted when the mean of so many episodes was at the bar first; None: it never was."""
    for sample in samples:
        played = min(count for name, count in sample.counters.items() if name.endswith("episodes"))
        if played >= episodes and sample.mean_return >= bar:
            return sample.env_frames
    return None


def standstill(samples: Sequence[Sample], counter: str) -> float:
    """The longest time in which a counter did not grow, as precisely as samples tell it; 0 without samples."""
    longest, since = 0.0, samples[0].time if samples else 0.0
    for before, after in itertools.pairwise(samples):
        if after.counters[counter] > before.counters[counter]:
            longest, since = max(longest, before.time - since), after.time
    return max(longest, samples[-1].time - since) if samples else 0.0


def slope_mb_per_hour(looks: Sequence[Look]) -> float:
    """Trend of a process's own memory after its warm-up; nan when it did not live long enough to have one."""
    late = [look for look in looks if look.time >= looks[0].time + SLOPE_WARM_UP_S]
    if len(late) < 2 or late[-1].time - late[0].time < SLOPE_LEAST_S:
        return math.nan
    line = statistics.linear_regression([look.time for look in late], [look.own_mb for look in late])
    return line.slope * 3600.0


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """What there is more of than before, in words."""
    return [f"{name}: {before.get(name, 0)} -> {n}" for name, n in sorted(after.items()) if n > before.get(name, 0)]
