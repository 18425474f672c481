"""Hands the learner one full batch after the other, prepared ahead by a thread where that is allowed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from appo.algorithms.memory.collate import BatchAssembler, Staging
from appo.algorithms.memory.counters import EventCounter, Timer, WorkerCounters
from appo.algorithms.workers.release_pacer import ReleasePacer
from appo.algorithms.workers.worker import LONGEST_SLEEP_S
from appo.utils.doorbells import Doorbell


class BatchPrefetcher:
    """Full batches on demand. A batch belongs to the caller from `next` until `done`."""

    def __init__(
        self,
        assembler: BatchAssembler,
        stagings: list[Staging],
        bell: Doorbell,
        ring_actors: Callable[[set[int]], None],
        counters: WorkerCounters,
        pacer: ReleasePacer | None = None,
    ) -> None:
        """With two stagings a thread fills one while the caller trains on the other; with one the caller fills it.

        `pacer`: decides when blocks are given back; with one staging only, and `between_minibatches` has to be called.
        """
        assert pacer is None or len(stagings) == 1, "a prefetcher with a pacer prepares nothing ahead"
        self._pacer = pacer
        self._assembler = assembler
        self._bell = bell
        self._ring_actors = ring_actors
        self._counters = counters
        self._staging = stagings[0]
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stop = threading.Event()
        if len(stagings) > 1:
            self._empty: queue.SimpleQueue[Staging | None] = queue.SimpleQueue()
            self._full: queue.SimpleQueue[Staging] = queue.SimpleQueue()
            for staging in stagings:
                self._empty.put(staging)
            self._thread = threading.Thread(target=self._fill_ahead, name="batch prefetcher", daemon=True)
            self._thread.start()

    def next(self, timeout_s: float) -> Staging | None:
        """A full batch, or None when none became full in time.

        Raises:
            RuntimeError: the thread that prepares batches failed; its error is the cause.
        """
        if self._thread is not None:
            return self._next_of_thread(timeout_s)
        deadline = time.monotonic() + timeout_s
        while not self._fill(self._staging):
            if (left_s := deadline - time.monotonic()) <= 0:
                return None
            self._bell.wait(min(left_s, LONGEST_SLEEP_S))
            self._counters.lap(Timer.LEARNER_WAIT_BATCH)
            if self._pacer is not None and self._pacer.is_overdue():
                self._assembler.holds = False
                self._release_held()
        if self._pacer is not None:
            self._pacer.begin(is_released=not self._assembler.holds)
            self.between_minibatches()  # collecting may have become slower than training since these blocks were kept
        return self._staging

    def between_minibatches(self) -> None:
        """Give blocks back when it is time; to be called while the caller trains, as often as it can."""
        pacer = self._pacer
        if pacer is None:
            return
        if pacer.is_due():
            self._release_held()
            pacer.release()
        elif pacer.expects and self._assembler.is_complete():
            pacer.full()

    def done(self, staging: Staging) -> None:
        """The batch may be overwritten, and the blocks behind it given back."""
        if self._thread is not None:
            self._empty.put(staging)
            return  # the assembler is the thread's
        self._release_held()
        if self._pacer is not None:
            self._pacer.end()
            self._assembler.holds = self._pacer.holds

    def drop_ready(self, timeout_s: float) -> None:
        """Give every complete block back unseen: sampling without a learner."""
        blocks = self._assembler.blocks
        actors = set()
        for address in blocks.ready():
            blocks.take(address)
            blocks.release(address)
            actors.add(address.actor)
        self._ring_actors(actors)
        self._bell.wait(timeout_s)

    def close(self) -> None:
        """End the thread; may be called again."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._empty.put(None)  # it may be waiting for an empty one
            self._bell.ring()
            self._thread.join(timeout=2.0)

    def _next_of_thread(self, timeout_s: float) -> Staging | None:
        try:
            staging = self._full.get(timeout=timeout_s)
        except queue.Empty:
            if self._error is not None:
                raise RuntimeError("the thread that prepares batches failed") from self._error
            staging = None
        self._counters.lap(Timer.LEARNER_WAIT_BATCH)
        return staging

    def _fill_ahead(self) -> None:
        try:
            while not self._stop.is_set():
                if (staging := self._empty.get()) is None:
                    return
                while not self._fill(staging):
                    self._bell.wait(LONGEST_SLEEP_S)
                    if self._stop.is_set():
                        return
                self._full.put(staging)
        except BaseException as error:
            self._error = error

    def _release_held(self) -> None:
        self._assembler.release_held()
        self._tell_actors()

    def _fill(self, staging: Staging) -> bool:
        began = time.perf_counter()
        is_full = self._assembler.fill(staging)
        if self._thread is None:
            self._counters.lap(Timer.LEARNER_COLLATE)
        else:
            self._counters.add_time(Timer.LEARNER_COLLATE_AHEAD, time.perf_counter() - began)
        self._tell_actors()
        return is_full

    def _tell_actors(self) -> None:
        released = self._assembler.pop_released()
        if released:
            self._counters.count(EventCounter.LEARNER_BLOCKS, len(released))
            self._ring_actors(set(released))
