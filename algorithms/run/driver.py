"""The driver: takes reports in, asks the controllers, hands the snapshot to the sinks. It computes nothing itself."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from appo.algorithms.messages import Command, PolicyRestored, Ready, Report, WorkerLost, WorkerWorks
from appo.algorithms.reporting.budget import Budget
from appo.algorithms.reporting.event_log import EventLog
from appo.algorithms.reporting.population_log import PopulationLog
from appo.algorithms.reporting.sinks.status import write_summary
from appo.algorithms.reporting.sinks.table import SINKS
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.statistics import Statistics
from appo.algorithms.run.controllers.checkpoints import CheckpointScheduler
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.run.controllers.table import CONTROLLERS
from appo.algorithms.run.experiment import Experiment
from appo.algorithms.run.resources import SharedResources
from appo.algorithms.train_config import TrainConfig
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.roster import KINDS, LEARNER, WorkerId
from appo.utils.signals import SAVING, StopSignals

POLL_S = 0.1
MEASURE_MEMORY_EVERY_S = 5.0
# A signal must end the run within 10 s: saving and stopping share that time.
STOP_SAMPLING_S, SAVE_S = 1.5, 5.0
SAVE_WITHOUT_HASTE_S = 300.0  # at the end of a budget, where disks are slow

log = logging.getLogger(__name__)


class WorkerPool(Protocol):
    """The workers of a run: processes under a supervisor, or objects in this process."""

    def poll(self, timeout_s: float) -> list[Report]:
        """Reports that arrived; raises RunFailed when the work cannot go on."""

    def send_all(self, commands: Iterable[Command]) -> None:
        """Carry commands out, or hand each to the worker that it is for."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the workers, beyond what learners keep themselves."""

    def measure_memory(self) -> None:
        """Fill the shared array `memory_mb`."""

    def count_blocks(self) -> dict[str, int]:
        """How many blocks are in each state, and how many are lost."""

    def stop_replacing(self) -> None:
        """The run ends: `poll` replaces no worker any more, and raises nothing."""

    def lives(self, worker: WorkerId) -> bool:
        """There is such a worker, or will be."""

    def stop_sampling(self, timeout_s: float) -> list[Report]:
        """Step no environment any more; the last reports of the actors."""

    def stop(self, timeout_s: float) -> list[Report]:
        """End every worker; their last reports."""


