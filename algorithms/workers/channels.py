"""Queues for reports and commands: low rate, any size, one per worker incarnation and direction.

A process that is killed or stopped inside a queue holds the queue's lock, and whoever enters after it waits for ever.
So nobody enters while the other side is inside: each side raises a flag of its own first, looks at the other's, and
comes back later when that is up. A flag that stays up after a death tells that the queue is lost; one that is down,
that all in it can still be read. A counter in shared memory tells the reader that there is something to fetch, so that
an empty queue is not touched at all.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence
from typing import Any

import faster_fifo
from numpy.typing import NDArray

from utils.failpoints import failpoint

# Room for seconds of episodes and for a run's statistics. A queue's memory is touched when it is made: with 64 actors,
# 3 MB each were 192 MB of the driver.
REPORT_BYTES = 500_000
COMMAND_BYTES = 250_000
PIECE = 64  # messages that are put into a queue together

log = logging.getLogger(__name__)


class Gate:
    """Lets one of two processes into a queue at a time, without a lock that could be left behind."""

    def __init__(self, mine: NDArray[Any], theirs: NDArray[Any]) -> None:
        """[1] uint8 flags in shared memory, each raised by one side alone."""
        self._mine = mine
        self._theirs = theirs

    def enter(self) -> bool:
        """Go in; False when the other side is inside, or died there."""
        self._mine[0] = 1
        if self._theirs[0]:
            self._mine[0] = 0
            return False
        return True

    def leave(self) -> None:
        """Let the other side in."""
        self._mine[0] = 0


class Outbox:
    """The sending end. Messages that find the queue full are kept and sent later, in order."""

    def __init__(
        self, fifo: faster_fifo.Queue, sent: NDArray[Any], gate: Gate, keep: int = 10_000, may_die: bool = False
    ) -> None:
        """`sent`: [1] int64 in shared memory, counted up by this end alone. `may_die`: the sender has a failpoint."""
        self._may_die = may_die
        self._fifo = fifo
        self._sent = sent
        self._gate = gate
        self._keep = keep
        self._waiting: list[Any] = []
        self.dropped = 0

    def send(self, *messages: Any) -> None:
        """Send, or keep for later. Beyond `keep` messages the oldest are dropped and counted."""
        self._waiting += messages
        self.flush()

    def flush(self) -> bool:
        """Send what is waiting; True when nothing waits any more."""
        if not self._waiting:
            return True
        if not self._gate.enter():
            self._drop_excess()
            return False
        try:
            return self._put()
        finally:
            self._gate.leave()

    def _put(self) -> bool:
        size = PIECE
        while self._waiting:
            piece = self._waiting[:size]
            try:
                self._fifo.put_many(piece, block=False)
            except queue.Full:
                if len(piece) > 1:
                    size = len(piece) // 2  # all of it or nothing: fewer may find room
                    continue
                if self._fifo.empty():  # it will never find room, and all others wait behind it
                    log.error("a %s is larger than a queue and cannot be sent", type(piece[0]).__name__)
                    del self._waiting[0]
                    self.dropped += 1
                    continue
                self._drop_excess()
                return False
            if self._may_die:
                failpoint("report-in-queue")
            self._sent[0] += len(piece)
            del self._waiting[: len(piece)]
        return True

    def flush_within(self, timeout_s: float) -> bool:
        """Try for a while; for last words."""
        deadline = time.monotonic() + timeout_s
        while not self.flush():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _drop_excess(self) -> None:
        excess = len(self._waiting) - self._keep
        if excess > 0:
            del self._waiting[:excess]
            self.dropped += excess


class Inbox:
    """The receiving end."""

    def __init__(self, fifo: faster_fifo.Queue, sent: NDArray[Any], gate: Gate) -> None:
        """`sent`: the counter of the sending end, in shared memory; 0 before it sends."""
        self._fifo = fifo
        self._sent = sent
        self._gate = gate
        self._received = 0

    def receive(self) -> Sequence[Any]:
        """Everything that has arrived; without waiting."""
        messages: list[Any] = []
        if self._received >= int(self._sent[0]) or not self._gate.enter():
            return messages
        try:
            while self._received < int(self._sent[0]):
                try:
                    some = self._fifo.get_many_nowait()  # as many as its buffer holds
                except queue.Empty:
                    break
                self._received += len(some)
                messages += some
        finally:
            self._gate.leave()
        return messages
