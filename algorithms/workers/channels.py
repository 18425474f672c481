"""Queues for reports and commands: low rate, any size, one per worker incarnation and direction.

A message is serialised once and travels as one record, or as several when it is large: the receiving end puts these
together again, and no reader sees part of a message. A record is a mark, which says whether more of its message
follows, and bytes of the pickled message.

A process that is killed or stopped inside a queue holds the queue's lock, and one that enters after it waits for ever.
So neither side enters while the other is inside: each side raises a flag of its own first, looks at the other's, and
comes back later when that is up. A flag that stays up after a death tells that the queue is lost; one that is down,
that all in it can still be read. A counter in shared memory tells the reader that there is something to fetch, so that
an empty queue is not touched at all.
"""

from __future__ import annotations

import itertools
import pickle
import queue
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import faster_fifo
from numpy.typing import NDArray

from appo.algorithms.messages import EXPENDABLE
from appo.utils.failpoints import failpoint

# Room for seconds of episodes and for a run's statistics; what is larger passes piece by piece. A queue's memory is
# taken when it is made: with 64 actors, 3 MB each were 192 MB.
REPORT_BYTES = 500_000
COMMAND_BYTES = 250_000
# How often either end looks for room, or for more, while a message is under way that does not fit into the queue.
BUSY_POLL_S = 0.005
_RECORDS_AT_ONCE = 64
_RECORD_OVERHEAD_BYTES = 8  # that the queue adds to each
_MORE, _LAST = b"+", b"."


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


class _Parcel(NamedTuple):
    """A message that waits, or is being sent."""

    records: deque[bytes]  # that are not in the queue yet
    size: int  # of all of them, in bytes
    num_records: int  # at the start
    is_expendable: bool

    @property
    def is_begun(self) -> bool:
        """The other end has part of it."""
        return len(self.records) < self.num_records


