"""The life of a worker process: subclasses say what it does, `main` says how it lives and ends."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import faster_fifo

from algorithms.memory.counters import Phase, Tally, WorkerCounters
from algorithms.memory.layout import SharedArrays, Sizes
from algorithms.memory.segment import Segment
from algorithms.memory.weights import WeightsBuffer
from algorithms.messages import Failed, Ready, Report
from algorithms.workers.channels import Gate, Inbox, Outbox
from algorithms.workers.doorbells import DescriptorParcel, Doorbell, SharedDescriptor
from algorithms.workers.placement import Placement
from utils import processes
from utils.files import cut_text
from utils.signals import leave_to_main_process

# How long a worker may sleep through a bell that was missed, for whatever reason, or a request to stop.
LONGEST_SLEEP_S = 0.1
# How long a worker whose reports find no room waits for the driver: with what it restored, and with its last words.
FIRST_REPORTS_S, LAST_REPORTS_S = 10.0, 1.0
EXIT_OK = 0
EXIT_FAILED = 1
DUMP_STACKS = signal.SIGQUIT  # makes a worker write the stacks of all its threads into its log

log = logging.getLogger(__name__)


@dataclass
class SharedMemoryHandle:
    """What a process needs to map the shared memory of a run; travels with the arguments of its start."""

    sizes: Sizes
    segment: SharedDescriptor
    segment_size: int
    weights: list[SharedDescriptor]  # per policy
    snapshots: list[SharedDescriptor]  # per policy

    @classmethod
    def of(
        cls, arrays: SharedArrays, weights: list[WeightsBuffer], snapshots: list[WeightsBuffer]
    ) -> SharedMemoryHandle:
        """The handle of memory that this process has mapped."""
        segment = arrays.segment
        return cls(
            arrays.sizes,
            SharedDescriptor(segment.descriptor),
            segment.size,
            [SharedDescriptor(buffer.descriptor) for buffer in weights],
            [SharedDescriptor(buffer.descriptor) for buffer in snapshots],
        )

    def map(self) -> SharedArrays:
        """The shared arrays, in the process that received the handle."""
        return SharedArrays(self.sizes, Segment(self.segment.descriptor, self.segment_size))

    def open_weights(self, policy: int) -> WeightsBuffer:
        """The published weights of a policy, in the process that received the handle."""
        return WeightsBuffer(self.weights[policy].descriptor)

    def open_snapshot(self, policy: int) -> WeightsBuffer:
        """What a policy's next learner would go on from, in the process that received the handle."""
        return WeightsBuffer(self.snapshots[policy].descriptor)


class WorkerBells(NamedTuple):
    """The doorbells that one worker waits for and rings."""

    own: Doorbell
    actors: dict[int, Doorbell]  # index -> those whom the worker hands something to
    policy_workers: list[Doorbell]
    learners: list[Doorbell]


class PackedBells:
    """`WorkerBells` on their way to their worker."""

    def __init__(self, bells: WorkerBells) -> None:
        """`close` once the worker has been started."""
        each = [bells.own, *bells.actors.values(), *bells.policy_workers, *bells.learners]
        self._per_bell = len(bells.own.descriptors)
        self._actors = list(bells.actors)
        self._num_policy_workers = len(bells.policy_workers)
        self.parcel = DescriptorParcel([descriptor for bell in each for descriptor in bell.descriptors])

    def unpack(self) -> WorkerBells:
        """The bells, in the process of the worker."""
        found, step = self.parcel.unpack(), self._per_bell
        own, *others = (Doorbell(found[start : start + step]) for start in range(0, len(found), step))
        num_actors, last = len(self._actors), len(self._actors) + self._num_policy_workers
        actors = dict(zip(self._actors, others[:num_actors], strict=True))
        return WorkerBells(own, actors, others[num_actors:last], others[last:])


@dataclass
class Bells:
    """Every doorbell of a run."""

    actors: list[Doorbell]
    policy_workers: list[list[Doorbell]]  # per policy
    learners: list[Doorbell]  # per policy

    def needed_by(self, process: int) -> WorkerBells:
        """The bells of one worker. Processes are numbered actors first, then policy workers, then learners."""
        per_policy = len(self.policy_workers[0])
        if process < len(self.actors):
            serving = [workers[process % per_policy] for workers in self.policy_workers]
            return WorkerBells(self.actors[process], {}, serving, self.learners)
        policy, index = divmod(process - len(self.actors), per_policy)
        if policy < len(self.policy_workers):
            served = {actor: self.actors[actor] for actor in range(index, len(self.actors), per_policy)}
            return WorkerBells(self.policy_workers[policy][index], served, [], [])
        policy = process - len(self.actors) - per_policy * len(self.policy_workers)
        return WorkerBells(self.learners[policy], dict(enumerate(self.actors)), self.policy_workers[policy], [])


