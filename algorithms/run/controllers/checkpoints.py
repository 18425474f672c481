"""When a checkpoint is due, what the driver puts into it, and whether it reached the disk."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from appo.algorithms.checkpoint_names import OPPONENT
from appo.algorithms.messages import (
    CheckpointFailed,
    CheckpointSaved,
    Command,
    PolicyRestored,
    Report,
    SaveCheckpoint,
    WorkerReady,
)
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.statistics import EVALUATED
from appo.algorithms.run.controllers.absent import AbsenceWatch
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.workers.roster import LEARNER
from appo.utils.files import DiskFaults

# Of a policy and kind: a learner that answers none of these needs no more of them, each with a run state of its own.
MOST_OPEN = 4
# A statistic that so many episodes have not had may be misspelt; of evaluations one is enough.
EPISODES_BEFORE_WARNING = 100

log = logging.getLogger(__name__)


class CheckpointScheduler(Controller):
    """Asks the learners for checkpoints: periodically, for the best policy, and for milestones."""

    def __init__(self, context: ControllerContext) -> None:
        """Saves nothing before `may_save` is set."""
        self._run = run = context.config.run
        self._statistics = context.statistics
        self._run_state = context.run_state
        name = run.save_best_metric
        self._is_evaluated = name.startswith(EVALUATED)
        source = "evaluation" if self._is_evaluated else "episode"
        self._absence = AbsenceWatch(
            name, f"save_best_metric={name} is in no {source} so far, so no checkpoint is best"
        )
        self._roster = context.roster
        now = time.monotonic()
        self._next = {
            "latest": now + run.save_every_sec,
            "best": now + run.save_best_every_sec,
        }
        self._milestone_every_s = run.save_milestones_sec if run.save_milestones_sec > 0 else math.inf
        self._milestones = 0  # that have been due, over all starts
        self.may_save = False  # the options of this start have worked
        self.best = [-math.inf] * len(context.statistics.episodes)  # by --save_best_metric, of what is on disk
        self._requests = 0
        self._open: dict[int, SaveCheckpoint] = {}  # by request
        self._to_send: list[Command] = []
        self._disk_faults = DiskFaults()
        # Policy -> the newest request of kind "latest" that was answered, and why it failed; empty: it is on disk.
        self._newest_answer: dict[int, tuple[int, str]] = {}

    def note(self, report: Report) -> None:
        """See whether a checkpoint arrived, what was best before, and which learner has to be asked again."""
        if isinstance(report, CheckpointSaved | CheckpointFailed) and report.kind == OPPONENT:
            return  # of another controller, which numbers its requests itself
        if isinstance(report, CheckpointSaved):
            command = self._open.pop(report.request, None)
            if command is not None and command.kind == "best":
                self.best[command.policy] = max(self.best[command.policy], command.metric)
            self._note_answer(report, "")
            log.debug("saved %s", report.path)
        elif isinstance(report, CheckpointFailed):
            self._open.pop(report.request, None)
            self._note_answer(report, report.reason)
            self._disk_faults.tell("checkpoint", report.reason)
        elif isinstance(report, PolicyRestored):
            if not math.isnan(report.best):
                self.best[report.policy] = report.best
            before = int(report.run_state.get("train_seconds", 0.0) // self._milestone_every_s)
            self._milestones = max(self._milestones, before)
        elif isinstance(report, WorkerReady):
            worker = self._roster.named(report.worker)
            if worker is not None and worker.kind == LEARNER:
                self._ask_again(worker.policy)

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """The checkpoints that are to be written now."""
        if snapshot.points:
            self._look_for_metric()
        if self.may_save and snapshot.state == "training":
            self._ask_for_what_is_due()
        return self.commands()

    def end(self, last: RunSnapshot) -> None:
        """Say what no episode has had, however few points there were."""
        if last.state != "starting":
            self._look_for_metric()
            self._absence.tell()

    def _look_for_metric(self) -> None:
        known = self._statistics.known_metrics(evaluated=self._is_evaluated)
        episodes = sum(window.finished_since_start for window in self._statistics.episodes)
        self._absence.look(known, is_enough=self._is_evaluated or episodes >= EPISODES_BEFORE_WARNING)

    def commands(self) -> Sequence[Command]:
        """What was asked for since the last call."""
        commands, self._to_send = self._to_send, []
        return commands

    def ask_for_all(self, kind: str) -> None:
        """Let `due` ask for a checkpoint of every policy, and for best ones as well: the next look may not come."""
        for policy in range(len(self.best)):
            self._maybe_ask_for_best(policy)
            self._ask(policy, kind)

    @property
    def awaited(self) -> set[int]:
        """Policies of which some checkpoint was asked for and is not on disk."""
        return {command.policy for command in self._open.values()}

    @property
    def failures(self) -> int:
        """How many checkpoints could not be written."""
        return sum(self._disk_faults.failures.values())

    def why_unsaved(self) -> str:
        """Why what was learned last is not on disk; empty when it is."""
        if self._open:
            return "its learner did not report in time that it is on disk"
        return next((failure for _, failure in self._newest_answer.values() if failure), "")

    def _note_answer(self, report: CheckpointSaved | CheckpointFailed, failure: str) -> None:
        """Keep the answer to the newest request: an older checkpoint that is written late has nothing of that one."""
        newest, _ = self._newest_answer.get(report.policy, (0, ""))
        if report.kind == "latest" and report.request >= newest:
            self._newest_answer[report.policy] = report.request, failure

    def _ask_again(self, policy: int) -> None:
        """Ask the successor of a lost learner again for the checkpoints that the lost one had not reported.

        Except for best checkpoints: the successor's weights are newer than those that had the average.
        """
        for request, command in list(self._open.items()):
            if command.policy == policy and command.kind == "best":
                del self._open[request]
            elif command.policy == policy:
                self._to_send.append(command)

    def _ask_for_what_is_due(self) -> None:
        now = time.monotonic()
        if now >= self._next["best"]:
            self._next["best"] = now + self._run.save_best_every_sec
            for policy in range(len(self.best)):
                self._maybe_ask_for_best(policy)
        if now >= self._next["latest"]:
            self._next["latest"] = now + self._run.save_every_sec
            self._ask_where_few_are_open("latest")
        milestones = int(self._statistics.train_seconds // self._milestone_every_s)
        if milestones > self._milestones:
            self._milestones = milestones
            self._ask_where_few_are_open("milestone")

    def _ask_where_few_are_open(self, kind: str) -> None:
        for policy in range(len(self.best)):
            is_open = [command.policy == policy and command.kind == kind for command in self._open.values()]
            if sum(is_open) < MOST_OPEN:
                self._ask(policy, kind)

    def _maybe_ask_for_best(self, policy: int) -> None:
        if self._statistics.env_frames(policy) < self._run.save_best_after:
            return
        metric = self._statistics.best_metric(policy, self._run.save_best_metric)
        # What was asked for and has not failed counts as well: it is on its way to the disk.
        under_way = [each.metric for each in self._open.values() if each.policy == policy and each.kind == "best"]
        if metric is not None and math.isfinite(metric) and metric > max(self.best[policy], *under_way, -math.inf):
            self._ask(policy, "best", metric, self._run.save_best_metric)

    def _ask(self, policy: int, kind: str, metric: float = math.nan, metric_name: str = "") -> None:
        self._requests += 1
        state = self._run_state(policy)
        command = SaveCheckpoint(policy, kind, state["env_frames"], state, self._requests, metric, metric_name)
        # A learner that is being replaced is asked as soon as it is there.
        self._open[self._requests] = command
        self._to_send.append(command)
