"""A small terminal: what a person would see of what a program sends, and a pseudo-terminal to send it to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import termios
import time
from collections.abc import Callable

_TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b|\r|\n|[^\x1b\r\n]")
_SYNCHRONIZED = "2026"


class Screen:
    """Understands what a frame is made of, and nothing else: another escape fails the test.

    Each end of a synchronized update is a moment at which a terminal would show what it has.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]  # those that have scrolled off included
        self.row = self.column = 0
        self.is_updating = False
        self.shown: list[list[str]] = []
        """All lines after each synchronized update."""
        self.ups_beyond_the_top = 0

    def feed(self, text: str) -> None:
        """Take in what a program has sent."""
        for token in _TOKEN.finditer(text):
            if token[3]:
                self._obey(token[3], token[2], is_private=bool(token[1]))
            else:
                assert token[0] != "\x1b", f"an escape is cut off in {text!r}"
                self._put(token[0])

    def _obey(self, letter: str, number: str, *, is_private: bool) -> None:
        if is_private:
            assert number == _SYNCHRONIZED and letter in "hl", f"?{number}{letter} is none that a frame needs"
            assert self.is_updating == (letter == "l"), "synchronized updates follow each other"
            self.is_updating = letter == "h"
            if not self.is_updating:
                self.shown.append(list(self.lines))
        elif letter == "A":
            top = max(0, len(self.lines) - self.rows)
            self.ups_beyond_the_top += self.row - int(number) < top
            self.row = max(top, self.row - int(number))
        elif letter == "J":
            assert number == ""
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        else:
            assert letter == "m", f"{number}{letter} is none that a frame needs"

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._next_row()
        else:
            if self.column == self.columns:
                self._next_row()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _next_row(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")


class PseudoTerminal:
    """A terminal of a size, whose other end the test reads."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._reader, self.descriptor = os.openpty()
        self.resize(columns, rows)
        os.set_blocking(self._reader, False)
        self.received = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Let a person press keys."""
        os.write(self._reader, keys)

    def read(self, seconds: float = 0.0, until: Callable[[], bool] = lambda: False) -> str:
        """Everything that was sent so far, after so many seconds at most."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if poll.poll(1000.0 * max(0.0, min(left, 0.1))):
                try:
                    piece = os.read(self._reader, 65536)
                except OSError:  # nobody has it open any more
                    break
                self.received += piece
            elif left <= 0:
                break
            if until():
                break
        return self.received.decode(errors="strict") if left <= 0 else self.received.decode(errors="replace")

    def close_our_end(self) -> None:
        """Let `read` end when the programs have ended."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
        self.descriptor = -1

    def close(self) -> None:
        self.close_our_end()
        os.close(self._reader)
