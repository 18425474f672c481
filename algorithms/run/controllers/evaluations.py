"""Tells at the end of a run which evaluations of `--eval_every_sec` are missing, and why."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from appo.algorithms.messages import (
    Command,
    EvaluationCutOff,
    EvaluationFinished,
    EvaluationVideoSaved,
    Ready,
    Report,
    WorkerLost,
    WorkerQuarantined,
    WorkerReady,
)
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.statistics import EVALUATED
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.workers.roster import EVALUATION_WORKER, KINDS

log = logging.getLogger(__name__)
_NAME = KINDS[EVALUATION_WORKER].name


class Evaluations(Controller):
    """Decides nothing; silent where there are no evaluations, or every policy has one."""

    def __init__(self, context: ControllerContext) -> None:
        """Counts from this start."""
        self._options, self._metric = context.config.workers, context.config.run.save_best_metric
        self._missing = set(range(context.config.sampling.num_policies)) if self._options.eval_every_sec else set()
        self._num_policies = len(self._missing)
        self._has_video = not self._options.eval_video_every_sec
        self._cut_off: EvaluationCutOff | None = None
        self._ready_at: float | None = None
        self._has_failed = False

    def note(self, report: Report) -> None:
        """Count what was finished, and keep what was not."""
        if isinstance(report, EvaluationFinished):
            self._missing.discard(report.policy)
        elif isinstance(report, EvaluationVideoSaved):
            self._has_video = True
        elif isinstance(report, EvaluationCutOff):
            self._cut_off = report
        elif isinstance(report, Ready | WorkerReady) and report.worker == _NAME:
            self._ready_at = time.monotonic()
        elif isinstance(report, WorkerLost) and report.worker == _NAME:
            self._ready_at = None  # its successor begins anew
        elif isinstance(report, WorkerQuarantined) and report.worker == _NAME:
            self._has_failed = True

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """There is nothing to be done."""
        del snapshot
        return ()

    def end(self, last: RunSnapshot) -> None:
        """Say what is missing, and why."""
        if not self._num_policies or last.state == "starting":
            return
        if self._missing:
            log.warning("%s: %s; %s", self._what_is_missing(), self._why(), self._remedy())
        elif self._cut_off is not None:
            log.info("the last evaluation is not reported: %s", self._why())
        if not self._has_video and not self._missing:
            log.warning("no evaluation was recorded before the run ended; log/%s.txt has what failed, if it did", _NAME)

    def _what_is_missing(self) -> str:
        if len(self._missing) < self._num_policies:
            return f"no evaluation of policy {', '.join(map(str, sorted(self._missing)))} was finished"
        told = "no evaluation was finished, so there are no eval/ tags"
        if self._metric.startswith(EVALUATED):
            told += f", no best checkpoint by {self._metric}"
        return told if self._has_video else f"{told} and no videos"

    def _why(self) -> str:
        options = self._options
        if self._has_failed:
            return "its process failed again and again"
        if self._cut_off is not None:
            played = f"{self._cut_off.episodes} of {options.eval_episodes} episodes"
            return f"{played} were played in {self._cut_off.seconds:.0f} s when the run ended"
        if self._ready_at is None:
            return "its environments were still being built when the run ended"
        waited = time.monotonic() - self._ready_at
        if waited < options.eval_every_sec:
            due = f"one was due after {options.eval_every_sec:g}"
            return f"the run ended {waited:.0f} s after its process was ready; {due}"
        return "the run ended before the first one began"

    def _remedy(self) -> str:
        if self._has_failed:
            return f"see log/{_NAME}.txt"
        return "a smaller --eval_every_sec, fewer --eval_episodes or a longer run gives some"
