"""Doorbells: file descriptors that wake a process. A hint, never the truth, which lies in shared memory.

An eventfd where the system has one, a pipe elsewhere. Nothing that a killed process could leave locked.
"""

from __future__ import annotations

import os
import select
from multiprocessing import reduction
from typing import Any


class SharedDescriptor:
    """A file descriptor that travels to a child process with the arguments of its start."""

    def __init__(self, descriptor: int) -> None:
        """Wraps an open descriptor; does not own it."""
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.descriptor)

    def __setstate__(self, state: Any) -> None:
        self.descriptor = state.detach()


class Doorbell:
    """Wakes the one process that waits for it; anyone may ring."""

    def __init__(self) -> None:
        """A bell that has not rung."""
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
        self._watch()

    def ring(self) -> None:
        """Wake the waiter, now or when it next waits."""
        try:
            if self._read == self._write:
                os.eventfd_write(self._write, 1)
            else:
                os.write(self._write, b"\0")
        except BlockingIOError:
            return  # rung so often that it cannot be missed

    def wait(self, timeout_s: float) -> bool:
        """Sleep until it rings or the time is over; True when it rang. Rings in between count once."""
        if not self._poll.poll(max(0.0, timeout_s * 1000.0)):
            return False
        try:
            os.read(self._read, 4096 if self._read != self._write else 8)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give the descriptors back."""
        for descriptor in {self._read, self._write}:
            os.close(descriptor)

    def __getstate__(self) -> Any:
        return SharedDescriptor(self._read), None if self._read == self._write else SharedDescriptor(self._write)

    def __setstate__(self, state: Any) -> None:
        read, write = state
        self._read = read.descriptor
        self._write = read.descriptor if write is None else write.descriptor
        self._watch()

    def _watch(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
