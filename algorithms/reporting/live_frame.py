"""Some lines at the lower end of a terminal that are drawn anew in place, and others that are printed above them.

The cursor is never hidden and waits below the frame, so a process that is killed leaves a terminal in order. Each
change is one synchronized update (DEC mode 2026): terminals that know it show no half of one, others ignore the words.

Nothing here waits for the terminal: what it does not take (Ctrl+S, a slow line) is sent later, and frames that are
too old by then are left out.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TextIO

from rich.cells import cell_len

BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
_CLEAR_BELOW = "\x1b[J"
_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_PIECE_BYTES = 1024  # a terminal that can take anything takes so much without a wait
_MOST_LINES = 1000  # that wait for a terminal which takes nothing; the log file has all of them
_CLOSE_S = 1.0


def can_draw(stream: TextIO) -> bool:
    """A stream leads to a terminal on which lines can be drawn anew."""
    try:
        is_utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        return is_utf8 and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    except ValueError:  # closed
        return False


class LiveFrame:
    """The frame, and the only writer of its terminal as long as it is open. Made and closed in the main thread."""

    def __init__(self, stream: TextIO) -> None:
        """`stream`: of a terminal, see `can_draw`. Nothing is written before the first frame."""
        self._descriptor, self._is_own = _opened_anew(stream.fileno())
        self._terminal = stream.fileno()
        self._frame: Sequence[str] = ()
        self._drawn: list[int] = []  # widths of the lines of the frame that is on the screen
        self._above: list[str] = []  # not yet sent
        self._lock = threading.RLock()  # threads log as well
        self._unsent = b""  # the rest of an update that the terminal has not taken yet
        # After Ctrl+Z the shell has written below the frame.
        self._earlier = signal.signal(signal.SIGCONT, self._start_below)

    def size(self) -> tuple[int, int]:
        """Columns and rows that a frame may have: one less than the terminal, for the cursor."""
        columns, rows = _size_of(self._terminal)
        return columns - 1, rows - 1

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, with styles but no other escapes, in place of those before.

        Nothing is shown while the process is in the background, or while the terminal takes nothing.
        """
        with self._lock:
            self._frame = lines
            self._send()

    def print_above(self, text: str) -> None:
        """Print whole lines above the frame, once, when the terminal takes them; where too many wait, the oldest go."""
        with self._lock:
            self._above.append(text)
            del self._above[:-_MOST_LINES]
            self._send()

    def close(self) -> None:
        """Leave the last frame where it is, with the cursor below it; called any number of times."""
        if self._descriptor < 0:
            return
        deadline = time.monotonic() + _CLOSE_S
        self._send()
        while (self._unsent or self._above) and time.monotonic() < deadline:
            time.sleep(_CLOSE_S / 20)
            self._send()
        if self._is_own:
            os.close(self._descriptor)
        self._descriptor = -1
        signal.signal(signal.SIGCONT, self._earlier)

    def _start_below(self, number: int, frame: FrameType | None) -> None:
        self._drawn = []
        if callable(self._earlier):
            self._earlier(number, frame)

    def _send(self) -> None:
        if not self._flush():
            return
        above, self._above = "".join(self._above), []
        if _is_in_background(self._terminal):
            self._drawn = []
            self._unsent = above.encode(errors="replace")
        else:
            self._unsent = (BEGIN_UPDATE + self._erase() + above + self._draw() + END_UPDATE).encode(errors="replace")
        self._flush()

    def _erase(self) -> str:
        columns, rows = _size_of(self._terminal)
        # A terminal that has become narrower has broken the lines of the frame.
        lines = sum(max(1, -(-width // columns)) for width in self._drawn)
        up = min(lines, rows - 1)
        return (f"\r\x1b[{up}A" if up else "\r") + _CLEAR_BELOW if self._drawn else ""

    def _draw(self) -> str:
        columns, rows = self.size()
        fitting = [line for line in self._frame if cell_len(_STYLES.sub("", line)) <= columns][: max(0, rows)]
        self._drawn = [cell_len(_STYLES.sub("", line)) for line in fitting]
        return "".join(f"{line}\r\n" for line in fitting)

    def _flush(self) -> bool:
        """Send what waits, as far as the terminal takes it; False: something still waits."""
        try:
            # All at once where nothing waits: what a person types is echoed between two writes.
            while self._unsent and (self._is_own or _takes_more(self._descriptor)):
                sent = os.write(self._descriptor, self._unsent if self._is_own else self._unsent[:_PIECE_BYTES])
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except (OSError, ValueError):  # the terminal is gone
            self._unsent = b""
        return not self._unsent


def _takes_more(descriptor: int) -> bool:
    """A write would not wait. A driver may have more than the 1024 descriptors that `select` knows."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


class LinesAbove(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr` while a frame is drawn: whole lines appear above it."""

    def __init__(self, stream: TextIO, print_above: Callable[[str], None]) -> None:
        """`stream`: what it stands in for."""
        self.stream = stream
        self._print_above = print_above
        self._begun = ""

    def write(self, text: str) -> int:
        """Print the lines that are whole, and keep the rest."""
        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._print_above(whole + newline)
        return len(text)

    def end_line(self) -> None:
        """Print what has no newline yet."""
        if self._begun:
            self.write("\n")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As the stream."""
        return self.stream.encoding

    def isatty(self) -> bool:
        """As the stream."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """As the stream: what is written there by others is not seen here."""
        return self.stream.fileno()

    def __getattr__(self, name: str) -> Any:
        """Its buffer, for example."""
        return getattr(self.stream, name)


def _opened_anew(descriptor: int) -> tuple[int, bool]:
    """A descriptor of a terminal that never waits, and whether it is a new one; else writes may wait for a moment.

    The flag belongs to the open file, which the shell and other programs share; so the terminal is opened once more.
    """
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC), True
    except OSError:  # of another user, or of another container
        return descriptor, False


def _size_of(terminal: int) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(terminal)
    except OSError:
        columns = rows = 0
    return columns or 80, rows or 24  # some terminals, as of serial lines, do not know theirs


def _is_in_background(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:  # it is not the terminal of this session
        return False
