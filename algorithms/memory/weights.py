"""Numbers that one process publishes as a whole and others copy: two halves and a version, without a lock.

The writer fills the half that no reader was sent to, then points the header at it. A reader copies the half that the
header names and looks again: if the writer has meanwhile begun to write that half, the copy is repeated. A writer that
dies anywhere in between leaves the newest whole publication.

A policy has two such buffers: its weights, published after every optimizer step for those who act, and a snapshot of
all that a learner needs to go on, taken every few seconds for the learner that comes after it.

The memory starts as a header and is grown by the first publication: only the learner has to know how large a model is.
The halves are read and written as the file that they are, not mapped: a copy takes twice as long, and a model of 11 MB
does not count with its 22 MB in every process that acts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from appo.utils.failpoints import failpoint
from appo.utils.segment import Segment, aligned

_HEADER = 64
_PUBLISHED, _WRITING, _BYTES = 0, 1, 2  # int64 cells of the header
_VERSION = 4  # and 5: policy version of each half


class PublishedVersion(NamedTuple):
    """What a reader got."""

    publication: int  # counts every publication, also several of one policy version
    version: int  # policy version: optimizer steps behind the weights


class PolicyBuffers(NamedTuple):
    """What the learner of a policy publishes."""

    weights: WeightsBuffer  # after every optimizer step
    snapshot: WeightsBuffer  # of all that another learner needs to go on, every few seconds


class WeightsBuffer:
    """What one writer has published; any number of readers."""

    def __init__(self, descriptor: int) -> None:
        """Open the memory made by `create`; takes over the descriptor."""
        self._header_segment = Segment(descriptor, _HEADER)
        self._header = self._header_segment.array(0, (8,), "i8")

    @classmethod
    def create(cls, name: str) -> WeightsBuffer:
        """Memory in which nothing is published yet."""
        return cls(Segment.create(f"appo-{name}", _HEADER).descriptor)

    @property
    def descriptor(self) -> int:
        """The file that the memory belongs to."""
        return self._header_segment.descriptor

    @property
    def publication(self) -> int:
        """How often something was published; 0 before the first time."""
        return int(self._header[_PUBLISHED])

    @property
    def version(self) -> int:
        """Policy version of the newest publication."""
        return int(self._header[_VERSION + self.publication % 2])

    def publish(self, flat: NDArray[Any], version: int) -> None:
        """Make `flat` [n] the newest.

        Raises:
            ValueError: an earlier publication had another size.
        """
        self.publish_parts([flat], version)

    def publish_parts(self, parts: Sequence[NDArray[Any]], version: int) -> None:
        """Make arrays, contiguous each, the newest; they lie one behind the other, and nothing is gathered first.

        Raises:
            ValueError: an earlier publication had another size.
        """
        size = sum(part.nbytes for part in parts)
        if self._header[_BYTES] == 0:
            os.ftruncate(self.descriptor, _HEADER + 2 * aligned(size))
            self._header[_BYTES] = size
        self._require(size)
        publication = self.publication + 1
        self._header[_WRITING] = publication
        offset = self._offset(publication % 2, size)
        for part in parts:
            unwritten = part.data.cast("B")
            while len(unwritten):
                count = os.pwrite(self.descriptor, unwritten, offset)
                unwritten, offset = unwritten[count:], offset + count
        self._header[_VERSION + publication % 2] = version
        failpoint("weights-publish")
        self._header[_PUBLISHED] = publication

    def read_into(self, flat: NDArray[Any]) -> PublishedVersion:
        """Copy the newest into `flat` [n].

        Raises:
            ValueError: nothing was published yet, or something of another size was.
        """
        return self.read_parts_into([flat])

    def read_parts_into(self, parts: Sequence[NDArray[Any]]) -> PublishedVersion:
        """Copy the newest into arrays as they were given to `publish_parts`.

        Raises:
            ValueError: nothing was published yet, or something of another size was.
        """
        size = sum(part.nbytes for part in parts)
        self._require(size)
        while True:
            publication = self.publication
            offset = self._offset(publication % 2, size)
            for part in parts:
                unread = part.data.cast("B")
                while len(unread):
                    count = os.preadv(self.descriptor, [unread], offset)
                    unread, offset = unread[count:], offset + count
            version = int(self._header[_VERSION + publication % 2])
            # The half just read is overwritten by publication + 2: not begun means that the copy is whole.
            if int(self._header[_WRITING]) <= publication + 1:
                return PublishedVersion(publication, version)

    def _offset(self, half: int, size: int) -> int:
        return _HEADER + half * aligned(size)

    def _require(self, size: int) -> None:
        if int(self._header[_BYTES]) != size:
            raise ValueError(f"the model has {size // 4} numbers; {int(self._header[_BYTES]) // 4} are published")
