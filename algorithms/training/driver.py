"""The driver: aggregates what workers report, from the first report of a run to its end. It computes nothing itself."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import time
import traceback
from typing import Any, Protocol

from algorithms.config import TrainConfig
from algorithms.messages import Command, PolicyRestored, Ready, Report, WorkerReady
from algorithms.training import wiring
from algorithms.training.experiment import Experiment
from algorithms.training.incidents import Incidents
from algorithms.training.saving import Saver
from algorithms.training.statistics import Statistics
from algorithms.training.summaries import Budget, EventFiles, Summaries, status_line
from algorithms.training.watchdog import Watchdog
from algorithms.workers.awake_clock import AwakeClock
from algorithms.workers.launch_pad import RunFailed
from algorithms.workers.restarts import Kind
from utils.signals import SAVING, StopSignals

STATUS_LINE_EVERY_S = 5.0
POLL_S = 0.1
# A signal must end the run within 10 s: saving and stopping share that time.
STOP_SAMPLING_S, SAVE_S = 1.5, 5.0

log = logging.getLogger(__name__)


class Workforce(Protocol):
    """Who does the work: a supervisor of processes, or everything in this one."""

    def poll(self, timeout_s: float) -> list[Report]:
        """Reports that arrived; raises RunFailed when the work cannot go on."""

    def send(self, name: str, command: Command) -> bool:
        """Give a worker a command; False when there is no such worker any more."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the workers, beyond what learners keep themselves."""

    def measure_memory(self) -> None:
        """Fill the shared array `memory_mb`."""

    def unblock(self, kind: Kind, why: str) -> None:
        """Everybody waits for the workers of this kind: replace them."""

    def count_blocks(self) -> dict[str, int]:
        """How many blocks are in each state, and how many are lost."""

    def stop_replacing(self) -> None:
        """The run ends: `poll` replaces nobody any more, and raises nothing."""

    def lives(self, name: str) -> bool:
        """There is such a worker, or will be."""

    def stop_sampling(self, timeout_s: float) -> list[Report]:
        """Step no environment any more; the last reports of the actors."""

    def stop(self, timeout_s: float) -> list[Report]:
        """End every worker; their last reports."""


