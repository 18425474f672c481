"""Faults that the run survived, and changes of options: for each a line in the log and a record in `events.jsonl`.

The counts are in the status line, in `status.json` and in TensorBoard; here are the process, the time and the cause.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appo.algorithms.messages import (
    AdoptionRefused,
    EnvironmentFailed,
    HyperparametersChanged,
    HyperparametersRefused,
    PolicyAdopted,
    PolicyRecovered,
    Report,
    TrainingRolledBack,
    WorkerLost,
    WorkerQuarantined,
    WorkerReady,
    WorkerStarted,
    WorkerWorks,
)
from appo.utils.files import JsonLines
from appo.utils.options import to_text

log = logging.getLogger(__name__)

# All actors may have environments that fail again and again, for days.
FAILURES_EVERY_S = 60.0
_EVENTS: dict[type, str] = {
    EnvironmentFailed: "environment_failed",
    WorkerLost: "lost",
    WorkerStarted: "started",
    WorkerReady: "ready",
    WorkerWorks: "working",
    WorkerQuarantined: "quarantined",
    PolicyRecovered: "recovered",
    TrainingRolledBack: "rolled_back",
    HyperparametersChanged: "hyperparameters_changed",
    HyperparametersRefused: "hyperparameters_refused",
    PolicyAdopted: "policy_adopted",
    AdoptionRefused: "adoption_refused",
}


class EventLog:
    """Tells of everything that a run survived."""

    def __init__(self, path: Path) -> None:
        """`path`: of `events.jsonl`, which goes on over resumes."""
        self._path = path
        self._lines: JsonLines | None = None
        self._next_failure = 0.0

    def note(self, report: Report) -> None:
        """Tell of a report, if it is about something that went wrong."""
        event = _EVENTS.get(type(report))
        if event is None or (isinstance(report, EnvironmentFailed) and not self._is_time_for_failures()):
            return
        self.write(event, report._asdict())
        _log(report)

    def _is_time_for_failures(self) -> bool:
        is_time = time.monotonic() >= self._next_failure
        if is_time:
            self._next_failure = time.monotonic() + FAILURES_EVERY_S
        return is_time

    def tell_changed_options(self, changed: Iterable[tuple[str, Any, Any]]) -> None:
        """Tell what this start changes: option, its value before and now. No record where nothing has changed."""
        found = {}
        for name, before, now in changed:
            log.info("changed since the last start: %s %s -> %s", name, to_text(before), to_text(now))
            found[name] = {"before": _plain(before), "now": _plain(now)}
        if found:
            self.write("options_changed", {"options": found})

    def write(self, event: str, what: dict[str, Any]) -> None:
        """Add a record; a disk that does not take it loses the record, not the run."""
        try:
            if self._lines is None:
                self._lines = JsonLines(self._path)
            self._lines.append({"time": time.time(), "event": event} | what)
        except OSError as error:
            log.debug("%s was not told of in %s: %s", event, self._path, error)

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()


def _plain(value: Any) -> Any:
    """A value as JSON holds it; infinity as text, as in config.json."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _log(report: Report) -> None:
    if isinstance(report, EnvironmentFailed):
        if report.worker:
            log.warning("%s; it begins anew, as all that fail do: log/%s.txt", report.cause, report.worker)
    elif isinstance(report, WorkerLost):
        log.warning("%s, in %s", report.cause, report.phase)
    elif isinstance(report, WorkerWorks):
        log.info("%s works again, %.1f s after it was lost", report.worker, report.seconds)
    elif isinstance(report, WorkerQuarantined):
        log.error("%s is quarantined: lost %s; the run goes on without it", report.worker, report.reason)
    elif isinstance(report, PolicyRecovered):
        went_on = "policy %d goes on at train step %d, with the optimizer's moments of step %d"
        log.info(went_on, report.policy, report.train_step, report.moments_of)
    elif isinstance(report, HyperparametersChanged):  # as of adoptions, the controller that asked tells of it
        told = ", ".join(f"{name}={value:g}" for name, value in report.values.items())
        log.debug("policy %d goes on with %s", report.policy, told)
    elif isinstance(report, PolicyAdopted):
        log.debug("policy %d goes on as policy %d from train step %d", report.policy, report.source, report.train_step)
    elif isinstance(report, AdoptionRefused):
        log.error("policy %d does not become policy %d: %s", report.policy, report.source, report.reason)
    elif isinstance(report, HyperparametersRefused):
        log.error("policy %d keeps its options: %s", report.policy, report.reason)
    elif isinstance(report, TrainingRolledBack):
        log.warning("policy %d returned to its last good weights: %s", report.policy, report.reason)
