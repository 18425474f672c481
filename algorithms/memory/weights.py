"""Published weights of one policy: a flat buffer in two halves and a version, without a lock.

The writer fills the half that no reader was sent to, then points the header at it. A reader copies the half that the
header names and looks again: if the writer has meanwhile begun to write that half, the copy is repeated.

The memory starts as a header and is grown by the learner, the only process that has to know how large a model is.
Readers do not map the halves but read them as the file that they are: a copy takes twice as long, and a model of 11 MB
does not count with its 22 MB in every process that acts.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from algorithms.memory.segment import Segment, aligned

_HEADER = 64
_PUBLISHED, _WRITING, _COUNT = 0, 1, 2  # int64 cells of the header
_VERSION = 4  # and 5: policy version of each half


class PublishedVersion(NamedTuple):
    """What a reader got."""

    publication: int  # counts every publication, also several of one policy version
    version: int  # policy version: optimizer steps behind the weights


class WeightsBuffer:
    """One policy's published weights; one writer, any number of readers."""

    def __init__(self, descriptor: int) -> None:
        """Open the memory made by `create`; takes over the descriptor."""
        self._header_segment = Segment(descriptor, _HEADER)
        self._header = self._header_segment.array(0, (8,), "i8")
        self._halves: NDArray[np.float32] | None = None

    @classmethod
    def create(cls, policy: int) -> WeightsBuffer:
        """Memory for one policy that has not published yet."""
        return cls(Segment.create(f"appo-weights-{policy}", _HEADER).descriptor)

    @property
    def descriptor(self) -> int:
        """The file that the memory belongs to."""
        return self._header_segment.descriptor

    @property
    def publication(self) -> int:
        """How often weights were published; 0 before the first time."""
        return int(self._header[_PUBLISHED])

    @property
    def version(self) -> int:
        """Policy version of the newest publication."""
        return int(self._header[_VERSION + self.publication % 2])

    def publish(self, flat: NDArray[np.float32], version: int) -> None:
        """Make `flat` [n] the newest weights.

        Raises:
            ValueError: an earlier publication had another size.
        """
        if self._header[_COUNT] == 0:
            os.ftruncate(self.descriptor, _HEADER + 2 * aligned(flat.nbytes))
            self._header[_COUNT] = flat.size
        halves = self._map(flat.size)
        publication = int(self._header[_PUBLISHED]) + 1
        self._header[_WRITING] = publication
        halves[publication % 2, : flat.size] = flat
        self._header[_VERSION + publication % 2] = version
        self._header[_PUBLISHED] = publication

    def read_into(self, flat: NDArray[np.float32]) -> PublishedVersion:
        """Copy the newest weights into `flat` [n].

        Raises:
            ValueError: nothing was published yet, or a model of another size was.
        """
        self._require(flat.size)
        while True:
            publication = self.publication
            self._read_half(publication % 2, flat)
            version = int(self._header[_VERSION + publication % 2])
            # The half just read is overwritten by publication + 2: not begun means that the copy is whole.
            if int(self._header[_WRITING]) <= publication + 1:
                return PublishedVersion(publication, version)

    def _read_half(self, half: int, flat: NDArray[np.float32]) -> None:
        unread = flat.data.cast("B")
        offset = _HEADER + half * aligned(flat.nbytes)
        while len(unread):
            count = os.preadv(self.descriptor, [unread], offset)
            unread, offset = unread[count:], offset + count

    def _map(self, count: int) -> NDArray[np.float32]:
        self._require(count)
        if self._halves is None:
            stride = aligned(count * 4)
            segment = Segment(os.dup(self.descriptor), _HEADER + 2 * stride)
            self._halves = segment.array(_HEADER, (2, stride // 4), "f4")
            segment.close()  # the view keeps the mapping
        return self._halves

    def _require(self, count: int) -> None:
        if int(self._header[_COUNT]) != count:
            raise ValueError(f"the model has {count} numbers; {int(self._header[_COUNT])} are published")