class Driver:
    """Follows one run from its first report to its end."""

    def __init__(
        self, config: TrainConfig, experiment: Experiment, workforce: Workforce, wires: wiring.Wiring, stop: StopSignals
    ) -> None:
        """The workers have been started."""
        run = config.run
        self.statistics = Statistics(wires.arrays, run.stats_avg)
        self.budget = Budget(run.train_for_env_steps, run.train_for_seconds)
        self.saver = Saver(run, self.statistics, lambda policy, command: workforce.send(f"learner-{policy}", command))
        self.saver.extra_state = workforce.state
        events = EventFiles([experiment.summary_dir(policy) for policy in range(wires.arrays.sizes.policies)])
        self.summaries = Summaries(self.statistics, self.budget, experiment, events, run.experiment_summaries_interval)
        self.statistics.count_blocks = workforce.count_blocks
        self.incidents = Incidents(experiment.events_file)
        self._arrays = wires.arrays
        self._experiment = experiment
        self._workforce = workforce
        self._stop = stop
        self._config = config
        self._is_accepted = False  # options that never worked are not saved, and neither is anything made with them
        self._restored_steps: dict[int, int] = {}  # policy -> optimizer steps of its checkpoint
        self._frames_before = 0
        self._saves_done = 0
        self._next_line = 0.0
        self._began = time.monotonic()
        stall_s, learns = config.workers.stall_timeout_seconds, not run.sampler_only
        grace_s = config.sampling.reset_timeout_seconds + 60.0  # whose actors the supervisor replaces itself
        self._clock = AwakeClock(self._began)
        self._watchdog = Watchdog(wires.arrays, stall_s, self._clock.now(), grace_s=grace_s, learns=learns)

    def run(self) -> str:
        """Train until the budget is spent or a signal arrives; why it ended.

        Raises:
            RunFailed: a worker keeps failing, or nothing moves any more.
        """
        while not self.finished():
            for report in self._workforce.poll(POLL_S):
                self._take(report)
            self._watch()
            self._experiment.bound_logs()
            if self._all_restored():
                self._publish_progress()
                if self._is_accepted or self._has_worked():
                    self._accept()
                    self._save_if_asked()
                    self.saver.maybe_save()
                self.summaries.maybe_write()
                self._maybe_print_line()
        if self._stop.received is not None:
            return stopped_by(self._stop)
        self._accept()  # however small the budget was
        return self.budget.reason(self.statistics)

    def finished(self) -> bool:
        """The budget is spent, or somebody wants the run to end."""
        if self._stop.received is not None:
            return True
        return self._all_restored() and self.budget.spent(self.statistics) >= 1.0

    def save(self) -> None:
        """Stop sampling, save every policy, and wait for it: no frame is counted that the checkpoints do not have.

        Raises:
            RunFailed: a worker keeps failing; not after `Workforce.stop_replacing`.
        """
        # All actors, those that were given up too: learners see it, and take no step that no checkpoint would have.
        self._arrays["stop"][: self._arrays.sizes.actors] = 1
        self._take_last(self._workforce.stop_sampling(STOP_SAMPLING_S))
        if self._all_restored() and self._has_worked():
            self._accept()
        if not self._is_accepted:
            return  # nothing has been learned
        self.saver.save_all("latest")
        deadline = time.monotonic() + SAVE_S
        while self._awaits_checkpoint() and time.monotonic() < deadline:
            self._take_last(self._workforce.poll(POLL_S))

    def save_after(self, failure: str) -> None:
        """Save what can still be saved after something went wrong; what that is, is told already."""
        self._workforce.stop_replacing()
        try:
            self.save()
        except Exception as error:
            log.warning("no checkpoint after %r: %r", failure.splitlines()[-1], error)
            log.debug("%s", traceback.format_exc())

    @property
    def is_saved(self) -> bool:
        """All that was learned is on disk."""
        return not self._all_restored() or not self.saver.why_unsaved()

    def _awaits_checkpoint(self) -> bool:
        return any(self._workforce.lives(f"learner-{policy}") for policy in self.saver.awaited)

    def end(self, reason: str, stop_s: float) -> None:
        """Stop the workers and write the last numbers."""
        self._take_last(self._workforce.stop(stop_s))
        if self._all_restored():
            self.summaries.write_status("ended")
            self.summaries.write_summary({"reason": reason} | self._best())
        self.summaries.close()
        self.incidents.close()

    def _best(self) -> dict[str, Any]:
        return {"best": [best if best > float("-inf") else None for best in self.saver.best]}

    def _take_last(self, reports: list[Report]) -> None:
        """Take reports while the run ends: a mistake in taking one costs neither the checkpoint nor the end."""
        for report in reports:
            try:
                self._take(report)
            except Exception as error:
                log.warning("a report was not taken: %r", error)
                log.debug("%s", traceback.format_exc())

    def _take(self, report: Report) -> None:
        if isinstance(report, PolicyRestored) and self._arrays["policy_begun"][report.policy]:
            return  # by a learner that was lost before it could tell, and once more by its successor
        self.statistics.add(report)
        self.saver.note(report)
        self.incidents.note(report)
        if isinstance(report, PolicyRestored):
            self._arrays["policy_begun"][report.policy] = 1
            self._tell_restored(report)
            self._restored_steps[report.policy] = report.train_step
            if self._all_restored():
                self._frames_before = self.statistics.total_env_frames
                self.saver.restore()
        elif isinstance(report, WorkerReady) and report.worker.startswith("learner-"):
            self.saver.ask_again(int(report.worker.removeprefix("learner-")))
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
        steps = self._arrays["train_steps"]
        return any(int(steps[policy]) > before for policy, before in self._restored_steps.items())

    def _accept(self) -> None:
        """Let the options of this start be those of the experiment, once."""
        if not self._is_accepted:
            self._experiment.accept()
            self._is_accepted = True

    def _save_if_asked(self) -> None:
        if self._stop.saves_requested > self._saves_done:
            self._saves_done = self._stop.saves_requested
            log.info("%s: saving, and going on", SAVING.name)
            self.saver.save_all("latest")

    def _watch(self) -> None:
        """Replace those whom everybody waits for, once.

        Raises:
            RunFailed: it has not helped.
        """
        self._clock.look(time.monotonic())
        stall = self._watchdog.look(self._clock.now())
        if stall is None:
            return
        told = f"{stall.what}: {stall.stage}"
        self.incidents.write("stall", stall._asdict() | {"culprits": stall.culprits.value})
        if stall.in_a_row > 1:
            raise RunFailed(f"{told}; replacing each {stall.culprits.value} has not helped")
        log.error("%s; the stacks of all processes follow in their logs in %s", told, self._experiment.log_dir)
        with contextlib.suppress(OSError), self._experiment.log_file("driver").open("a") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        self._workforce.unblock(stall.culprits, f"was replaced because everybody waited for it ({stall.what})")

    def _tell_restored(self, report: PolicyRestored) -> None:
        for warning in report.warnings:
            log.warning("%s", warning)
        if report.checkpoint:
            frames = report.run_state["env_frames"]
            log.info("policy %d goes on from %s (%d env frames)", report.policy, report.checkpoint, frames)
        elif self._experiment.starts:
            log.warning("policy %d begins anew: no earlier start of this experiment has saved it", report.policy)

    def _publish_progress(self) -> None:
        self._arrays["run_env_frames"][0] = self.statistics.total_env_frames
        self._arrays["progress"][:] = min(1.0, self.budget.spent(self.statistics))

    def _maybe_print_line(self) -> None:
        now = time.monotonic()
        if now >= self._next_line and self.statistics.frame_rate.rate(10) > 0:
            self._next_line = now + STATUS_LINE_EVERY_S
            self._workforce.measure_memory()
            log.info("%s", status_line(self.statistics, self.budget))


def stopped_by(stop: StopSignals) -> str:
    """Why a run ends that a signal ends."""
    assert stop.received is not None
    return f"stopped by {stop.received.name}"
