"""What the driver knows of a run: episodes, rates, counters, time shares. Aggregates reports, decides nothing."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from algorithms.memory.counters import Tally, Timer
from algorithms.memory.layout import SharedArrays
from algorithms.messages import EpisodeFinished, EpisodesFinished, PolicyRestored, Report, TrainingReport

RATE_WINDOWS_S = (10, 60, 300)
# Tags of our own: an environment's statistic of such a name is shown under another.
OWN_STATISTICS = ("reward", "true_reward", "len")
RESERVED_STATISTICS = frozenset(name + end for name in OWN_STATISTICS for end in ("", "_min", "_max"))


class EpisodeWindow:
    """The last episodes of one policy."""

    def __init__(self, size: int) -> None:
        """Remembers `size` episodes."""
        self._size = size
        self.reports_true_reward = False  # some episodes have an objective of their own: the others have none
        self.returns: deque[float] = deque(maxlen=size)
        self.true_returns: deque[float] = deque(maxlen=size)  # of episodes that reported one
        self.lengths: deque[float] = deque(maxlen=size)
        self.extra: dict[str, deque[float]] = {}
        self.finished = 0  # over all runs

    def add(self, episode: EpisodeFinished) -> None:
        """Take one episode in."""
        self.finished += 1
        self.returns.append(episode.episode_return)
        if not math.isnan(episode.true_return):
            self.reports_true_reward = True
            self.true_returns.append(episode.true_return)
        self.lengths.append(episode.length_frames)
        for name, value in episode.extra.items():
            if name not in self.extra:
                self.extra[name] = deque(maxlen=self._size)
            self.extra[name].append(value)

    def full_average(self, metric: str) -> float | None:
        """An average over as many episodes as it is meant to cover; None: fewer episodes had this metric so far."""
        values = self._named().get(metric, ())
        return float(np.mean(values)) if len(values) == self._size else None

    def _named(self) -> dict[str, deque[float]]:
        """Everything that is averaged, by the name of its tag; no statistic of an environment takes a name of ours."""
        named = {"reward": self.returns, "true_reward": self.objectives, "len": self.lengths}
        return named | {f"extra_{n}" if n in RESERVED_STATISTICS else n: values for n, values in self.extra.items()}

    @property
    def objectives(self) -> deque[float]:
        """What policies are ranked by: the returns where no episode has reported anything else."""
        return self.true_returns if self.reports_true_reward else self.returns

    def scalars(self) -> dict[str, float]:
        """The `0_aux/` tags of episodes; none before the first episode."""
        tags = {}
        for name, values in self._named().items():
            if values:
                tags[f"0_aux/avg_{name}"] = float(np.mean(values))
                if name in OWN_STATISTICS:
                    tags[f"0_aux/avg_{name}_min"] = float(min(values))
                    tags[f"0_aux/avg_{name}_max"] = float(max(values))
        return tags

    def state(self) -> dict[str, Any]:
        """Plain lists, for a checkpoint."""
        return {
            "finished": self.finished,
            "returns": list(self.returns),
            "true_returns": list(self.true_returns),
            "reports_true_reward": self.reports_true_reward,
            "lengths": list(self.lengths),
            "extra": {name: list(values) for name, values in self.extra.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.finished = int(state["finished"])
        self.returns.extend(state["returns"])
        self.true_returns.extend(state["true_returns"])
        # Without the flag, returns were kept as true returns where an environment reported none.
        default = state["true_returns"] != state["returns"]
        self.reports_true_reward |= bool(state.get("reports_true_reward", default))
        self.lengths.extend(state["lengths"])
        for name, values in state["extra"].items():
            self.extra.setdefault(name, deque(maxlen=self._size)).extend(values)


class RateMeter:
    """How fast a counter grows, over several windows of time."""

    def __init__(self, windows_s: tuple[int, ...] = RATE_WINDOWS_S) -> None:
        """Remembers as much as the longest window needs."""
        self.windows_s = windows_s
        self._history: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Look at the counter."""
        self._history.append((now, count))
        while self._history[0][0] < now - max(self.windows_s) - 1.0:
            self._history.popleft()

    def rate(self, window_s: int) -> float:
        """Growth per second over the window, or over what there is of it."""
        if len(self._history) < 2:
            return 0.0
        now, count = self._history[-1]
        began, first = next(entry for entry in self._history if entry[0] >= now - window_s)
        if began == now:
            began, first = self._history[-2]
        return (count - first) / (now - began)


