"""The life of a worker process: subclasses define its work, `main` its start, its loop and its end."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faster_fifo

from appo.algorithms.memory.counters import EventCounter, Phase, WorkerCounters
from appo.algorithms.memory.layout import SharedArrays, Sizes
from appo.algorithms.memory.weights import PolicyBuffers, WeightsBuffer
from appo.algorithms.messages import Failed, Ready, Report
from appo.algorithms.workers.channels import Gate, Inbox, Outbox
from appo.algorithms.workers.placement import Placement
from appo.algorithms.workers.roster import ACTOR, KINDS, Roster, WorkerId
from appo.utils import processes
from appo.utils.doorbells import DescriptorParcel, Doorbell, SharedDescriptor
from appo.utils.files import cut_text
from appo.utils.segment import Segment
from appo.utils.signals import leave_to_main_process

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

    def open_buffers(self, policy: int) -> PolicyBuffers:
        """The published weights and the snapshot of a policy, in the process that received the handle."""
        return PolicyBuffers(self.open_weights(policy), self.open_snapshot(policy))


class WorkerBells:
    """The doorbells that one worker waits for and rings."""

    def __init__(self, own: Doorbell, others: Mapping[WorkerId, Doorbell]) -> None:
        """`others`: those that it rings."""
        self.own = own
        self.actors = {worker.number: bell for worker, bell in others.items() if worker.kind == ACTOR}
        self._others = others

    def of_kind(self, kind: str) -> list[Doorbell]:
        """Those of the workers of a kind, in the order of the roster."""
        return [bell for worker, bell in self._others.items() if worker.kind == kind]

    def by_policy(self, kind: str, policies: int) -> list[Doorbell]:
        """One doorbell per policy: its worker's. Empty if no worker of that kind is rung."""
        of_first = {worker.policy: bell for worker, bell in self._others.items() if worker.kind == kind}
        if not of_first:
            return []
        return [of_first[max(first for first in of_first if first <= policy)] for policy in range(policies)]


class PackedBells:
    """`WorkerBells` on their way to their worker."""

    def __init__(self, own: Doorbell, others: Mapping[WorkerId, Doorbell]) -> None:
        """`close` the parcel once the worker has been started."""
        self._per_bell = len(own.descriptors)
        self._others = tuple(others)
        bells = [own, *others.values()]
        self.parcel = DescriptorParcel([descriptor for bell in bells for descriptor in bell.descriptors])

    def unpack(self) -> WorkerBells:
        """The bells, in the process of the worker."""
        found, step = self.parcel.unpack(), self._per_bell
        own, *others = (Doorbell(found[start : start + step]) for start in range(0, len(found), step))
        return WorkerBells(own, dict(zip(self._others, others, strict=True)))


class Bells:
    """Every doorbell of a run."""

    def __init__(self, roster: Roster) -> None:
        """One per worker."""
        self.roster = roster
        self._bells = {worker: Doorbell() for worker in roster.ids}

    def of(self, worker: WorkerId) -> Doorbell:
        """The bell that a worker waits for."""
        return self._bells[worker]

    def packed_for(self, worker: WorkerId) -> PackedBells:
        """The bells of one worker, for its start."""
        rung = KINDS[worker.kind].rings(self.roster, worker)
        return PackedBells(self._bells[worker], {other: self._bells[other] for other in rung})

    def ring_all(self) -> None:
        """Wake every worker."""
        for bell in self._bells.values():
            bell.ring()


@dataclass
class WorkerStart:
    """What every worker is given at its start, whatever its kind."""

    name: str  # as `ps`, the log and every message show it
    place: int  # in the shared counters
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
    parent: int = 0  # pid of the process that forks workers; 0: the actual parent
    log_level: int = logging.INFO
    search_path: list[str] = field(default_factory=list)  # where a user's own modules lie


class Worker:
    """One process. Subclasses fill in `setup`, `step` and `teardown`, and never override `main`."""

    def __init__(self, start: WorkerStart, job: Any) -> None:
        """Called in the new process, before `setup`."""
        self.start = start
        self.job = job
        self.bells = start.bells.unpack()
        self.arrays = start.memory.map()
        self.counters = WorkerCounters(self.arrays, start.place)
        reports, commands = gates(self.arrays, start.place, "worker_in_queue", "driver_in_queue")
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
        self.counters.count(EventCounter.REPORTS_DROPPED, self.reports.dropped - dropped)

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
            self.reports.send_ahead(Failed(self.start.name, phase, trace, getattr(error, "retryable", True)))
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


def gates(arrays: SharedArrays, place: int, mine: str, theirs: str) -> tuple[Gate, Gate]:
    """The gates of a worker's report and command queue, for the side whose flags are in the array `mine`."""
    mine_flags, their_flags = arrays[mine][place], arrays[theirs][place]
    return Gate(mine_flags[:1], their_flags[:1]), Gate(mine_flags[1:], their_flags[1:])


def run_worker(worker_class: str, start: WorkerStart, job: Any) -> None:
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
    module, _, name = worker_class.partition(":")
    getattr(importlib.import_module(module), name)(start, job).main()
