"""The supervisor: owns every worker, notices at once when one dies or hangs, and ends them all."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import faster_fifo
import psutil

from algorithms.memory.counters import Phase
from algorithms.memory.layout import SharedArrays
from algorithms.messages import Command, Failed, Report
from algorithms.workers import channels
from algorithms.workers.channels import Inbox, Outbox
from algorithms.workers.launch_pad import LaunchPad, RunFailed, describe_exit
from algorithms.workers.placement import Placement
from algorithms.workers.worker import DUMP_STACKS, Bells, SharedMemoryHandle, WorkerStart, run_worker

# A stuck worker gets this long to write its stacks down before it is killed.
STACK_DUMP_S = 0.3


# The exit code of a child whose forkserver is gone, and how long that may still look alive after its pipes closed.
EXIT_LOST = 255
FORKSERVER_EXIT_S = 0.1

log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """How long a worker may show no sign of life, in seconds, by what it is doing."""

    setup_s: float = 300.0
    reset_s: float = 120.0
    step_s: float = 60.0

    def of(self, phase: Phase) -> float:
        """The limit that holds now."""
        if phase in (Phase.NOT_STARTED, Phase.SETUP, Phase.TEARDOWN, Phase.ENDED):
            return self.setup_s
        return self.reset_s if phase is Phase.RESET else self.step_s


class Recipe(NamedTuple):
    """How to start one worker, the first time and again."""

    name: str
    process: int  # place in the shared counters
    worker_type: str  # "package.module:Class", so that the driver need not import what the worker does
    job: Any
    placement: Placement


@dataclass
class Managed:
    """One worker and what the driver holds of its present incarnation."""

    recipe: Recipe
    generation: int
    process: BaseProcess
    inbox: Inbox
    outbox: Outbox
    last_words: str = ""  # traceback of its Failed report

    @property
    def pid(self) -> int:
        """Process id of the present incarnation."""
        return self.process.pid or 0


class Supervisor:
    """Starts workers, collects their reports, and ends the run when one of them ends by itself."""

    def __init__(
        self, pad: LaunchPad, arrays: SharedArrays, memory: SharedMemoryHandle, bells: Bells, log_dir: Path
    ) -> None:
        """Owns nothing yet. `log_dir`: one file per worker."""
        self.limits = Limits()
        self.log_level = logging.INFO
        self._pad = pad
        self._arrays = arrays
        self._memory = memory
        self._bells = bells
        self._log_dir = log_dir
        self._workers: dict[str, Managed] = {}
        self._undelivered: list[Report] = []

    def start(self, recipe: Recipe, generation: int = 0) -> Managed:
        """Start one incarnation of a worker."""
        reports = faster_fifo.Queue(max_size_bytes=channels.REPORT_BYTES)
        commands = faster_fifo.Queue(max_size_bytes=channels.COMMAND_BYTES)
        place = slice(recipe.process, recipe.process + 1)
        sent_reports, sent_commands = self._arrays["reports_sent"][place], self._arrays["commands_sent"][place]
        for counter in (sent_reports, sent_commands, self._arrays["stop"][place]):
            counter[0] = 0  # what the incarnation before sent is gone with its queues
        self._arrays["phase"][place] = Phase.NOT_STARTED
        self._arrays["heartbeat"][place] = time.monotonic()
        start = WorkerStart(
            name=recipe.name,
            process=recipe.process,
            generation=generation,
            memory=self._memory,
            bells=self._bells,
            reports=reports,
            commands=commands,
            placement=recipe.placement,
            log_path=self._log_dir / f"{recipe.name}.txt",
            process_group=self._pad.process_group,
            log_level=self.log_level,
            search_path=self._pad.search_path,
        )
        arguments = (recipe.worker_type, start, recipe.job)
        process = self._pad.context.Process(target=run_worker, args=arguments, name=recipe.name)
        inbox, outbox = Inbox(reports, sent_reports), Outbox(commands, sent_commands)
        process.start()
        managed = Managed(recipe, generation, process, inbox, outbox)
        self._workers[recipe.name] = managed
        return managed

    @property
    def workers(self) -> list[Managed]:
        """Every worker."""
        return list(self._workers.values())

    def send(self, name: str, command: Command) -> bool:
        """Give a worker a command; False when there is no such worker any more."""
        if name not in self._workers:
            return False
        self._workers[name].outbox.send(command)
        return True

    def state(self) -> dict[str, Any]:
        """Nothing: processes run on while a checkpoint is written, so where their random numbers stand means little."""
        return {}

    def measure_memory(self) -> None:
        """Note how much memory every worker occupies."""
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                resident = psutil.Process(worker.pid).memory_info().rss
                self._arrays["memory_mb"][worker.recipe.process] = resident / 1e6

    def poll(self, timeout_s: float) -> list[Report]:
        """Collect the reports that arrived.

        Raises:
            RunFailed: a worker has ended or hangs; the message names it and ends with its traceback if it had one.
        """
        ended = self._wait_for_exits(timeout_s)
        # Exits are read before the queues are emptied: a failing worker flushes its Failed report before it exits,
        # so a report that exists is always seen together with the exit.
        self._undelivered += self._drain(ended)  # kept for the next call when this one raises
        if any(worker.process.exitcode == EXIT_LOST for worker in ended):
            time.sleep(FORKSERVER_EXIT_S)
        if dead := self._pad.dead():  # before all others, which die of it
            raise RunFailed(f"{dead} was killed")
        for worker in ended:
            self._replace_or_raise(worker, describe_exit(worker.process.exitcode))
        for worker in self._stuck():
            phase = self._phase(worker).name.lower()
            limit_s = self.limits.of(self._phase(worker))
            self._dump_stacks(worker)
            worker.process.kill()
            self._replace_or_raise(worker, f"showed no sign of life for {limit_s:g} s in {phase}")
        reports, self._undelivered = self._undelivered, []
        return reports

    def stop_sampling(self, timeout_s: float) -> list[Report]:
        """End the actors, so that what is saved next counts every frame there will ever be; their last reports."""
        actors = self._arrays.sizes.actors
        return self._retire([worker for worker in self.workers if worker.recipe.process < actors], timeout_s)

    def stop(self, timeout_s: float) -> list[Report]:
        """Ask every worker to end, wait, and kill what is left; their last reports."""
        return self._retire(self.workers, timeout_s)

    def _retire(self, retiring: list[Managed], timeout_s: float) -> list[Report]:
        deadline = time.monotonic() + timeout_s
        for worker in retiring:
            self._arrays["stop"][worker.recipe.process] = 1
        self._ring_all()
        while (living := [worker for worker in retiring if worker.process.is_alive()]) and time.monotonic() < deadline:
            connection.wait([worker.process.sentinel for worker in living], timeout=0.05)
        for worker in living:
            log.warning("%s did not end within %g s and is killed", worker.recipe.name, timeout_s)
            worker.process.kill()
        for worker in retiring:
            worker.process.join(2.0)
        reports = self._drain(retiring)
        for worker in retiring:
            del self._workers[worker.recipe.name]
        return reports

    def _wait_for_exits(self, timeout_s: float) -> list[Managed]:
        by_sentinel = {worker.process.sentinel: worker for worker in self.workers}
        ready = connection.wait(list(by_sentinel), timeout=timeout_s)
        ended = [by_sentinel[sentinel] for sentinel in ready if isinstance(sentinel, int)]
        for worker in ended:
            worker.process.join(1.0)
        return ended

    def _drain(self, ended: list[Managed]) -> list[Report]:
        reports: list[Report] = []
        for worker in self.workers:
            killed = worker in ended and (worker.process.exitcode or 0) < 0
            if killed:
                continue  # it may have died inside the queue, where we would wait for it for ever
            for report in worker.inbox.receive():
                if isinstance(report, Failed):
                    worker.last_words = report.traceback
                else:
                    reports.append(report)
        return reports

    def _replace_or_raise(self, worker: Managed, what: str) -> None:
        del self._workers[worker.recipe.name]  # the others may still be asked to save what they have
        cause = f"{worker.recipe.name} {what}"
        if "by itself" in what:
            cause += f"; see {self._log_dir / worker.recipe.name}.txt"
        if worker.last_words:
            cause = f"{worker.recipe.name} failed\n{worker.last_words.rstrip()}"
        raise RunFailed(cause)

    def _stuck(self) -> list[Managed]:
        now = time.monotonic()
        beats = self._arrays["heartbeat"]
        return [
            worker
            for worker in self.workers
            if now - float(beats[worker.recipe.process]) > self.limits.of(self._phase(worker))
        ]

    def _phase(self, worker: Managed) -> Phase:
        return Phase(int(self._arrays["phase"][worker.recipe.process]))

    def _dump_stacks(self, worker: Managed) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended just now
            os.kill(worker.pid, DUMP_STACKS)
        time.sleep(STACK_DUMP_S)
        log.error("%s is stuck; its stacks are at the end of its log", worker.recipe.name)

    def _ring_all(self) -> None:
        bells = self._bells
        for bell in [*bells.actors, *bells.learners, *(bell for group in bells.policy_workers for bell in group)]:
            bell.ring()
