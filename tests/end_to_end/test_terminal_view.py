"""Real runs as their terminal shows them: a frame with log lines above it, plain lines in a pipe, or nothing."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios

import psutil
import pytest

from tests.end_to_end.conftest import ROOT, SMALL
from tests.reporting.terminal_emulator import PseudoTerminal, Screen

COLUMNS, ROWS = 90, 22
# Prints from the driver with each point, a line in two pieces.
CALLBACK = """
class Prints:
    def on_point(self, policy, env_frames, tags):
        print("callback", end=" ")
        print("was here")
"""


class InTerminal:
    """A run whose terminal the test reads."""

    def __init__(self, folder, *options):
        self.terminal = PseudoTerminal(COLUMNS, ROWS)
        self.folder = folder / "run"
        words = [sys.executable, str(ROOT / "train_appo.py"), "--env=CartPole-v1", "--experiment=run"]
        tty = self.terminal.descriptor
        self.process = subprocess.Popen(
            [*words, f"--train_dir={folder}", *SMALL, *options],
            stdin=tty,
            stdout=tty,
            stderr=tty,
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=os.environ | {"TERM": "xterm-256color"},
        )

    def wait_for(self, pattern, seconds=60.0):
        """Read until the terminal has been sent this."""

        def is_there():
            return re.search(pattern, self.terminal.received.decode(errors="replace")) is not None

        self.terminal.read(seconds, until=is_there)
        assert is_there(), self.terminal.received.decode(errors="replace")

    def children(self):
        """Number and title of each process below it."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [(process.pid, " ".join(process.cmdline()).strip("\0 ")) for process in below]

    def end(self):
        """Read until it has ended; what is on the screen."""
        self.terminal.read(40.0, until=lambda: self.process.poll() is not None)
        self.process.wait(10)
        text = self.terminal.read(0.3)
        screen = Screen(COLUMNS, ROWS)
        screen.feed(text)
        return screen


@pytest.fixture
def in_terminal(tmp_path):
    made = []

    def begin(*options):
        made.append(InTerminal(tmp_path, *options))
        return made[-1]

    yield begin
    for run in made:
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGTERM)
            run.process.wait(20)
        run.terminal.close()


def titles(lines):
    return [line for line in lines if re.search(r"^run · CartPole-v1 ─+ (training|ended) ", line)]


def check_every_frame(screen):
    for lines in screen.shown:
        assert len(titles(lines)) <= 1, "a frame stays behind"
        assert lines[-1] == "" or "^C" in lines[-1], "the cursor waits below the frame"
    assert screen.ups_beyond_the_top == 0 and not screen.is_updating


def test_a_run_draws_one_frame_with_every_line_above_it_until_ctrl_c(in_terminal, tmp_path):
    (tmp_path / "prints.py").write_text(CALLBACK)
    run = in_terminal("--callback=prints:Prints")
    run.wait_for(r"losses[\s\S]*policy 0")
    run.terminal.type(b"\x03")
    screen = run.end()
    assert run.process.returncode == 130
    check_every_frame(screen)
    text = "\n".join(screen.lines)
    for once in ("stopped by SIGINT", "experiment folder", "train on:"):
        assert text.count(once) == 1, once
    [title] = titles(screen.lines)
    below = "\n".join(screen.lines[screen.lines.index(title) :])
    assert " ended " in title and re.search(r"return[\s\S]*losses[\s\S]*stopped by SIGINT", below)
    points = len((run.folder / "metrics.jsonl").read_text().splitlines())
    assert len([line for line in screen.lines if line == "callback was here"]) == points > 0
    assert "callback" not in below and "?25l" not in run.terminal.read()


@pytest.mark.slow
def test_a_lost_worker_is_told_of_above_the_frame_and_counted_in_it(in_terminal):
    run = in_terminal("--view=full", "--train_for_seconds=20")
    run.wait_for(r"losses[\s\S]*policy 0")
    [actor] = [pid for pid, title in run.children() if "actor-00" in title]
    os.kill(actor, signal.SIGKILL)
    screen = run.end()
    assert run.process.returncode == 0
    check_every_frame(screen)
    text, [title] = "\n".join(screen.lines), titles(screen.lines)
    assert text.count("actor-00 works again") == text.count("actor-00 was killed") == 1
    below = "\n".join(screen.lines[screen.lines.index(title) :])
    assert "restarts 1" in below and "works again" not in below
    assert re.search(r"frames \S+  ━+  100%", below) and "reached train_for_seconds=20; " in below
    assert 15 <= len(screen.shown) <= 50, "once a second, and with each line above"


def piped(folder, *options):
    """What a run printed, and the lines of it that go to stderr."""
    words = [sys.executable, str(ROOT / "train_appo.py"), "--env=CartPole-v1", "--experiment=run"]
    words += [f"--train_dir={folder}", *SMALL, "--train_for_seconds=2", *options]
    done = subprocess.run(words, capture_output=True, cwd=folder, timeout=90, check=True)
    return done.stdout + done.stderr, done.stderr.decode().splitlines()


def status_lines(lines):
    return [line for line in lines if re.search(r"^\S+ fps ", line)]


def test_in_a_pipe_there_are_few_short_lines_without_escapes(tmp_path):
    output, lines = piped(tmp_path)
    assert b"\x1b" not in output
    assert len(status_lines(lines)) == 1 and max(map(len, status_lines(lines))) <= 80
    assert any("reached train_for_seconds=2" in line for line in lines)


def test_off_tells_of_no_status_but_of_the_end(tmp_path):
    output, lines = piped(tmp_path, "--view=off")
    assert not status_lines(lines) and b"time of 1 x" not in output
    assert any("reached train_for_seconds=2" in line for line in lines) and b"train on:" in output
