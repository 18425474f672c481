"""Statistics over small shared arrays, a clock that tests turn, and reports as workers send them."""

from __future__ import annotations

import math

from algorithms.messages import EpisodeFinished, EpisodesFinished, PolicyRestored, TrainingReport
from algorithms.training.statistics import Statistics
from tests.memory.memory_cases import shared


class Clock:
    """Stands in for the module `time`; moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1.7e9


def small_statistics(stats_avg: int = 3, **sizes) -> Statistics:
    """Of two actors; processes: two actors, a policy worker and a learner for each policy."""
    policies = sizes.get("policies", 1)
    return Statistics(shared(**({"actors": 2, "processes": 2 + 2 * policies} | sizes)), stats_avg)


def episode(policy=0, value=1.0, *, true=None, frames=10, **extra) -> EpisodesFinished:
    finished = EpisodeFinished(policy, value, value if true is None else true, frames, extra)
    return EpisodesFinished([finished])


def training(policy=0, step=1, **metrics) -> TrainingReport:
    return TrainingReport(policy, step, metrics)


def restored(policy=0, *, best=math.nan, **run_state) -> PolicyRestored:
    return PolicyRestored(policy, "somewhere.pth", 5, run_state, best, [])
