"""Doorbells: file descriptors that wake a process. A hint, never the truth, which lies in shared memory.

An eventfd where the system has one, a pipe elsewhere. Nothing that a killed process could leave locked.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

_DESCRIPTORS_PER_MESSAGE = 200  # systems allow 253
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class SharedDescriptor:
    """A file descriptor that travels to a child process with the arguments of its start."""

    def __init__(self, descriptor: int) -> None:
        """Wraps an open descriptor; does not own it."""
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.descriptor)

    def __setstate__(self, state: Any) -> None:
        self.descriptor = state.detach()


class DescriptorParcel:
    """Any number of file descriptors on their way to one child process.

    A process is started with about 250 descriptors at most. These lie in a socket, of which the child receives one end.
    The sender of a parcel closes it once the child has been started.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        """Pack them; their owner keeps them open."""
        self._count = len(descriptors)
        near, self._far = socket.socketpair()
        with near:
            for start in range(0, self._count, _DESCRIPTORS_PER_MESSAGE):
                socket.send_fds(near, [b"."], descriptors[start : start + _DESCRIPTORS_PER_MESSAGE])

    def unpack(self) -> list[int]:
        """The descriptors, in order, as those of this process; once."""
        found: list[int] = []
        with self._far:
            while len(found) < self._count:
                _, received, _, _ = socket.recv_fds(self._far, 1, _DESCRIPTORS_PER_MESSAGE, _CLOSE_ON_EXEC)
                assert received, "the parcel holds fewer descriptors than were packed"
                found += received
        return found

    def close(self) -> None:
        """Give back what travels with it; a child that has been started has its own."""
        self._far.close()

    def __getstate__(self) -> Any:
        return self._count, SharedDescriptor(self._far.fileno())

    def __setstate__(self, state: Any) -> None:
        self._count, far = state
        self._far = socket.socket(fileno=far.descriptor)


class Doorbell:
    """Wakes the one process that waits for it; any process may ring."""

    def __init__(self, descriptors: Sequence[int] = ()) -> None:
        """A bell that has not rung, or another process's bell, of which these are the `descriptors`."""
        if descriptors:
            self._read, self._write = descriptors[0], descriptors[-1]
        elif hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)
        self._watch()

    @property
    def descriptors(self) -> list[int]:
        """To read and to write; one where they are the same."""
        return list(dict.fromkeys((self._read, self._write)))

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
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _watch(self) -> None:
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
