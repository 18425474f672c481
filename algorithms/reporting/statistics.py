"""What the driver knows of a run: episodes, rates, counters, time shares. Aggregates reports, decides nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil

from appo.algorithms.memory.counters import EventCounter
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.messages import (
    EpisodesFinished,
    EvaluationFinished,
    EvaluationVideoSaved,
    PolicyAdopted,
    PolicyRestored,
    Report,
    TrainingReport,
)
from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.budget import Budget
from appo.algorithms.reporting.episodes import EpisodeWindow
from appo.algorithms.reporting.rates import RATE_WINDOWS_S, RateMeter
from appo.algorithms.reporting.snapshot import Point, PolicySnapshot, RunSnapshot
from appo.algorithms.reporting.timing import OwnTimes, StageTimes, TimingNode

RATES_EVERY_S = 1.0
# Seconds between points at the beginning; later as a share of the time so far.
EARLY_POINTS_EVERY_S, EARLY_SHARE = 0.5, 0.05
EVALUATED = "eval_"  # beginning of the names of metrics that evaluations beside training tell


class Statistics:
    """Takes reports in, reads the shared counters, and makes snapshots of both."""

    def __init__(
        self,
        arrays: SharedArrays,
        stats_avg: int,
        kinds: Mapping[str, slice],
        budget: Budget,
        point_every_s: float,
    ) -> None:
        """Counters start from zero until `PolicyRestored` says otherwise.

        Args:
            arrays: of the run.
            stats_avg: episodes that an average covers.
            kinds: beginning of the names of a kind's timers -> the places of its workers in the shared counters.
            budget: of the run, over all resumes.
            point_every_s: seconds between two points of the curves.
        """
        policies = arrays.sizes.learning_policies
        self.arrays = arrays
        self.budget = budget
        self.episodes = [EpisodeWindow(stats_avg) for _ in range(policies)]
        self.training: list[dict[str, float]] = [{} for _ in range(policies)]
        self.evaluations: list[EvaluationFinished | None] = [None] * policies
        """The newest of each policy."""
        self._adopted = [0] * policies  # the version with which each became what it is
        self._untold: set[int] = set()  # policies whose newest evaluation is in no point yet
        self._videos: dict[int, str] = {}  # policy -> the newest video, which is in no point yet
        self.restored: list[PolicyRestored | None] = [None] * policies
        self.frame_rate = RateMeter()
        self.step_rates = [RateMeter() for _ in range(policies)]
        self.count_blocks: Callable[[], dict[str, int]] = dict  # how many blocks are in each state
        self.tags_of_controllers: Callable[[int], dict[str, float]] = lambda policy: {}  # of one policy
        self.bottleneck: Finding | None = None  # as the controller has found it
        self._kinds = kinds
        self._base_frames = [0] * policies
        self._base_seconds = 0.0
        self._began = time.monotonic()
        self._newest: RunSnapshot | None = None
        self._next_rates = self._next_point = self._first_point = 0.0
        self._point_every_s = point_every_s
        self._policies_with_episodes: set[int] = set()
        self._process = psutil.Process()
        self.driver_times = OwnTimes("driver")
        self.has_processes = True
        """Workers are processes, whose stages follow each other without a gap."""
        self._stage_times = StageTimes(arrays, kinds)
        # As they were when the last point was made.
        self._seconds, self._event_counts = self._stage_times.seconds.copy(), arrays["event_counts"].copy()

    def add(self, report: Report) -> None:
        """Take one report in."""
        if isinstance(report, EpisodesFinished):
            for episode in report.episodes:
                if episode.policy < len(self.episodes):  # a frozen policy has no curve of its own
                    self.episodes[episode.policy].add(episode)
        elif isinstance(report, TrainingReport):
            self.training[report.policy] = report.metrics
        elif isinstance(report, EvaluationFinished):
            if (
                report.version >= self._adopted[report.policy]
            ):  # else it was of another policy, before it became this one
                self.evaluations[report.policy] = report
                self._untold.add(report.policy)
        elif isinstance(report, EvaluationVideoSaved):
            if report.version >= self._adopted[report.policy]:
                self._videos[report.policy] = report.path
        elif isinstance(report, PolicyAdopted):
            self.evaluations[report.policy], self._adopted[report.policy] = None, report.train_step
            self._untold.discard(report.policy)
            self._videos.pop(report.policy, None)
            sizes = self.arrays.sizes
            self.episodes[report.policy].forget(under_way=sizes.trajectories // sizes.acting_policies)
        elif isinstance(report, PolicyRestored):
            self._restore(report)

    def snapshot(self) -> RunSnapshot:
        """The run as it stands, at most a second ago once it trains; with points where they are due."""
        now, is_training = time.monotonic(), all(self.restored)
        is_point_due = is_training and self._is_point_due(now)
        if self._newest is not None and not is_point_due and now < self._next_rates:
            return self._newest
        if is_training and now >= self._next_rates:
            # Until the first frame as often as asked: it is told at once.
            self._next_rates = now + RATES_EVERY_S if self.total_env_frames else now
            self._look_at_counters(now)
        points = self._points() if is_point_due else ()
        snapshot = self._snapshot("training" if is_training else "starting", points)
        self._newest = snapshot._replace(points=(), timing=())
        return snapshot

    def look_once_more(self) -> None:
        """Sampling ends now: a run of two seconds has a speed as well."""
        self._look_at_counters(time.monotonic())

    def last_snapshot(self) -> RunSnapshot:
        """The run after its end, with the last point of every curve; speeds are those before the end.

        A run that has ended before every policy knew where it begins is still "starting", and has no points.
        """
        return self._snapshot("ended", self._points()) if all(self.restored) else self._snapshot("starting", ())

    def expect_true_rewards(self) -> None:
        """Episodes that report no objective have none: the environment says so before the first of them has ended."""
        for window in self.episodes:
            window.reports_true_reward = True

    def env_frames(self, policy: int) -> int:
        """Frames that a policy has seen, over all runs."""
        return self._base_frames[policy] + int(self.arrays["env_frames"][:, policy].sum())

    @property
    def total_env_frames(self) -> int:
        """Frames of the whole experiment."""
        return sum(self._base_frames) + int(self.arrays["env_frames"].sum())

    @property
    def train_seconds(self) -> float:
        """Time spent training, over all runs."""
        return self._base_seconds + time.monotonic() - self._began

    @property
    def budget_spent(self) -> float:
        """Share of the budget that is used up; 1 and more: training is over."""
        return self.budget.spent(self.total_env_frames, self.train_seconds)

    def best_metric(self, policy: int, name: str) -> float | None:
        """The number by which the best checkpoint is picked; None: there is none yet."""
        if not name.startswith(EVALUATED):
            return self.episodes[policy].full_average(name)
        told = self.evaluations[policy]
        return None if told is None else evaluation_tags(told).get(f"eval/{name.removeprefix(EVALUATED)}")

    def known_metrics(self, *, evaluated: bool) -> set[str]:
        """The names that `best_metric` has found a number for: of training episodes, or of evaluations."""
        if not evaluated:
            return {name for window in self.episodes for name in window.known()}
        tags = {tag for told in self.evaluations if told is not None for tag in evaluation_tags(told)}
        return {EVALUATED + tag.removeprefix("eval/") for tag in tags}

    def run_state(self, policy: int) -> dict[str, Any]:
        """What a checkpoint keeps of the driver."""
        return {
            "env_frames": self.env_frames(policy),
            "train_seconds": self.train_seconds,
            "episodes": self.episodes[policy].state(),
        }

    def scalars(self, policy: int) -> dict[str, float]:
        """Every tag of one policy, but those of the stages, which all policies share."""
        tags = self.episodes[policy].scalars()
        tags |= {f"train/{name}": value for name, value in self.training[policy].items()}
        for end in ("min", "avg", "max"):
            if f"version_diff_{end}" in self.training[policy]:
                tags[f"0_aux/policy_lag_{end}"] = self.training[policy][f"version_diff_{end}"]
        tags |= self.tags_of_controllers(policy)
        for tag, meter in (("_fps", self.frame_rate), ("_sample_throughput", self.step_rates[policy])):
            if meter.is_known:
                tags[f"0_aux/{tag}"] = meter.rate(RATE_WINDOWS_S[0])
        tags["0_aux/master_process_memory_mb"] = self._process.memory_info().rss / 1e6
        return tags

    def stage_scalars(self) -> dict[str, float]:
        """The `stats/` tags since the last call.

        Share of its time that each kind of process spent in each stage, memory, batch sizes.
        """
        self._stage_times.look()
        seconds, event_counts = self._stage_times.seconds.copy(), self.arrays["event_counts"].copy()
        tags = self._stage_times.shares(seconds - self._seconds)
        events = (event_counts - self._event_counts).sum(axis=0)
        self._seconds, self._event_counts = seconds, event_counts
        for kind, processes in self._kinds.items():
            tags[f"stats/{kind.lower()}_memory_mb"] = float(self.arrays["memory_mb"][processes].mean())
        batches = int(events[EventCounter.POLICY_BATCHES])
        tags["stats/policy_batch_size"] = float(events[EventCounter.POLICY_ROWS]) / batches if batches else 0.0
        tags["stats/learner_batches"] = float(events[EventCounter.LEARNER_BATCHES])
        tags["stats/reports_dropped"] = float(events[EventCounter.REPORTS_DROPPED])
        return tags | {f"stats/{name}": float(count) for name, count in self.faults().items()}

    def faults(self) -> dict[str, int]:
        """Counts of the faults since this start that the run survived."""
        event_counts = self.arrays["event_counts"].sum(axis=0)
        return {
            "restarts": int(self.arrays["restarts"].sum()),
            "quarantined_actors": int(self.arrays["quarantined"][self._kinds.get("ACTOR", slice(None))].sum()),
            "env_crashes": int(event_counts[EventCounter.ENV_CRASHES]),
            "env_bad_data": int(event_counts[EventCounter.ENV_BAD_DATA]),
            "skipped_steps": int(event_counts[EventCounter.LEARNER_SKIPPED_STEPS]),
            "rollbacks": int(event_counts[EventCounter.LEARNER_ROLLBACKS]),
        }

    def _snapshot(self, state: str, points: tuple[Point, ...]) -> RunSnapshot:
        frames, seconds = self.total_env_frames, self.train_seconds
        left_s = self.budget.seconds_left(frames, seconds, self.frame_rate.rate(60))
        return RunSnapshot(
            state=state,
            time=time.time(),
            env_frames=frames,
            train_seconds=seconds,
            fps={window_s: self.frame_rate.rate(window_s) for window_s in RATE_WINDOWS_S},
            seconds_left=left_s if math.isfinite(left_s) else None,
            budget_spent=self.budget.spent(frames, seconds),
            faults=self.faults(),
            blocks=self.count_blocks(),
            policies=tuple(self._of_policy(policy) for policy in range(len(self.episodes))),
            points=points,
            bottleneck=self.bottleneck,
            timing=self._timing() if points else (),
        )

    def _timing(self) -> tuple[TimingNode, ...]:
        of_workers = self._stage_times.tree() if self.has_processes else ()
        return (*of_workers, self.driver_times.node())

    def _of_policy(self, policy: int) -> PolicySnapshot:
        window = self.episodes[policy]
        return PolicySnapshot(
            env_frames=self.env_frames(policy),
            train_steps=int(self.arrays["train_steps"][policy]),
            episodes=window.finished,
            avg_reward=_mean(window.returns),
            avg_true_reward=_mean(window.objectives),
            policy_lag=self.training[policy].get("version_diff_avg"),
            has_new_episodes=window.finished_since_start > 0,
        )

    def _look_at_counters(self, now: float) -> None:
        self._stage_times.look()
        self.frame_rate.add(now, int(self.arrays["env_frames"].sum()))
        for policy, rate in enumerate(self.step_rates):
            rate.add(now, int(self.arrays["agent_steps"][:, policy].sum()))

    def _is_point_due(self, now: float) -> bool:
        """At intervals once there is something to tell, and when a policy has finished its first episodes."""
        # Episodes of earlier starts do not count: of this one there is nothing to tell yet.
        with_episodes = {policy for policy, window in enumerate(self.episodes) if window.finished_since_start}
        is_first = bool(with_episodes - self._policies_with_episodes)
        self._policies_with_episodes = with_episodes
        has_begun = bool(with_episodes) or any(self.training)
        if not is_first and not (has_begun and now >= self._next_point):
            return False
        self._first_point = self._first_point or now
        # Many at the beginning, where most changes; never more seldom than was asked for.
        early = max(EARLY_POINTS_EVERY_S, EARLY_SHARE * (now - self._first_point))
        self._next_point = now + min(self._point_every_s, early)
        return True

    def _points(self) -> tuple[Point, ...]:
        stages = self.stage_scalars()
        points = tuple(self._point(policy, stages) for policy in range(len(self.episodes)))
        self._untold.clear()
        return points

    def _point(self, policy: int, stages: dict[str, float]) -> Point:
        """What evaluations tell is in one point only: between two of them nothing is known."""
        told = self.evaluations[policy] if policy in self._untold else None
        scalars = self.scalars(policy) | stages | (evaluation_tags(told) if told else {})
        return Point(policy, self.env_frames(policy), _finite(scalars), self._videos.pop(policy, ""))

    def _restore(self, report: PolicyRestored) -> None:
        self.restored[report.policy] = report
        if not report.run_state:
            return
        self._base_frames[report.policy] = int(report.run_state["env_frames"])
        self._base_seconds = max(self._base_seconds, float(report.run_state["train_seconds"]))
        self.episodes[report.policy].restore(report.run_state["episodes"])


def evaluation_tags(told: EvaluationFinished) -> dict[str, float]:
    """The `eval/` tags of an evaluation."""
    tags = {
        "reward": told.mean_return,
        "reward_sem": told.sem_return,
        "reward_min": told.min_return,
        "reward_max": told.max_return,
        "true_reward": told.mean_true_return,
        "len": told.mean_length,
        "episodes": float(told.episodes),
        "policy_version": float(told.version),
        "seconds": told.seconds,
    }
    return {f"eval/{name}": value for name, value in {**told.extra, **tags}.items()}


def _finite(scalars: dict[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in scalars.items() if math.isfinite(value)}


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