class Statistics:
    """Everything that is told to the user, in one place."""

    def __init__(self, arrays: SharedArrays, stats_avg: int) -> None:
        """Counters start from zero until `PolicyRestored` says otherwise."""
        policies = arrays.sizes.policies
        self.arrays = arrays
        self.episodes = [EpisodeWindow(stats_avg) for _ in range(policies)]
        self.training: list[dict[str, float]] = [{} for _ in range(policies)]
        self.restored: list[PolicyRestored | None] = [None] * policies
        self.frame_rate = RateMeter()
        self.step_rates = [RateMeter() for _ in range(policies)]
        self.count_blocks: Callable[[], dict[str, int]] = dict  # how many blocks are in each state
        self._base_frames = [0] * policies
        self._base_seconds = 0.0
        self._began = time.monotonic()
        self._process = psutil.Process()
        self._timers, self._tallies = arrays["timers"].copy(), arrays["tallies"].copy()  # at the last point

    def add(self, report: Report) -> None:
        """Take one report in."""
        if isinstance(report, EpisodesFinished):
            for episode in report.episodes:
                self.episodes[episode.policy].add(episode)
        elif isinstance(report, TrainingReport):
            self.training[report.policy] = report.metrics
        elif isinstance(report, PolicyRestored):
            self._restore(report)

    def tick(self) -> None:
        """Look at the counters, for the rates."""
        now = time.monotonic()
        self.frame_rate.add(now, int(self.arrays["env_frames"].sum()))
        for policy, rate in enumerate(self.step_rates):
            rate.add(now, int(self.arrays["agent_steps"][:, policy].sum()))

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
        return sum(self.env_frames(policy) for policy in range(len(self.episodes)))

    @property
    def train_seconds(self) -> float:
        """Time spent training, over all runs."""
        return self._base_seconds + time.monotonic() - self._began

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
        tags["0_aux/_fps"] = self.frame_rate.rate(RATE_WINDOWS_S[0])
        tags["0_aux/_sample_throughput"] = self.step_rates[policy].rate(RATE_WINDOWS_S[0])
        tags["0_aux/master_process_memory_mb"] = self._process.memory_info().rss / 1e6
        return tags

    def stage_scalars(self) -> dict[str, float]:
        """The `stats/` tags since the last call.

        Share of its time that each kind of process spent in each stage, memory, batch sizes.
        """
        timers, tallies = self.arrays["timers"].copy(), self.arrays["tallies"].copy()
        # A worker that has just prepared itself starts its clocks anew.
        seconds, events = (timers - self._timers).clip(min=0.0), (tallies - self._tallies).sum(axis=0)
        self._timers, self._tallies = timers, tallies
        sizes = self.arrays.sizes
        kinds = {
            "ACTOR": slice(0, sizes.actors),
            "POLICY": slice(sizes.actors, sizes.processes - sizes.policies),
            "LEARNER": slice(sizes.processes - sizes.policies, sizes.processes),
        }
        tags = {}
        for kind, processes in kinds.items():
            of_kind = seconds[processes].sum(axis=0)
            stages = [timer for timer in Timer if timer.name.startswith(kind)]
            total = float(sum(of_kind[timer] for timer in stages))
            for timer in stages:
                tags[f"stats/{timer.name.lower()}"] = float(of_kind[timer]) / total if total else 0.0
            tags[f"stats/{kind.lower()}_memory_mb"] = float(self.arrays["memory_mb"][processes].mean())
        batches = int(events[Tally.POLICY_BATCHES])
        tags["stats/policy_batch_size"] = float(events[Tally.POLICY_ROWS]) / batches if batches else 0.0
        tags["stats/learner_batches"] = float(events[Tally.LEARNER_BATCHES])
        tags["stats/reports_dropped"] = float(events[Tally.REPORTS_DROPPED])
        return tags | {f"stats/{name}": float(count) for name, count in self.troubles().items()}

    def troubles(self) -> dict[str, int]:
        """What went wrong since this start, and was survived."""
        tallies = self.arrays["tallies"].sum(axis=0)
        return {
            "restarts": int(self.arrays["restarts"].sum()),
            "quarantined_actors": int(self.arrays["quarantined"].sum()),
            "env_crashes": int(tallies[Tally.ENV_CRASHES]),
            "env_bad_data": int(tallies[Tally.ENV_BAD_DATA]),
            "skipped_steps": int(tallies[Tally.LEARNER_SKIPPED_STEPS]),
            "rollbacks": int(tallies[Tally.LEARNER_ROLLBACKS]),
        }

    def _restore(self, report: PolicyRestored) -> None:
        self.restored[report.policy] = report
        if not report.run_state:
            return
        self._base_frames[report.policy] = int(report.run_state["env_frames"])
        self._base_seconds = max(self._base_seconds, float(report.run_state["train_seconds"]))
        self.episodes[report.policy].restore(report.run_state["episodes"])