class Outbox:
    """The sending end. Messages that find the queue full are kept and sent later, in order."""

    def __init__(
        self,
        fifo: faster_fifo.Queue,
        sent: NDArray[Any],
        gate: Gate,
        *,
        keep: int = 10_000,
        keep_bytes: int = 32_000_000,
        may_die: bool = False,
    ) -> None:
        """The end of one process.

        Args:
            fifo: of bytes; see `make_queues`.
            sent: [1] int64 in shared memory, counted up by this end alone.
            gate: of this end.
            keep: messages that wait at most; beyond, the oldest expendable ones are dropped.
            keep_bytes: the same in bytes.
            may_die: the sender has a failpoint.
        """
        self._may_die = may_die
        self._fifo = fifo
        self._sent = sent
        self._gate = gate
        self._keep, self._keep_bytes = keep, keep_bytes
        self._record_bytes = max(2, fifo.max_size_bytes // 4 - _RECORD_OVERHEAD_BYTES)
        self._waiting: deque[_Parcel] = deque()
        self._waiting_bytes = 0
        self.dropped = 0

    @property
    def is_waiting(self) -> bool:
        """Something has found no room yet."""
        return bool(self._waiting)

    def send(self, *messages: Any) -> None:
        """Send, or keep for later. Beyond what is kept the oldest expendable messages are dropped and counted."""
        for message in messages:
            self._waiting.append(self._pack(message))
        self.flush()

    def send_ahead(self, message: Any) -> None:
        """Send before everything that waits."""
        parcel, is_begun = self._pack(message), bool(self._waiting) and self._waiting[0].is_begun
        self._waiting.insert(int(is_begun), parcel)
        self.flush()

    def flush(self) -> bool:
        """Send what is waiting; True when nothing waits any more."""
        if not self._waiting:
            return True
        if self._gate.enter():
            try:
                self._put()
            finally:
                self._gate.leave()
        self._drop_excess()
        return not self._waiting

    def flush_within(self, timeout_s: float) -> bool:
        """Try for a while; for last words, and for large ones."""
        deadline = time.monotonic() + timeout_s
        while not self.flush():
            if time.monotonic() > deadline:
                return False
            time.sleep(BUSY_POLL_S)
        return True

    def _pack(self, message: Any) -> _Parcel:
        content, step = pickle.dumps(message, pickle.HIGHEST_PROTOCOL), self._record_bytes - 1
        pieces = [content[start : start + step] for start in range(0, len(content), step)]
        records = deque(_MORE + piece for piece in pieces[:-1])
        records.append(_LAST + pieces[-1])
        size = len(content) + len(records)
        self._waiting_bytes += size
        return _Parcel(records, size, len(records), isinstance(message, EXPENDABLE))

    def _put(self) -> None:
        while records := self._fitting(self._fifo.max_size_bytes - self._fifo.data_size()):
            self._fifo.put_many(records, block=False)
            if self._may_die:
                failpoint("report-in-queue")
            self._sent[0] += len(records)
            self._forget(len(records))

    def _fitting(self, room: int) -> list[bytes]:
        """The next records, as many as fit."""
        records: list[bytes] = []
        for record in itertools.chain.from_iterable(parcel.records for parcel in self._waiting):
            room -= len(record) + _RECORD_OVERHEAD_BYTES
            if room < 0 or len(records) == _RECORDS_AT_ONCE:
                break
            records.append(record)
        return records

    def _forget(self, num_records: int) -> None:
        for _ in range(num_records):
            parcel = self._waiting[0]
            parcel.records.popleft()
            if not parcel.records:
                self._waiting_bytes -= self._waiting.popleft().size

    def _drop_excess(self) -> None:
        excess, excess_bytes = len(self._waiting) - self._keep, self._waiting_bytes - self._keep_bytes
        if excess <= 0 and excess_bytes <= 0:
            return
        kept: deque[_Parcel] = deque()
        for parcel in self._waiting:
            if (excess <= 0 and excess_bytes <= 0) or not parcel.is_expendable or parcel.is_begun:
                kept.append(parcel)
                continue
            excess, excess_bytes = excess - 1, excess_bytes - parcel.size
            self._waiting_bytes -= parcel.size
            self.dropped += 1
        self._waiting = kept


class Inbox:
    """The receiving end."""

    def __init__(self, fifo: faster_fifo.Queue, sent: NDArray[Any], gate: Gate) -> None:
        """`sent`: the counter of the sending end, in shared memory; 0 before it sends."""
        self._fifo = fifo
        self._sent = sent
        self._gate = gate
        self._received = 0
        self._begun: list[memoryview] = []  # pieces of a message that is not complete
        self._last_bytes = 0

    @property
    def is_busy(self) -> bool:
        """More is coming: part of a message has arrived, or so much that the sender may wait for room."""
        return bool(self._begun) or self._last_bytes > self._fifo.max_size_bytes // 2

    def receive(self, finish_within_s: float = 0.0) -> Sequence[Any]:
        """Every message that has arrived, without waiting; for the rest of one that is under way, for so long."""
        messages = self._take()
        deadline = time.monotonic() + finish_within_s
        while self._begun and time.monotonic() < deadline:
            time.sleep(BUSY_POLL_S)
            messages += self._take()
        return messages

    def _take(self) -> list[Any]:
        messages: list[Any] = []
        self._last_bytes = 0
        if self._received >= int(self._sent[0]) or not self._gate.enter():
            return messages
        records: list[bytes] = []
        try:
            while self._received < int(self._sent[0]):
                try:
                    some = self._fifo.get_many_nowait()  # as many as its buffer holds
                except queue.Empty:
                    break
                self._received += len(some)
                records += some
        finally:
            self._gate.leave()
        for record in records:
            self._last_bytes += len(record)
            self._begun.append(memoryview(record)[1:])
            if record.startswith(_LAST):
                messages.append(pickle.loads(b"".join(self._begun)))
                self._begun.clear()
        return messages