class Driver:
    """Follows one run from its first report to its end."""

    def __init__(
        self,
        config: TrainConfig,
        experiment: Experiment,
        pool: WorkerPool,
        shared: SharedResources,
        stop: StopSignals,
        callback: Any = None,
    ) -> None:
        """The workers have been started. `callback`: the user's own object, as `make_callback` makes it."""
        run, arrays = config.run, shared.arrays
        there = [name for name in KINDS if shared.roster.of_kind(name)]
        kinds = {KINDS[name].timers: shared.roster.places(name) for name in there}
        budget = Budget(run.train_for_env_steps, run.train_for_seconds)
        self.statistics = Statistics(arrays, run.stats_avg, kinds, budget, run.experiment_summaries_interval)
        self.statistics.count_blocks = pool.count_blocks
        self.statistics.has_processes = not config.workers.serial_mode
        self._event_log = EventLog(experiment.events_file)
        self._population_log = PopulationLog(experiment.folder)
        context = ControllerContext(
            config,
            arrays,
            shared.roster,
            self.statistics,
            self._event_log,
            self._population_log,
            experiment.folder,
            experiment.log_dir,
            self._run_state,
            callback,
        )
        self.checkpoints = CheckpointScheduler(context)
        self._controllers: Sequence[Controller] = (self.checkpoints, *(make(context) for make in CONTROLLERS))
        self.statistics.tags_of_controllers = lambda policy: _merged(each.scalars(policy) for each in self._controllers)
        self._files = experiment.output_files(arrays.sizes.learning_policies)
        self._sinks = [make(self._files) for make in SINKS]
        self._arrays = arrays
        self._experiment = experiment
        self._pool = pool
        self._stop = stop
        self._config = config
        self._is_accepted = False  # options that never worked are not saved, and neither is anything made with them
        self._restored_steps: dict[int, int] = {}  # policy -> optimizer steps of its checkpoint
        self._frames_before = 0
        self._learners = {worker.name: worker.policy for worker in shared.roster.of_kind(LEARNER)}
        self._failures: dict[int, str] = {}  # policy -> how its learner failed, while it has not worked since
        self._saves_done = 0
        self._ended_by = ""  # a controller's reason
        self._next_update = self._next_memory = 0.0
        # Where all is one process, nothing that is decided may depend on the clock.
        self._update_every_s = 0.0 if config.workers.serial_mode else POLL_S
        self._began = time.monotonic()

    def run(self) -> str:
        """Train until the budget is spent, a goal is reached or a signal arrives; why it ended.

        Raises:
            RunFailed: a worker keeps failing, or nothing moves any more.
        """
        times = self.statistics.driver_times
        while not self.finished():
            reports = self._pool.poll(POLL_S)
            times.lap("poll")
            for report in reports:
                self._take(report)
            self._publish_progress()
            times.lap("reports")
            if time.monotonic() >= self._next_update:
                self._next_update = time.monotonic() + self._update_every_s
                self._update()
        self.statistics.look_once_more()
        if self._stop.received is not None:
            return self._stop.reason
        reason = self._ended_by or self.statistics.budget.reason(self.statistics.total_env_frames)
        for policy, failure in self._failures.items():
            if not self._has_learned(policy):
                raise RunFailed(f"{failure}; {reason} before policy {policy} learned anything")
        has_learned = self._config.run.sampler_only or self._has_learned()
        self._accept()  # however small the budget was
        return reason if has_learned or self._ended_by else f"{reason}, {self._too_small()}"

    def _update(self) -> None:
        """Ask every controller and let every sink write; ten times a second, however often reports come."""
        self._experiment.maintain_files()
        snapshot = self.statistics.snapshot()
        if snapshot.state == "training":
            self._prepare()
        self.statistics.driver_times.lap("snapshot")
        for controller in self._controllers:
            self._pool.send_all(controller.due(snapshot))
            self._ended_by = self._ended_by or controller.ended_by()
        self.statistics.driver_times.lap("controllers")
        if snapshot.state == "training":
            for sink in self._sinks:
                sink.write(snapshot)
        self.statistics.driver_times.lap("sinks")

    def finished(self) -> bool:
        """The budget is spent, a controller ends the run, or it was told to end."""
        if self._stop.received is not None:
            return True
        return bool(self._ended_by) or (self._all_restored() and self.statistics.budget_spent >= 1.0)

    def save(self, *, in_haste: bool = False) -> None:
        """Stop sampling, save every policy, and wait for it: no frame is counted that the checkpoints do not have.

        Args:
            in_haste: wait for `SAVE_S` at most, as after a signal, and not for `SAVE_WITHOUT_HASTE_S`.

        Raises:
            RunFailed: a worker keeps failing; not after `WorkerPool.stop_replacing`.
        """
        # All actors, quarantined ones too: learners see it, and take no step that no checkpoint would have.
        self._arrays["stop"][: self._arrays.sizes.actors] = 1
        self._take_last(self._pool.stop_sampling(STOP_SAMPLING_S))
        if self._all_restored() and self._has_worked():
            self._accept()
        if not self._is_accepted:
            return  # nothing has been learned
        self.checkpoints.ask_for_all("latest")
        self._pool.send_all(self.checkpoints.commands())
        began = time.monotonic()
        deadline, slow_from = began + (SAVE_S if in_haste else SAVE_WITHOUT_HASTE_S), began + SAVE_S
        while self._awaits_checkpoint() and (now := time.monotonic()) < deadline:
            if self._stop.received is not None:
                deadline = min(deadline, now + SAVE_S)
            elif now > slow_from:
                log.info("the last checkpoint is still being written")
                slow_from = math.inf
            self._take_last(self._pool.poll(POLL_S))
            self._pool.send_all(self.checkpoints.commands())

    def save_after(self, failure: str) -> None:
        """Save what can still be saved after a failure, which has been reported already."""
        self._pool.stop_replacing()
        try:
            self.save(in_haste=True)
        except Exception as error:
            log.warning("no checkpoint after %r: %r", failure.splitlines()[-1], error)
            log.debug("%s", traceback.format_exc())

    @property
    def is_saved(self) -> bool:
        """All that was learned is on disk."""
        return not self._all_restored() or not self.checkpoints.why_unsaved()

    def end(self, reason: str, stop_s: float) -> RunSnapshot:
        """Stop the workers, write the last numbers, which are returned, and let every controller end."""
        self._take_last(self._pool.stop(stop_s))
        snapshot = self.statistics.last_snapshot()
        if self._all_restored():
            self._experiment.restore_missing()
            self._write_last(snapshot)
            best = [best if best > float("-inf") else None for best in self.checkpoints.best]
            write_summary(self._files.summary, reason, best, snapshot)
        for controller in self._controllers:  # after the summary: one of them waits until it has been sent
            with _survived(f"{type(controller).__name__} failed at the end of the run"):
                controller.end(snapshot)
        for sink in self._sinks:
            sink.close()
        self._event_log.close()
        self._population_log.close()
        return snapshot

    def _run_state(self, policy: int) -> dict[str, Any]:
        """What checkpoints of a policy keep of this process and of the workers."""
        own = [self.statistics.run_state(policy), self._pool.state()]
        return _merged([*own, *(each.state(policy) for each in self._controllers)])

    def _awaits_checkpoint(self) -> bool:
        return any(self._pool.lives(WorkerId(LEARNER, policy, 0)) for policy in self.checkpoints.awaited)

    def _write_last(self, snapshot: RunSnapshot) -> None:
        """Let every sink write, whatever becomes of the others."""
        for sink in self._sinks:
            with _survived(f"the last numbers were not written by {type(sink).__name__}"):
                sink.write(snapshot)

    def _take_last(self, reports: list[Report]) -> None:
        """Take reports while the run ends: a mistake in taking one costs neither the checkpoint nor the end."""
        for report in reports:
            with _survived("a report was not taken"):
                self._take(report)

    def _take(self, report: Report) -> None:
        if isinstance(report, PolicyRestored) and self._arrays["policy_begun"][report.policy]:
            return  # by a learner that was lost before it could tell, and once more by its successor
        self.statistics.add(report)
        self._event_log.note(report)
        for controller in self._controllers:
            controller.note(report)
        if isinstance(report, PolicyRestored):
            self._arrays["policy_begun"][report.policy] = 1
            self._tell_restored(report)
            self._restored_steps[report.policy] = report.train_step
            self._frames_before = self.statistics.total_env_frames
        elif isinstance(report, WorkerLost) and report.by_exception and report.worker in self._learners:
            self._failures[self._learners[report.worker]] = report.cause
        elif isinstance(report, WorkerWorks) and report.worker in self._learners:
            self._failures.pop(self._learners[report.worker], None)
        elif isinstance(report, Ready):
            log.debug("%s is ready after %.1f s", report.worker, time.monotonic() - self._began)

    def _all_restored(self) -> bool:
        return bool(self._arrays["policy_begun"].all())

    def _has_worked(self) -> bool:
        """An optimizer step was taken, now or before with the same options; where nothing is learned, a frame."""
        if self._experiment.is_proven:
            return True
        if self._config.run.sampler_only:
            return self.statistics.total_env_frames > self._frames_before
        return self._has_learned()

    def _has_learned(self, policy: int | None = None) -> bool:
        """A policy has taken an optimizer step since this start; None: any of them."""
        steps, policies = self._arrays["train_steps"], self._restored_steps if policy is None else (policy,)
        return any(int(steps[each]) > self._restored_steps.get(each, 0) for each in policies)

    def _too_small(self) -> str:
        """What to say of a budget that was spent before the first optimizer step."""
        learning, seconds = self._config.learning, time.monotonic() - self._began
        return (
            f"spent after {seconds:.1f} s of starting and sampling, before this start learned anything: an "
            f"iteration takes {learning.batch_size * learning.num_batches_per_iteration} agent steps"
        )

    def _accept(self) -> None:
        """Let the options of this start be those of the experiment, once."""
        if not self._is_accepted:
            self._experiment.accept()
            self._is_accepted = self.checkpoints.may_save = True

    def _publish_progress(self) -> None:
        """Tell the workers how far training has come."""
        if self._all_restored():
            self._arrays["run_env_frames"][0] = self.statistics.total_env_frames
            self._arrays["progress"][:] = min(1.0, self.statistics.budget_spent)

    def _prepare(self) -> None:
        """Measure memory, accept options that have worked, and ask for the checkpoints that a signal requests."""
        if time.monotonic() >= self._next_memory:
            self._next_memory = time.monotonic() + MEASURE_MEMORY_EVERY_S
            self._pool.measure_memory()
        if self._is_accepted or self._has_worked():
            self._accept()
            if self._stop.saves_requested > self._saves_done:
                self._saves_done = self._stop.saves_requested
                log.info("%s: saving, and going on", SAVING.name)
                self.checkpoints.ask_for_all("latest")

    def _tell_restored(self, report: PolicyRestored) -> None:
        for warning in report.warnings:
            log.warning("%s", warning)
        if report.checkpoint:
            frames = report.run_state["env_frames"]
            log.info("policy %d goes on from %s (%d env frames)", report.policy, report.checkpoint, frames)
        elif self._experiment.starts:
            log.warning("policy %d begins anew: no earlier start has left a checkpoint of it", report.policy)


@contextlib.contextmanager
def _survived(failure: str) -> Iterator[None]:
    """An exception within is told after these words, and costs nothing else of the run's end."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %r", failure, error)
        log.debug("%s", traceback.format_exc())


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}
