"""Memory that several processes map and that vanishes with the last of them.

A segment is an anonymous file (memfd where the system has it, an unlinked temporary file elsewhere), so it is bounded
by the machine's memory and not by the size of /dev/shm, and no name is left behind whatever kills a process.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.utils.files import anonymous_file

ALIGNMENT = 64  # a cache line: two arrays never share one


class Segment:
    """A mapped stretch of shared memory, addressed by offset."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map `size` bytes of an open descriptor, which the segment then owns."""
        self.descriptor = descriptor
        self.size = size
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, name: str, size: int) -> Segment:
        """A new segment, all zeros; its pages cost memory when they are first written."""
        descriptor = anonymous_file(name)
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    def array(self, offset: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """A view of the memory at `offset`. It keeps the mapping alive."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)

    def close(self) -> None:
        """Give the descriptor back. The mapping goes when the last view of it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
