"""When a checkpoint is due, what the driver puts into it, and whether it reached the disk."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from algorithms.messages import CheckpointFailed, CheckpointSaved, Command, Report, SaveCheckpoint
from algorithms.training.config import RunConfig
from algorithms.training.statistics import Statistics
from utils.files import DiskTrouble

# Of a policy and kind: a learner that answers none of these needs no more of them, each with a run state of its own.
MOST_OPEN = 4

log = logging.getLogger(__name__)


class Saver:
    """Asks the learners for checkpoints: periodically, for the best policy, and for milestones."""

    def __init__(self, run: RunConfig, statistics: Statistics, send: Callable[[int, Command], bool]) -> None:
        """`send`: gives the learner of a policy a command; False when it is gone."""
        self._run = run
        self._statistics = statistics
        self._send = send
        now = time.monotonic()
        self._next = {
            "latest": now + run.save_every_sec,
            "best": now + run.save_best_every_sec,
            "milestone": now + run.save_milestones_sec if run.save_milestones_sec > 0 else math.inf,
        }
        self.best = [-math.inf] * len(statistics.episodes)  # by --save_best_metric, of what is on disk
        self._requests = 0
        self._open: dict[int, tuple[int, SaveCheckpoint]] = {}  # request -> policy and what it was asked
        self._trouble = DiskTrouble()
        self._last_failure: dict[int, str] = {}  # policy -> why the newest answer about kind "latest" was bad
        self.extra_state: Callable[[], dict[str, Any]] = dict  # what else a checkpoint keeps

    def restore(self) -> None:
        """Go on from what the checkpoints hold."""
        for policy, restored in enumerate(self._statistics.restored):
            if restored is not None and not math.isnan(restored.best):
                self.best[policy] = restored.best

    def note(self, report: Report) -> None:
        """See whether a checkpoint arrived."""
        if isinstance(report, CheckpointSaved):
            policy, command = self._open.pop(report.request, (report.policy, None))
            if command is not None and command.kind == "best":
                self.best[policy] = max(self.best[policy], command.metric)
            if report.kind == "latest":
                self._last_failure.pop(report.policy, None)
            log.debug("saved %s", report.path)
        elif isinstance(report, CheckpointFailed):
            self._open.pop(report.request, None)
            if report.kind == "latest":
                self._last_failure[report.policy] = report.reason
            self._trouble.tell("checkpoint", report.reason)

    def ask_again(self, policy: int) -> None:
        """A learner took the place of a lost one: what that was asked to save, and had not told of, is asked anew.

        But for a best checkpoint: the successor's weights are newer than those that had the average.
        """
        for request, (asked, command) in list(self._open.items()):
            if asked == policy and command.kind == "best":
                del self._open[request]
            elif asked == policy:
                self._send(policy, command)

    def maybe_save(self) -> None:
        """Ask for what is due."""
        now, policies = time.monotonic(), range(len(self.best))
        if now >= self._next["best"]:
            self._next["best"] = now + self._run.save_best_every_sec
            for policy in policies:
                self._maybe_save_best(policy)
        if now >= self._next["latest"]:
            self._next["latest"] = now + self._run.save_every_sec
            self._save_due("latest")
        if now >= self._next["milestone"]:
            self._next["milestone"] = now + self._run.save_milestones_sec
            self._save_due("milestone")

    def save_all(self, kind: str) -> None:
        """A checkpoint of every policy."""
        for policy in range(len(self.best)):
            self._request(policy, kind)

    def _save_due(self, kind: str) -> None:
        for policy in range(len(self.best)):
            is_open = [asked == policy and command.kind == kind for asked, command in self._open.values()]
            if sum(is_open) < MOST_OPEN:
                self._request(policy, kind)

    @property
    def awaited(self) -> set[int]:
        """Policies of which some checkpoint was asked for and is not on disk."""
        return {policy for policy, _ in self._open.values()}

    @property
    def failures(self) -> int:
        """How many checkpoints could not be written."""
        return sum(self._trouble.failures.values())

    def why_unsaved(self) -> str:
        """Why what was learned last is not on disk; empty when it is."""
        if self._open:
            return "its learner did not report in time that it is on disk"
        return next(iter(self._last_failure.values()), "")

    def _maybe_save_best(self, policy: int) -> None:
        if self._statistics.env_frames(policy) < self._run.save_best_after:
            return
        metric = self._statistics.episodes[policy].full_average(self._run.save_best_metric)
        # What was asked for and has not failed counts as well: it is on its way to the disk.
        under_way = [c.metric for asked, c in self._open.values() if asked == policy and c.kind == "best"]
        if metric is not None and math.isfinite(metric) and metric > max(self.best[policy], *under_way, -math.inf):
            self._request(policy, "best", metric, self._run.save_best_metric)

    def _request(self, policy: int, kind: str, metric: float = math.nan, metric_name: str = "") -> None:
        self._requests += 1
        state = self._statistics.run_state(policy) | self.extra_state()
        command = SaveCheckpoint(kind, state["env_frames"], state, self._requests, metric, metric_name)
        # A learner that is being replaced is asked as soon as it is there.
        self._open[self._requests] = (policy, command)
        self._send(policy, command)
