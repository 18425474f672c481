"""The supervisor: owns every child of the driver, notices at once when one dies or hangs, and ends them all.

Children are forked by a server that was started before torch, threads or CUDA were touched. The guardian, a tiny
process that outlives the driver by a moment, takes the whole process group down if the driver is killed.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, forkserver
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
from algorithms.workers.placement import Placement
from algorithms.workers.worker import DUMP_STACKS, Bells, SharedMemoryHandle, WorkerStart, run_worker
from envs.api import UnsupportedSpaceError
from utils import guardian, processes
from utils.options import ConfigError

# Every child needs these; imported once in the server, they cost a child neither time nor memory.
PRELOAD = ["numpy", "gymnasium", "faster_fifo", "setproctitle", "threadpoolctl", "algorithms.workers.actor_worker"]

# A stuck worker gets this long to write its stacks down before it is killed.
STACK_DUMP_S = 0.3

# How soon a signal is noticed while the environment is being looked at.
CANCEL_CHECK_S = 0.1

# The exit code of a child whose forkserver is gone, and how long that may still look alive after its pipes closed.
EXIT_LOST = 255
FORKSERVER_EXIT_S = 0.1

log = logging.getLogger(__name__)


class RunFailed(RuntimeError):
    """The run cannot go on. The message ends with the cause."""


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


class LaunchPad:
    """The server that forks children and the guardian that outlives us; started before anything else."""

    def __init__(self, search_path: list[str]) -> None:
        """Start both. `search_path`: folders of the user's own modules."""
        self.search_path = search_path
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.adopt_orphans()
        processes.allow_many_descriptors()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        forkserver.ensure_running()
        assert self._guardian.stdout is not None
        self.process_group = int(self._guardian.stdout.readline())

    @property
    def pids(self) -> set[int]:
        """Children of the driver that are no workers."""
        server: Any = forkserver._forkserver
        tracker: Any = multiprocessing.resource_tracker._resource_tracker
        return {pid for pid in (self._guardian.pid, server._forkserver_pid, tracker._pid) if pid}

    def dead(self) -> str:
        """The name of a helper process that has ended, empty while all live."""
        if self._guardian.poll() is not None:
            return "appo guardian"
        server: Any = forkserver._forkserver
        pid = server._forkserver_pid
        return "" if pid and _is_alive(pid) else "the forkserver"

    def run_once(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_s: float,
        is_cancelled: Callable[[], bool],
    ) -> Any:
        """The result of a function that runs in a process of its own and may not take the driver with it.

        Args:
            function: importable by its name.
            arguments: of the function; they travel by pickle.
            timeout_s: how long it may take.
            is_cancelled: looked at now and then; the result is None when it holds.

        Raises:
            RunFailed: the process died, hung, or the function raised; with its traceback.
            ConfigError: the function raised it, or refused a space.
        """
        receiver, sender = self.context.Pipe(duplex=False)
        once = (sender, self.process_group, self.search_path, function, arguments)
        child = self.context.Process(target=_run_once, args=once, name="appo probe")
        child.start()
        sender.close()
        name = getattr(function, "__name__", str(function))
        try:
            deadline = time.monotonic() + timeout_s
            while not receiver.poll(CANCEL_CHECK_S):
                if is_cancelled():
                    return None
                if time.monotonic() > deadline:
                    raise RunFailed(f"{name} did not finish within {timeout_s:g} s")
            result, refusal, failure = receiver.recv()
        except EOFError:
            child.join(1.0)
            raise RunFailed(f"{name} {describe_exit(child.exitcode)}") from None
        finally:
            child.kill()
            child.join(1.0)
        if refusal:
            raise ConfigError(refusal)
        if failure:
            raise RunFailed(failure)
        return result

    def kill_everything(self) -> None:
        """Nothing of ours is left after this call."""
        guardian_process = self._guardian
        assert guardian_process.stdin is not None and guardian_process.stdout is not None
        guardian_process.stdin.close()  # the guardian kills its whole group, itself included
        guardian_process.wait()
        guardian_process.stdout.close()
        forkserver._forkserver._stop()
        processes.kill_strangers(self.pids)


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

    def start(self, recipe: Recipe, generation: int = 0) -> Managed:
        """Start one incarnation of a worker."""
        reports = faster_fifo.Queue(max_size_bytes=channels.REPORT_BYTES)
        commands = faster_fifo.Queue(max_size_bytes=channels.COMMAND_BYTES)
        place = slice(recipe.process, recipe.process + 1)
        sent_reports, sent_commands = self._arrays["reports_sent"][place], self._arrays["commands_sent"][place]
        self._arrays["stop"][place] = 0
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
        reports = self._drain(ended)
        if any(worker.process.exitcode == EXIT_LOST for worker in ended):
            time.sleep(FORKSERVER_EXIT_S)
        if dead := self._pad.dead():  # before all others, which die of it
            raise RunFailed(f"{dead} was killed")
        for worker in ended:
            self._replace_or_raise(worker, describe_exit(worker.process.exitcode))
        for worker in self._stuck():
            self._dump_stacks(worker)
            phase = self._phase(worker).name.lower()
            limit_s = self.limits.of(self._phase(worker))
            self._replace_or_raise(worker, f"showed no sign of life for {limit_s:g} s in {phase}")
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
        os.kill(worker.pid, DUMP_STACKS)
        time.sleep(STACK_DUMP_S)
        log.error("%s is stuck; its stacks are at the end of its log", worker.recipe.name)

    def _ring_all(self) -> None:
        bells = self._bells
        for bell in [*bells.actors, *bells.learners, *(bell for group in bells.policy_workers for bell in group)]:
            bell.ring()


def _run_once(
    sender: Any, group: int, search_path: list[str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.die_with_parent(os.getppid())
    processes.join_group(group)
    processes.set_title("appo probe")
    processes.redirect_output(Path(os.devnull))
    sys.path += [folder for folder in search_path if folder not in sys.path]
    result, refusal, failure = None, "", ""
    try:
        result = function(*arguments)
    except (ConfigError, UnsupportedSpaceError) as error:
        refusal = str(error)
    except Exception as error:
        failure = "".join(traceback.format_exception(error))
    sender.send((result, refusal, failure))
    sender.close()
    os._exit(0)


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "did not end"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (kill -9, or the system ran out of memory)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
