"""The memory of queues: anonymous, and reserved when it is made.

faster-fifo asks multiprocessing for shared memory, which takes it from a file in /dev/shm whose pages exist only once
they are written. When other programs have filled /dev/shm by then, the kernel ends the writer with SIGBUS. The pages of
an anonymous file count towards no file system, and those that are reserved cannot be missing later.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing import heap, reduction, util
from typing import Any

import faster_fifo

from appo.utils.files import anonymous_file

# Of a queue besides its buffer: a lock, two condition variables and counters, in four pieces of memory.
_OVERHEAD_BYTES = 1024


class _Arena(heap.Arena):
    """One stretch of memory; another process that receives it maps the same."""

    def __init__(self, size: int) -> None:
        descriptor = anonymous_file("queues")
        try:
            _reserve(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        super().__init__(size, descriptor)
        util.Finalize(self, os.close, args=(descriptor,))

    def __reduce__(self) -> Any:
        return heap.rebuild_arena, (self.size, reduction.DupFd(self.fd))


class _Heap(heap.Heap):
    """Hands out pieces of one arena that is made with the first of them."""

    def _new_arena(self, size: int) -> tuple[heap.Arena, int, int]:
        this: Any = self
        length = this._roundup(max(this._size, size), mmap.PAGESIZE)
        arena = _Arena(length)
        this._arenas.append(arena)
        return arena, 0, length


def make_queues(*sizes: int) -> list[faster_fifo.Queue]:
    """Queues of bytes, of so many bytes each, in one stretch of memory that goes with the last of them.

    Raises:
        OSError: there is no memory, or no descriptor, left for them.
    """
    wrapper: Any = heap.BufferWrapper
    before, wrapper._heap = wrapper._heap, _Heap(sum(sizes) + len(sizes) * _OVERHEAD_BYTES)
    try:
        # Bytes travel as they are: `bytes` copies those of the queue's own buffer and returns others unchanged.
        return [faster_fifo.Queue(max_size_bytes=size, loads=bytes, dumps=bytes) for size in sizes]
    finally:
        wrapper._heap = before


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    left = size
    while left > 0:
        left -= os.write(descriptor, bytes(min(left, 2**20)))
