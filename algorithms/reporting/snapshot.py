"""The numbers of a run at one moment: what sinks write and controllers decide by."""

from __future__ import annotations

from typing import NamedTuple

from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.timing import TimingNode


class PolicySnapshot(NamedTuple):
    """One policy; averages are over the last `--stats_avg` episodes, None before the first of them."""

    env_frames: int  # over all runs
    train_steps: int  # optimizer steps, over all runs
    episodes: int  # finished, over all runs
    avg_reward: float | None
    avg_true_reward: float | None
    policy_lag: float | None
    has_new_episodes: bool = True  # one has finished since this start: averages are not all of the start before


class Point(NamedTuple):
    """Every tag of one policy, each value finite: a point of its curves."""

    policy: int
    env_frames: int
    scalars: dict[str, float]
    video: str = ""  # file of an animated GIF; empty: none is new


class RunSnapshot(NamedTuple):
    """A run at one moment. Totals are over all runs of the experiment, counts of faults since this start."""

    state: str  # "starting" until every policy knows where it begins, "training", "ended"
    time: float  # seconds since the epoch
    env_frames: int
    train_seconds: float
    fps: dict[int, float]  # seconds that the window covers -> env frames per second
    seconds_left: float | None  # at this speed; None: no end is in sight
    budget_spent: float  # share; 1 and more: training is over
    faults: dict[str, int]  # counts of faults that were survived
    blocks: dict[str, int]  # state -> how many blocks are in it
    policies: tuple[PolicySnapshot, ...]
    points: tuple[Point, ...] = ()  # once per `--experiment_summaries_interval` or, at first, more often; else empty
    bottleneck: Finding | None = None  # what has limited the speed since this start; None: it is too early to tell
    timing: tuple[TimingNode, ...] = ()  # together with points: where time has gone since this start
