"""When a run has reached what it is for, or gets no further: `--stop_when`, `--stop_after_no_progress`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from appo.algorithms.messages import Command, PolicyRestored, Report
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.config import SUMMARY_FILE, Goal, RunConfig, goal_of
from appo.algorithms.run.controllers.absent import AbsenceWatch
from appo.algorithms.run.controllers.context import Controller, ControllerContext

# A mean has to be this much better, as a share of the best one's size, to count as progress.
PROGRESS = 0.01
EPISODES = ("reward", "true_reward")  # means over whole windows of episodes; every other metric is a tag
EVALUATED = "eval/"  # beginning of the tags of evaluations, which are not in every point


def goal_reached_before(run: RunConfig) -> str:
    """Why the last start of an experiment ended, where that was the goal that it still has; else empty."""
    if not run.stop_when or run.restart_behavior != "resume":
        return ""
    try:
        reason = str(json.loads((run.folder / SUMMARY_FILE).read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, LookupError, TypeError):  # none, or torn: the run goes on
        return ""
    return reason if reason.startswith(f"reached stop_when={run.stop_when}: ") else ""


class Stopping(Controller):
    """Ends a run when one of its policies has reached the goal, or when none has become better for long enough."""

    def __init__(self, context: ControllerContext) -> None:
        """With what the options say; does nothing without."""
        run = context.config.run
        self._statistics = context.statistics
        self._goal: Goal | None = goal_of(run.stop_when)
        self._told, self._patience = run.stop_when, run.stop_after_no_progress
        self._best, self._best_frames = -math.inf, 0
        self._reason = ""
        name = "" if self._goal is None else self._goal.metric
        self._absence = AbsenceWatch(name, f"no point has had the tag of stop_when={self._told} so far")

    def note(self, report: Report) -> None:
        """Go on with the patience that a checkpoint has kept."""
        if isinstance(report, PolicyRestored) and (kept := report.run_state.get("stopping")):
            self._best, self._best_frames = max((self._best, self._best_frames), tuple(kept))

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """Look; there is nothing to be done but to end."""
        if snapshot.state == "training" and not self._reason:
            self._reason = self._reached(snapshot) or self._stuck(snapshot)
        return ()

    def ended_by(self) -> str:
        """Why the run should end; empty: it goes on."""
        return self._reason

    def state(self, policy: int) -> dict[str, Any]:
        """The best mean so far, and since when; the same for every policy."""
        del policy
        return {} if math.isinf(self._best) else {"stopping": [self._best, self._best_frames]}

    def _reached(self, snapshot: RunSnapshot) -> str:
        """The goal, where a policy has reached it: as a mean over all episodes that means are of."""
        if self._goal is None:
            return ""
        metric, number = self._goal.metric, len(snapshot.policies)
        if metric in EPISODES:
            values = {policy: self._statistics.best_metric(policy, metric) for policy in range(number)}
        else:
            values = {point.policy: point.scalars.get(metric) for point in snapshot.points}
            is_evaluated = metric.startswith(EVALUATED)
            tags = {tag for point in snapshot.points for tag in point.scalars}
            of_its_kind = {tag for tag in tags if tag.startswith(EVALUATED)} if is_evaluated else tags
            self._absence.look(of_its_kind, is_enough=is_evaluated)  # an evaluation has all tags that there will be
        for policy, value in values.items():
            if value is not None and self._goal.holds(value):
                name = f" of policy {policy}" if number > 1 else ""
                return f"reached stop_when={self._told}: {metric}{name} is {value:.4g}"
        return ""

    def _stuck(self, snapshot: RunSnapshot) -> str:
        if not self._patience:
            return ""
        means = [self._statistics.best_metric(policy, "reward") for policy in range(len(snapshot.policies))]
        best = max((mean for mean in means if mean is not None), default=-math.inf)
        if best > self._best + PROGRESS * abs(self._best) or math.isinf(self._best):
            self._best, self._best_frames = best, snapshot.env_frames
        if snapshot.env_frames - self._best_frames < self._patience or math.isinf(self._best):
            return ""
        return (
            f"reached stop_after_no_progress={self._patience:g}: the best mean return is {self._best:.4g}, since "
            f"{self._best_frames} frames"
        )
