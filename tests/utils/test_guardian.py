"""The guardian: takes a whole process group down when its parent is gone, however it went, and not a moment earlier."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from appo.utils import guardian

ROOT = Path(__file__).resolve().parents[2]
NO_GROUP = 2**31

# Starts the guardian and two children in its group, one of which has a child itself; prints their process ids.
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-I", "-S", sys.argv[1], "/no/" + sys.argv[3]]
guardian = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
group = int(guardian.stdout.readline())
sleep = "import time; time.sleep(1000)"
parent = "import subprocess, sys, time; words = [sys.executable, '-c', sys.argv[1]]; "
parent += "print(subprocess.Popen(words).pid, flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", parent, sleep], process_group=group, stdout=subprocess.PIPE)
grandchild = int(child.stdout.readline())
print(group, guardian.pid, child.pid, grandchild, flush=True)
if sys.argv[2] == "raises":
    sys.stdin.readline()
    raise SystemExit(3)
if sys.argv[2] == "lets go":
    sys.stdin.readline()
    guardian.stdin.close()
time.sleep(1000)
"""


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def a_mark():
    """A guardian kills whoever shows the name of its folder, and pytest-xdist shows the names of tests."""
    return f"appo-{uuid.uuid4().hex}"


@pytest.fixture
def make_parent():
    started, pids = [], []

    def make(how):
        command = [sys.executable, "-c", PARENT, guardian.__file__, how, a_mark()]
        parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        started.append(parent)
        assert parent.stdout is not None
        group, *family = [int(word) for word in parent.stdout.readline().split()]
        pids.extend(family)
        return parent, group, family

    yield make
    for parent in started:
        parent.kill()
        parent.communicate()
    for pid in filter(is_alive, pids):
        os.kill(pid, signal.SIGKILL)


def seconds_until_gone(pids):
    began = time.monotonic()
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() - began < 30.0
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_when_its_parent_is_killed_the_whole_group_is_gone_within_two_seconds(make_parent, number):
    parent, group, family = make_parent("is killed")
    assert all(is_alive(pid) and os.getpgid(pid) == group == family[0] for pid in family)
    assert os.getpgid(parent.pid) != group
    parent.send_signal(number)
    assert seconds_until_gone(family) < 2.0


def test_when_its_parent_is_gone_the_folder_it_was_given_is_gone_with_its_files(tmp_path):
    folder, beside = tmp_path / a_mark(), tmp_path / "beside"
    folder.mkdir()
    (folder / "listener").touch()
    beside.touch()
    command = [sys.executable, "-I", "-S", guardian.__file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert (folder / "listener").exists()
    assert list(tmp_path.iterdir()) == [beside]
    assert process.returncode == -signal.SIGKILL


def test_scripts_that_came_through_the_pipe_are_run_with_the_group_and_outlive_it(tmp_path):
    script, told = tmp_path / "script.py", tmp_path / "told"
    script.write_text(
        "import os, sys, time\n"
        "while True:\n"
        "    try: os.killpg(int(sys.argv[1]), 0)\n"
        "    except ProcessLookupError: break\n"
        "    time.sleep(0.01)\n"
        f"open({str(told)!r}, 'w').write(sys.argv[1])\n"
    )
    command = [sys.executable, "-I", "-S", guardian.__file__, str(tmp_path / a_mark())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        group = process.stdout.readline().decode().strip()
        process.stdin.write(f"{script}\n{tmp_path / 'missing.py'}\n".encode())
    deadline = time.monotonic() + 10.0
    while not (told.exists() and told.read_text() == group):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_when_its_parent_ends_by_itself_the_group_goes_too(make_parent):
    parent, _, family = make_parent("raises")
    parent.stdin.write(b"go\n")
    parent.stdin.flush()
    assert parent.wait(30.0) == 3
    assert seconds_until_gone(family) < 2.0


def test_when_its_parent_lets_go_the_group_ends_and_the_parent_lives(make_parent):
    parent, _, family = make_parent("lets go")
    parent.stdin.write(b"go\n")
    parent.stdin.flush()
    assert seconds_until_gone(family) < 2.0
    assert parent.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_meant_for_the_parent_do_not_end_it(make_parent, number):
    _, group, family = make_parent("is killed")
    os.kill(group, number)
    time.sleep(0.1)
    assert all(is_alive(pid) for pid in family)


# Starts processes that leave the group: two that are marked, one below them without a mark, and a stranger.
MARKED = """
import os, subprocess, sys, time
from appo.utils import processes
sleep = "import time; time.sleep(1000)"
parent = "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={}, "
parent += "start_new_session=True); print(child.pid, flush=True); time.sleep(1000)"
words = [sys.executable, "-c", parent, sleep]
stranger = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
held = processes.mark_descendants(sys.argv[1] + ".7;")
executed = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE)
below = int(executed.stdout.readline())
forked = os.fork()
if not forked:
    os.setsid()
    time.sleep(1000)
print(stranger.pid, executed.pid, below, forked, flush=True)
os._exit(0)
"""


def test_marked_processes_and_all_below_them_are_killed_wherever_they_went_and_no_others(tmp_path):
    mark = a_mark()
    with subprocess.Popen([sys.executable, "-c", MARKED, mark], cwd=ROOT, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        stranger, *family = [int(word) for word in starter.stdout.readline().split()]
    try:
        assert all(is_alive(pid) for pid in [stranger, *family])
        assert guardian.run_processes(NO_GROUP, mark) == set(family)
        assert guardian.run_processes(NO_GROUP, f"{mark}.7;") == set(family) and not guardian.run_processes(
            NO_GROUP, f"{mark}.77;"
        )
        command = [sys.executable, "-I", "-S", guardian.__file__, str(tmp_path / mark)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
        assert seconds_until_gone(family) < 2.0
        assert is_alive(stranger)
    finally:
        for pid in filter(is_alive, [stranger, *family]):
            os.kill(pid, signal.SIGKILL)


MARKED_LATER = """
import sys, time
from appo.utils import processes
print("not yet", flush=True)
sys.stdin.readline()
held = processes.mark_descendants(sys.argv[1])
print("marked", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("environment", [{}, {"WORD": "something"}])
def test_a_process_that_shows_no_environment_yet_is_looked_at_again(environment):
    """As one that is just being replaced by the program that it executes; others are looked at once."""
    mark, unmarked = a_mark(), set[tuple[int, int]]()
    command = [sys.executable, "-c", MARKED_LATER, mark]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"not yet\n"
        assert not guardian.run_processes(NO_GROUP, mark, unmarked)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"marked\n"
        assert guardian.run_processes(NO_GROUP, mark, unmarked) == (set() if environment else {process.pid})
        process.kill()


def test_no_process_bears_an_empty_mark():
    assert not guardian.bears(os.getpid(), "")
    assert not guardian.run_processes(NO_GROUP, "")