@dataclass
class WorkerStart:
    """What every worker is given at its start, whatever its kind."""

    name: str  # as `ps`, the log and every message show it
    process: int  # its place in the shared counters
    generation: int
    memory: SharedMemoryHandle
    bells: PackedBells
    reports: faster_fifo.Queue
    commands: faster_fifo.Queue
    placement: Placement
    log_path: Path
    process_group: int
    mark: str  # of the run, see `guardian`
    driver: int  # pid of the process that the worker lives for
    parent: int = 0  # pid of the process that forks workers; 0: whoever is the parent
    log_level: int = logging.INFO
    search_path: list[str] = field(default_factory=list)  # where a user's own modules lie


class Worker:
    """One process. Subclasses fill in `setup`, `step` and `teardown`; nobody overrides `main`."""

    def __init__(self, start: WorkerStart, job: Any) -> None:
        """Called in the new process, before `setup`."""
        self.start = start
        self.job = job
        self.bells = start.bells.unpack()
        self.arrays = start.memory.map()
        self.counters = WorkerCounters(self.arrays, start.process)
        reports, commands = gates(self.arrays, start.process, "worker_in_queue", "driver_in_queue")
        # The driver's commands go without a failpoint: it is not the one that is replaced.
        self.reports = Outbox(start.reports, self.counters.reports_sent, reports, may_die=True)
        self.commands = Inbox(start.commands, self.counters.commands_sent, commands)

    def setup(self) -> None:
        """Build what the work needs. An exception here is not retried for ever."""

    def step(self) -> None:
        """One round of work; returns at least every tenth of a second, so that a stop is noticed."""
        raise AssertionError(f"{type(self).__name__} does not say what it does")

    def teardown(self) -> None:
        """Give back what `setup` took; it may not have come to its end."""

    def report(self, *reports: Report) -> None:
        """Tell the driver."""
        dropped = self.reports.dropped
        self.reports.send(*reports)
        self.counters.count(Tally.REPORTS_DROPPED, self.reports.dropped - dropped)

    def main(self) -> None:
        """Process entry point. Never returns: exits with EXIT_OK or EXIT_FAILED."""
        phase, code = "setup", EXIT_OK
        try:
            self.counters.enter(Phase.SETUP)
            self.setup()
            self.report(Ready(self.start.name))
            self.reports.flush_within(FIRST_REPORTS_S)
            gc.freeze()  # what setup built lives as long as the process: the collector need not look at it again
            phase = "step"
            self.counters.restart_clock()
            self.counters.enter(Phase.STEP)
            while not self.counters.stop_requested:
                self.counters.beat()
                self.step()
                if self.reports.is_waiting:
                    self.report()
        except BaseException as error:  # an environment that calls sys.exit, or cancels what is no task, has failed too
            code = EXIT_FAILED
            trace = cut_text(traceback.format_exc())
            log.error("%s failed in %s\n%s", self.start.name, phase, trace)
            self.reports.send_ahead(Failed(self.start.name, phase, trace, getattr(error, "is_final", False)))
        finally:
            self._end(code)

    def _end(self, code: int) -> None:
        self.counters.enter(Phase.TEARDOWN)
        self.reports.flush_within(LAST_REPORTS_S)  # before `teardown`, in which an environment may hang
        try:
            self.teardown()
        except Exception:
            log.exception("%s failed in teardown", self.start.name)
            code = code or EXIT_FAILED
        self.reports.flush_within(LAST_REPORTS_S)
        self.counters.enter(Phase.ENDED)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # interpreter shutdown of a process with native threads may hang or crash; nothing is left to do


def gates(arrays: SharedArrays, process: int, mine: str, theirs: str) -> tuple[Gate, Gate]:
    """The gates of a process's report and command queue, for the side whose flags are in the array `mine`."""
    mine_flags, their_flags = arrays[mine][process], arrays[theirs][process]
    return Gate(mine_flags[:1], their_flags[:1]), Gate(mine_flags[1:], their_flags[1:])


def run_worker(worker_type: str, start: WorkerStart, job: Any) -> None:
    """Entry point of every worker process: become the worker that `start` describes and run its class."""
    leave_to_main_process()
    processes.die_with_parent(start.parent or os.getppid(), heir=start.driver)
    processes.join_group(start.process_group)
    processes.redirect_output(start.log_path)
    processes.set_title(start.name)
    _held = processes.mark_descendants(processes.worker_mark(start.mark, os.getpid()))
    processes.pin_to_cores(start.placement.cores)
    processes.lower_priority(start.placement.niceness)
    if start.placement.gpu is not None:
        processes.show_one_gpu(start.placement.gpu)
    faulthandler.enable()
    faulthandler.register(DUMP_STACKS, all_threads=True)
    logging.basicConfig(level=start.log_level, force=True, format=f"%(asctime)s {start.name} %(levelname)s %(message)s")
    for folder in start.search_path:
        if folder not in sys.path:
            sys.path.append(folder)
    module, _, name = worker_type.partition(":")
    getattr(importlib.import_module(module), name)(start, job).main()
