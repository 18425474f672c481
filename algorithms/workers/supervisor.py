"""The supervisor: owns every worker, notices at once when one dies or hangs, replaces it, and ends them all.

Order of events when a worker is lost: its exit is seen; what it had reported is read; its blocks go back; what it had
started is killed; `restarts` decides; its successor is started, now or after a pause, under the next generation.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil

from appo.algorithms.memory import blocks
from appo.algorithms.memory.counters import EventCounter, Phase
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.memory.settings import write_setting
from appo.algorithms.messages import (
    Command,
    Failed,
    Ready,
    ReplaceWorkers,
    Report,
    Setting,
    WorkerLost,
    WorkerQuarantined,
    WorkerReady,
    WorkerStarted,
    WorkerWorks,
)
from appo.algorithms.workers import channels
from appo.algorithms.workers.awake_clock import AwakeClock
from appo.algorithms.workers.channels import Inbox, Outbox
from appo.algorithms.workers.process_launcher import TORCH_KEPT_S, ProcessLauncher, RunFailed
from appo.algorithms.workers.queue_memory import make_queues
from appo.algorithms.workers.restarts import Loss, RestartLimits, RestartPolicy, Verdict
from appo.algorithms.workers.roster import ACTOR, LEARNER, WorkerId
from appo.algorithms.workers.worker import DUMP_STACKS, Bells, SharedMemoryHandle, WorkerStart, gates, run_worker
from appo.algorithms.workers.worker_handle import (
    EXIT_LOST,
    Limits,
    Successor,
    WorkerHandle,
    WorkerSpec,
    await_ends,
)
from appo.envs.own_code import raised_at
from appo.utils import processes
from appo.utils.processes import kill_orphans, reap_orphans, worker_mark

# A stuck worker gets this long to write its stacks down before it is killed.
STACK_DUMP_S = 0.3
# A worker that fails by an exception after a shorter life than this has failed in a row, whatever it did meanwhile.
LONG_LIFE_S = 60.0
# How long a forkserver that has ended may still look alive after its pipes closed, and a killed worker live on.
FORKSERVER_EXIT_S, KILL_S = 0.1, 1.0
TIDY_EVERY_S = 1.0
# How long a worker may take to be started once the run is to end: a learner's successor still saves.
LAST_START_S = 2.0

log = logging.getLogger(__name__)


class Supervisor:
    """Starts workers, collects their reports, replaces those that are lost, and ends the run when that is pointless."""

    def __init__(
        self, launcher: ProcessLauncher, arrays: SharedArrays, memory: SharedMemoryHandle, bells: Bells, log_dir: Path
    ) -> None:
        """Owns nothing yet. `log_dir`: one file per worker."""
        self.limits = Limits()
        self.log_level = logging.INFO
        self.restarts = RestartPolicy(RestartLimits(), arrays.sizes.actors)
        self._launcher = launcher
        self._arrays = arrays
        self._memory = memory
        self._bells = bells
        self._log_dir = log_dir
        self._workers: dict[WorkerId, WorkerHandle] = {}
        self._successors: list[Successor] = []
        self._undelivered: list[Report] = []
        self.is_ending: Callable[[], bool] = lambda: False  # the run was told to end
        self._replaces = True
        self._clock = AwakeClock(time.monotonic())
        self._next_tidying = 0.0

    def start(self, worker_spec: WorkerSpec, generation: int = 0, lost_at: float = 0.0) -> WorkerHandle:
        """Start one incarnation of a worker; its predecessor, if there was one, is dead."""
        reports, commands = make_queues(channels.REPORT_BYTES, channels.COMMAND_BYTES)
        arrays, place = self._arrays, slice(worker_spec.place, worker_spec.place + 1)
        sent_reports, sent_commands = arrays["reports_sent"][place], arrays["commands_sent"][place]
        # What the incarnation before sent is gone with its queues, and so is a flag that it died with.
        for name in ("reports_sent", "commands_sent", "stop", "worker_in_queue", "driver_in_queue"):
            arrays[name][place] = 0
        arrays["phase"][place] = Phase.NOT_STARTED
        arrays["heartbeat"][place] = time.monotonic()
        start = WorkerStart(
            name=worker_spec.name,
            place=worker_spec.place,
            generation=generation,
            memory=self._memory,
            bells=(bells := self._bells.packed_for(worker_spec.worker)),
            reports=reports,
            commands=commands,
            placement=worker_spec.placement,
            log_path=self._log_dir / f"{worker_spec.name}.txt",
            process_group=self._launcher.process_group,
            mark=self._launcher.mark,
            driver=os.getpid(),
            log_level=self.log_level,
            search_path=self._launcher.search_path,
        )
        arguments, with_torch = (worker_spec.worker_class, start, worker_spec.job), worker_spec.kind.uses_torch
        process = self._launcher.process(run_worker, arguments, worker_spec.name, uses_torch=with_torch)
        of_reports, of_commands = gates(arrays, worker_spec.place, "driver_in_queue", "worker_in_queue")
        inbox, outbox = Inbox(reports, sent_reports, of_reports), Outbox(commands, sent_commands, of_commands)
        with contextlib.closing(bells.parcel):
            if not self._launcher.launch(process, self.is_ending, LAST_START_S):
                raise RunFailed(f"{worker_spec.name} was not started: the run ends")
        event_counts = arrays["event_counts"][worker_spec.place].copy()
        handle = WorkerHandle(worker_spec, generation, process, inbox, outbox, event_counts, time.monotonic(), lost_at)
        handle.watch = processes.watch(handle.pid)
        self._workers[worker_spec.worker] = handle
        return handle

    @property
    def workers(self) -> list[WorkerHandle]:
        """Every worker."""
        return list(self._workers.values())

    def send_all(self, commands: Iterable[Command]) -> None:
        """Carry commands out, or hand each to the worker that it is for; dropped where that one is not ready yet."""
        for command in commands:
            match command:
                case ReplaceWorkers():
                    self._replace_workers(command)
                case _ if isinstance(command, Setting):
                    write_setting(self._arrays, command)
                case _:
                    self.send(WorkerId(LEARNER, command.policy, 0), command)

    def send(self, worker: WorkerId, command: Command) -> bool:
        """Give a worker a command; False when there is no such worker, or its successor is not ready yet."""
        handle = self._workers.get(worker)
        if handle is None or (handle.generation and not handle.is_ready):
            return False
        handle.outbox.send(command)
        return True

    def state(self) -> dict[str, Any]:
        """Nothing: processes run on while a checkpoint is written, so where their random numbers stand means little."""
        return {}

    def measure_memory(self) -> None:
        """Note how much memory every worker occupies."""
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                resident = psutil.Process(worker.pid).memory_info().rss
                self._arrays["memory_mb"][worker.spec.place] = resident / 1e6

    def poll(self, timeout_s: float) -> list[Report]:
        """Collect the reports that arrived; replace the workers that ended or hang.

        Raises:
            RunFailed: going on is pointless; the message names the worker and ends with its traceback if it had one.
                Never once `stop_replacing` was called.
        """
        self._clock.look(time.monotonic())
        ended = self._wait_for_exits(timeout_s)
        # Exits are read before the queues are emptied: a failing worker flushes its Failed report before it exits,
        # so a report that exists is always seen together with the exit.
        self._undelivered += self._drain(self.workers)  # kept for the next call when this one raises
        if self._replaces:
            self._replace(ended)
        else:
            for worker in ended:
                self._clear_up_behind(worker)
        for worker in self.workers:
            worker.outbox.flush()
        self._tidy()
        reports, self._undelivered = self._undelivered, []
        return reports

    def stop_replacing(self) -> None:
        """The run ends: workers that are lost from now on are cleared up behind, and nothing else."""
        self._replaces = False
        self._successors.clear()

    def lives(self, worker: WorkerId) -> bool:
        """This worker is there, or is about to be replaced."""
        return worker in self._workers or any(successor.spec.worker == worker for successor in self._successors)

    def _tidy(self) -> None:
        """Once a second: reap what has ended, and give back what is of no use any more."""
        if (now := time.monotonic()) >= self._next_tidying:
            self._next_tidying = now + TIDY_EVERY_S
            reap_orphans(self._known_pids())
            self._launcher.forget_torch(TORCH_KEPT_S)

    def _replace(self, ended: list[WorkerHandle]) -> None:
        """Let those that ended, and those that hang, be followed by others.

        Raises:
            RunFailed: no worker can be replaced any more, or one is lost for good that the run cannot do without.
        """
        if any(worker.exit_code == EXIT_LOST for worker in ended):
            time.sleep(FORKSERVER_EXIT_S)
        if dead := self._launcher.dead():
            self.stop_replacing()
            raise RunFailed(f"{dead} was killed")
        self._note_first_work()
        for worker in ended:
            self._lose(worker)
        if stuck := self._stuck():
            self.dump_stacks(stuck)
        for worker in stuck:
            phase = self._phase(worker)
            limit, option = f"{self.limits.of(phase):g} s in {phase.name.lower()}", self.limits.option(phase)
            self._kill_worker(worker, f"showed no sign of life for {limit} ({option})")
        self._start_successors()

    def _replace_workers(self, command: ReplaceWorkers) -> None:
        self.dump_stacks(self.workers)
        culprits = self._bells.roster.of_kind(command.kind, command.policy)
        for worker in self.workers:
            if worker.spec.worker in culprits:
                self._kill_worker(worker, command.reason)

    def dump_stacks(self, workers: list[WorkerHandle]) -> None:
        """Let workers write the stacks of all their threads to the ends of their logs."""
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(worker.pid, DUMP_STACKS)
        time.sleep(STACK_DUMP_S)

    def count_blocks(self) -> dict[str, int]:
        """How many blocks are in each state, and how many no living worker can go on with."""
        num_actors, num_learners = self._arrays.sizes.actors, self._arrays.sizes.learning_policies
        actors = {actor for actor in range(num_actors) if WorkerId(ACTOR, 0, actor) not in self._workers}
        learners = {policy for policy in range(num_learners) if WorkerId(LEARNER, policy, 0) not in self._workers}
        return blocks.count_blocks(self._arrays, actors, learners)

    def stop_sampling(self, timeout_s: float) -> list[Report]:
        """End the actors, so that what is saved next counts every frame there will ever be; their last reports."""
        self._successors = [one for one in self._successors if one.spec.worker.kind != ACTOR]
        return self._retire([worker for worker in self.workers if worker.spec.worker.kind == ACTOR], timeout_s)

    def stop(self, timeout_s: float) -> list[Report]:
        """Ask every worker to end, wait, and kill what is left; their last reports."""
        self._successors.clear()
        return self._retire(self.workers, timeout_s)

    def _retire(self, retiring: list[WorkerHandle], timeout_s: float) -> list[Report]:
        for worker in retiring:
            self._arrays["stop"][worker.spec.place] = 1
        self._bells.ring_all()
        # A worker that has more reports than its queue holds needs room.
        living = await_ends(retiring, timeout_s, lambda talking: self._undelivered.extend(self._drain(talking)))
        for worker in living:
            log.warning("%s did not end within %g s and is killed", worker.spec.name, timeout_s)
            worker.kill()
        await_ends(living, KILL_S)
        reports, self._undelivered = [*self._undelivered, *self._drain(retiring)], []
        for worker in retiring:
            if worker.failure:
                log.warning("%s, while it was ended, %s", worker.spec.name, _last_line(worker.failure.traceback))
            self._clear_up_behind(worker)
        return reports

    def _wait_for_exits(self, timeout_s: float) -> list[WorkerHandle]:
        now = time.monotonic()
        for successor in self._successors:  # one that is due waits for torch
            timeout_s = min(timeout_s, max(channels.BUSY_POLL_S, successor.due - now))
        if any(worker.inbox.is_busy or worker.outbox.is_waiting for worker in self.workers):
            timeout_s = min(timeout_s, channels.BUSY_POLL_S)
        by_sentinel = {worker.sentinel: worker for worker in self.workers}
        ready = connection.wait(list(by_sentinel), timeout=timeout_s)
        told = [by_sentinel[sentinel] for sentinel in ready if isinstance(sentinel, int)]
        for worker in told:
            worker.process.join(1.0)
        ended = [worker for worker in told if worker.has_ended()]
        if told and not ended:  # their forkserver has ended, so that their sentinels are ready
            time.sleep(timeout_s)
        return ended

    def _drain(self, workers: list[WorkerHandle]) -> list[Report]:
        reports: list[Report] = []
        for worker in workers:
            for report in worker.inbox.receive():
                if isinstance(report, Failed):
                    worker.failure = report
                    continue
                reports.append(report)
                if isinstance(report, Ready) and worker.generation:
                    worker.is_ready = True
                    seconds = time.monotonic() - worker.lost_at
                    reports.append(WorkerReady(worker.spec.name, worker.generation, seconds))
        return reports

    def _lose(self, worker: WorkerHandle) -> None:
        """Clear up behind a worker that has ended, and let its successor be started.

        Raises:
            RunFailed: it is not replaced, and the run cannot do without it.
        """
        worker_spec, now = worker.spec, time.monotonic()
        phase, failure = self._phase(worker), worker.failure
        what = worker.kill_reason or processes.describe_exit(worker.exit_code)
        self._clear_up_behind(worker)
        in_setup = failure.phase == "setup" if failure else phase in (Phase.NOT_STARTED, Phase.SETUP, Phase.RESET)
        # A kill comes from outside; an exception of its own comes again, unless the worker had lived for a while.
        work_counts = failure is None or now - worker.started_at > LONG_LIFE_S
        has_worked = work_counts and self._did(worker, worker_spec.kind.worth_a_restart)
        loss = Loss(in_setup, failure is not None, failure is None or failure.retryable, has_worked)
        kind = worker_spec.kind
        decision = self.restarts.judge(
            worker_spec.name, loss, can_be_spared=kind.can_be_spared, is_optional=kind.is_optional
        )
        cause = _last_line(failure.traceback) if failure else what
        name, phase_name = worker_spec.name, "setup" if in_setup else "step"
        lost = WorkerLost(name, worker.generation, phase_name, f"{name} {cause}", by_exception=failure is not None)
        self._undelivered.append(lost)
        if decision.verdict is Verdict.END:
            raise RunFailed(self._cause(worker, what, decision.reason))
        if decision.verdict is Verdict.QUARANTINE:
            self._arrays["quarantined"][worker_spec.place] = 1
            self._undelivered.append(WorkerQuarantined(worker_spec.name, decision.reason))
            return
        successor = Successor(now + decision.pause_s, worker_spec, worker.generation + 1, now)
        self._successors.append(successor)

    def _clear_up_behind(self, worker: WorkerHandle) -> None:
        """Forget a worker that has ended, kill what it had started, and give back the blocks that it held."""
        del self._workers[worker.spec.worker]
        worker.close()
        kill_orphans(self._known_pids(), worker_mark(self._launcher.mark, worker.pid))
        worker.spec.kind.give_back(self._arrays, worker.spec.worker)

    def _start_successors(self) -> None:
        now = time.monotonic()
        for successor in [one for one in self._successors if one.due <= now]:
            if not self._launcher.prepare_start(uses_torch=successor.spec.kind.uses_torch):
                continue
            self._successors.remove(successor)
            try:
                self.start(successor.spec, successor.generation, successor.lost_at)
            except OSError as error:  # no descriptors, or no memory for a queue
                raise RunFailed(f"{successor.spec.name} could not be started again: {error!r}") from error
            self._arrays["restarts"][successor.spec.place] += 1
            self._undelivered.append(WorkerStarted(successor.spec.name, successor.generation))

    def _note_first_work(self) -> None:
        for worker in self.workers:
            if worker.generation and not worker.is_working and self._did(worker, worker.spec.kind.first_work):
                worker.is_working = True
                seconds = time.monotonic() - worker.lost_at
                self._undelivered.append(WorkerWorks(worker.spec.name, worker.generation, seconds))

    def _did(self, worker: WorkerHandle, event: EventCounter) -> bool:
        """It has counted such an event in its present incarnation."""
        return bool(self._arrays["event_counts"][worker.spec.place, event] > worker.event_counts[event])

    def _kill_worker(self, worker: WorkerHandle, why: str) -> None:
        """Kill a worker; its exit is seen like any other."""
        if not worker.kill_reason:
            worker.kill_reason = why
            worker.kill()

    def _cause(self, worker: WorkerHandle, what: str, reason: str) -> str:
        """Why the run ends, its last line the shortest."""
        name = worker.spec.name
        also = f", {reason}" if reason else ""
        if worker.failure:
            return f"{name} failed{also}\n{worker.failure.traceback.rstrip()}"
        if worker.kill_reason or worker.exit_code in (-signal.SIGKILL, -signal.SIGTERM):  # from outside
            return f"{name} {what}{also}"
        hint = f"; {worker.spec.kind.if_it_ends}" if worker.spec.kind.if_it_ends else ""
        return f"{name} {what}{also}{hint}; see {self._log_dir / name}.txt"

    def _stuck(self) -> list[WorkerHandle]:
        beats, silent_s = self._arrays["heartbeat"], self._clock.since
        return [
            worker
            for worker in self.workers
            if not worker.kill_reason
            and silent_s(float(beats[worker.spec.place])) > self.limits.of(self._phase(worker))
        ]

    def _known_pids(self) -> set[int]:
        """Of processes whose end is noticed elsewhere; without a forkserver, workers are children of the driver."""
        return self._launcher.pids | {worker.pid for worker in self.workers}

    def _phase(self, worker: WorkerHandle) -> Phase:
        return Phase(int(self._arrays["phase"][worker.spec.place]))


def _last_line(traceback: str) -> str:
    where = raised_at(traceback)
    return f"failed: {traceback.strip().splitlines()[-1]}" + (f" ({where})" if where else "")
