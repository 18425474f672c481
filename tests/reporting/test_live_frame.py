"""A frame on a pseudo-terminal, seen through a small terminal: drawn in place, with lines above, never waiting."""

import io
import os
import signal
import termios
import time

import pytest

from appo.algorithms.reporting.live_frame import LinesAbove, LiveFrame, can_draw
from tests.reporting.terminal_emulator import PseudoTerminal, Screen


@pytest.fixture
def terminal():
    made = PseudoTerminal(40, 12)
    yield made
    made.close()


@pytest.fixture
def stream(terminal):
    with os.fdopen(os.dup(terminal.descriptor), "w", encoding="utf-8") as made:
        yield made


@pytest.fixture
def frame(stream):
    made = LiveFrame(stream)
    yield made
    made.close()


def seen(terminal, columns=40, rows=12):
    screen = Screen(columns, rows)
    screen.feed(terminal.read())
    return screen


def test_a_frame_takes_the_place_of_the_one_before_whatever_its_height(terminal, frame):
    for lines in (["one", "two", "three"], ["short"], ["\x1b[1mlonger\x1b[0m than before", "b"]):
        frame.draw(lines)
        screen = seen(terminal)
        plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
        assert screen.lines == [*plain, ""]
    assert len(screen.shown) == 3 and not screen.is_updating


def test_lines_appear_above_the_frame_once_and_whole(terminal, frame):
    frame.draw(["frame"] * 5)
    for number in range(30):  # more than there are rows
        frame.print_above(f"line {number} of {'x' * 60}\n")
        frame.draw([f"frame {number}"] * (1 + number % 7))
    screen = seen(terminal)
    text = "\n".join(screen.lines)
    assert text.replace("\n", "").count("xline") == 29
    assert [line for line in screen.lines if "frame" in line] == ["frame 29"] * 2
    assert screen.lines[-3:] == ["frame 29", "frame 29", ""]


def test_a_terminal_that_becomes_smaller_gets_no_line_wider_than_it_is(terminal, frame):
    frame.draw(["x" * 39, "y" * 10])
    terminal.resize(20, 4)
    before = len(terminal.read())
    frame.draw(["x" * 39, "y" * 10, "1", "2", "3"])
    again = terminal.read()[before:]
    assert "\x1b[3A" in again, "the first line fills two rows now"
    assert "x" not in again and again.count("\r\n") == 3, "one row is left for the cursor"


def test_a_stopped_terminal_is_not_waited_for_and_gets_lines_later_but_no_old_frames(terminal, frame):
    frame.draw(["before"])
    terminal.read()
    termios.tcflow(terminal.descriptor, termios.TCOOFF)
    began = time.monotonic()
    for number in range(300):
        frame.draw([f"{number} " + "x" * 30] * 10)
    frame.print_above("a line\n")
    assert time.monotonic() - began < 0.5
    assert "x" not in terminal.read()
    termios.tcflow(terminal.descriptor, termios.TCOON)
    frame.draw(["after"])
    screen = seen(terminal)
    assert screen.lines == ["a line", "after", ""]
    assert len(screen.shown) <= 3


def test_a_reader_that_is_slower_than_the_frames_sees_whole_updates(terminal, frame):
    for number in range(200):  # more than a terminal keeps for its reader
        frame.draw([f"{number} {'ü' * 30}"] * 10)
    for _ in range(10):
        terminal.read()
        frame.draw(["end"])
    screen = seen(terminal)
    assert screen.lines == ["end", ""] and len(screen.shown) < 200


def test_closing_leaves_the_last_frame_and_a_cursor_that_was_never_hidden(terminal, stream):
    earlier = signal.getsignal(signal.SIGCONT)
    frame = LiveFrame(stream)
    frame.draw(["the end"])
    frame.print_above("said\n")
    frame.close()
    frame.close()
    assert "?25l" not in terminal.read()
    screen = seen(terminal)
    assert screen.lines == ["said", "the end", ""] and (screen.row, screen.column) == (2, 0)
    assert signal.getsignal(signal.SIGCONT) == earlier


def test_after_a_stop_of_the_process_the_frame_begins_below_what_the_shell_wrote(terminal, stream, frame):
    frame.draw(["frame"])
    os.write(stream.fileno(), b"[1]+  Stopped\n")
    os.kill(os.getpid(), signal.SIGCONT)
    frame.draw(["frame"])
    assert seen(terminal).lines == ["frame", "[1]+  Stopped", "frame", ""]


def test_a_terminal_that_is_gone_ends_nothing(terminal, frame):
    frame.draw(["frame"])
    terminal.close()
    frame.draw(["frame"])
    frame.print_above("a line\n")
    terminal.__init__()  # for the fixture to close


def test_printed_pieces_become_lines_above(terminal, frame):
    lines = LinesAbove(io.StringIO(), frame.print_above)
    frame.draw(["frame"])
    print("a", end="", file=lines)
    assert "a" not in seen(terminal).lines[0].removeprefix("frame")
    print("b\nc", file=lines)
    print("d", end="", file=lines)
    lines.end_line()
    assert seen(terminal).lines == ["ab", "c", "d", "frame", ""]


def test_frames_are_for_terminals_that_move_the_cursor(stream, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert can_draw(stream)
    assert not can_draw(io.StringIO())
    for term in ("dumb", ""):
        monkeypatch.setenv("TERM", term)
        assert not can_draw(stream)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(os.dup(stream.fileno()), "w", encoding="latin-1") as old:
        assert not can_draw(old)
