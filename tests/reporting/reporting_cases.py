"""Statistics over small shared arrays, a clock that tests turn, and reports as workers send them."""

from __future__ import annotations

import math

from appo.algorithms.messages import EpisodeFinished, EpisodesFinished, PolicyRestored, TrainingReport
from appo.algorithms.reporting.budget import Budget
from appo.algorithms.reporting.statistics import Statistics
from appo.algorithms.workers.roster import (
    ACTOR,
    EVALUATION_WORKER,
    KINDS,
    LEARNER,
    OPPONENT_WORKER,
    POLICY_WORKER,
    Group,
    Roster,
)
from tests.memory.memory_cases import shared


class Clock:
    """Stands in for the module `time`; moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1.7e9


def small_statistics(
    stats_avg: int = 3,
    *,
    budget: Budget | None = None,
    every_s: float = 20.0,
    opponents: int = 0,
    evaluators: int = 0,
    **sizes,
) -> Statistics:
    """Of two actors; processes: two actors, a policy worker and a learner for each policy, opponent workers."""
    policies = sizes.get("policies", 1)
    acting = policies + sizes.get("frozen", 0)
    groups = {ACTOR: Group(1, 2), POLICY_WORKER: Group(acting, 1)}
    if opponents:
        groups[OPPONENT_WORKER] = Group(1, opponents)
    groups[LEARNER] = Group(policies, 1)
    if evaluators:
        groups[EVALUATION_WORKER] = Group(1, evaluators)
    roster = Roster(groups)
    kinds = {KINDS[kind].timers: roster.places(kind) for kind in groups}
    arrays = shared(**({"actors": 2, "processes": len(roster)} | sizes))
    statistics = Statistics(arrays, stats_avg, kinds, budget or Budget(), every_s)
    for policy in range(policies):
        statistics.add(PolicyRestored(policy, "", 0, {}, math.nan, [], {}, 0))
    return statistics


def episode(policy=0, value=1.0, *, true=None, frames=10, **extra) -> EpisodesFinished:
    finished = EpisodeFinished(policy, value, value if true is None else true, frames, extra)
    return EpisodesFinished([finished])


def training(policy=0, step=1, **metrics) -> TrainingReport:
    return TrainingReport(policy, step, metrics)


def restored(policy=0, *, best=math.nan, **run_state) -> PolicyRestored:
    return PolicyRestored(policy, "somewhere.pth", 5, run_state, best, [], {}, 0)
