"""Messages between two processes over a socket: one side never waits, so that nothing the other does can hold it up.

What is sent in every step goes through shared memory; here goes what is rare or of any size.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from typing import Any, NamedTuple

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20


class ChannelClosed(EOFError):
    """The other side has ended."""


class Garbled(NamedTuple):
    """A message that cannot be put together on this side, as classes with constructors of their own may not be."""

    error: Exception


class ParentChannel:
    """The side that never waits: what it sends is kept until there is room, what it receives is put together."""

    def __init__(self, end: socket.socket) -> None:
        """Own one end of a socket pair."""
        self._socket = end
        self._socket.setblocking(False)
        self._out, self._in = bytearray(), bytearray()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    @property
    def is_full(self) -> bool:
        """Something waits for room."""
        return bool(self._out)

    def post(self, content: bytes) -> None:
        """Send a pickled message, now or with later calls of `flush`."""
        self._out += _LENGTH.pack(len(content)) + content
        self.flush()

    def flush(self) -> None:
        """Send what there is room for; to a process that has ended, nothing."""
        try:
            while self._out:
                sent = self._socket.send(memoryview(self._out)[:_PIECE])
                del self._out[:sent]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()

    def receive(self) -> list[Any]:
        """Messages that have arrived as a whole; a `Garbled` in place of one that cannot be put together."""
        while True:
            try:
                piece = self._socket.recv(_PIECE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                break
            self._in += piece
        contents, place = [], 0
        while len(self._in) - place >= _LENGTH.size:
            length = _LENGTH.unpack_from(self._in, place)[0]
            end = place + _LENGTH.size + length
            if len(self._in) < end:
                break
            contents.append(bytes(memoryview(self._in)[place + _LENGTH.size : end]))
            place = end
        if place:
            del self._in[:place]
        return [_unpickled(content) for content in contents]

    def give_descriptor(self, descriptor: int) -> None:
        """Hand over an open file; the other side is waiting for it, unless it has ended."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [b"."], [descriptor])

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def _unpickled(content: bytes) -> Any:
    try:
        return pickle.loads(content)
    except Exception as error:  # whatever the classes of others raise
        return Garbled(error)


class ChildChannel:
    """The side that waits."""

    def __init__(self, end: socket.socket) -> None:
        """Own one end of a socket pair."""
        self._socket = end
        self._socket.setblocking(True)
        self._is_torn = False  # half a message was sent

    def fileno(self) -> int:
        """For a poll."""
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send a message; waits for room.

        Raises:
            ChannelClosed: nobody is there to read it.
        """
        content = pickle.dumps(message)
        if self._is_torn:
            raise ChannelClosed
        self._is_torn = True  # a signal may end it in the middle
        try:
            self._socket.sendall(_LENGTH.pack(len(content)) + content)
        except OSError as error:
            raise ChannelClosed from error
        self._is_torn = False

    def take(self) -> Any:
        """The next message; waits for it.

        Raises:
            ChannelClosed: there will be none.
        """
        length = _LENGTH.unpack(self._exactly(_LENGTH.size))[0]
        return pickle.loads(self._exactly(length))

    def take_descriptor(self) -> int:
        """The open file that the other side hands over.

        Raises:
            ChannelClosed: it does not.
        """
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not descriptors:
            raise ChannelClosed
        return descriptors[0]

    def _exactly(self, count: int) -> bytearray:
        content = bytearray(count)
        view, received = memoryview(content), 0
        while received < count:
            try:
                number = self._socket.recv_into(view[received:])
            except OSError as error:
                raise ChannelClosed from error
            if not number:
                raise ChannelClosed
            received += number
        return content
