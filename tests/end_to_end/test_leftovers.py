"""What environments start beside themselves: it goes with its worker or with the run, and holds neither of them up."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time

import psutil
import pytest

from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL, wait_for_end

# An environment that starts processes when it is built, and writes their process ids into a file of its own.
STARTS = """
import os, pathlib, subprocess, sys, time
import gymnasium

FOLDER = pathlib.Path({folder!r})

def note(pid):
    (FOLDER / f"started_{{os.getpid()}}_{{pid}}").touch()

def forked(session):
    pid = os.fork()
    if pid == 0:
        if session:
            os.setsid()
        while True:
            time.sleep(1000)
    note(pid)

def executed(**options):
    note(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"], **options).pid)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        note(os.getpid())
        while True:
            time.sleep(1000)
    os.wait()

def make_env():
    {body}
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def starts(start, tmp_path):
    """A run of an environment whose factory does something."""

    def begin(body, *options, **keywords):
        body = textwrap.indent(textwrap.dedent(body), "    ").strip()
        (tmp_path / "starts.py").write_text(STARTS.format(folder=str(tmp_path), body=body))
        return start(*SMALL, "--use_rnn=False", *options, env="starts:make_env", **keywords)

    return begin


def started(folder, worker=None):
    """Processes that environments started; those of one worker alone when it is given."""
    pids = [path.name.split("_")[1:] for path in folder.glob("started_*")]
    found = []
    for parent, pid in pids:
        if (worker is None or int(parent) == worker) and psutil.pid_exists(int(pid)):
            found.append(psutil.Process(int(pid)))
    return found


EVERYTHING = "forked(session=False); forked(session=True); executed(); executed(start_new_session=True); daemon()"


def test_nothing_that_environments_started_outlives_a_killed_driver(starts, tmp_path):
    run = starts(EVERYTHING)
    run.wait_for_training()
    left = started(tmp_path)
    assert len(left) >= 16 * 5
    run.process.kill()
    assert not wait_for_end(left, seconds=2.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_environments_of_a_run_in_one_process_executed_ends_with_it(starts, tmp_path, number):
    run = starts("executed(); executed(start_new_session=True)", "--serial_mode=True")
    run.wait_for_training()
    left = started(tmp_path)
    assert len(left) >= 16 * 2
    run.signal(number)
    assert run.end() == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number]
    assert not wait_for_end(left, seconds=2.0)


@pytest.mark.alone
def test_what_an_actor_started_goes_with_it_and_with_the_end_of_the_run(starts, tmp_path):
    run = starts(EVERYTHING)
    run.wait_for_training()
    # Titles are inherited as well, so workers are told by having started something.
    parents = {int(path.name.split("_")[1]) for path in tmp_path.glob("started_*")}
    first, second = sorted(pid for pid in parents if len(started(tmp_path, pid)) == 8 * 4)
    of_actor, others = started(tmp_path, first), started(tmp_path, second)
    os.kill(first, signal.SIGKILL)
    path = run.folder / "events.jsonl"
    run.wait_for(lambda: path.exists() and any(e["event"] == "working" for e in read_json_lines(path)))
    assert not wait_for_end(of_actor, seconds=2.0)
    assert all(process.is_running() for process in others)
    left = started(tmp_path)
    run.signal(signal.SIGTERM)
    assert run.end() == 143
    assert not wait_for_end(left, seconds=0.5)


def test_a_daemon_that_an_environment_left_does_not_keep_the_run_from_its_end(starts, tmp_path):
    """It holds every descriptor that it inherited, and no mark by which it could be found."""
    run = starts("executed(start_new_session=True, env={}, close_fds=False)", "--train_for_env_steps=5000")
    assert run.end() == 0, run.output
    for process in started(tmp_path):
        process.kill()


def test_what_the_run_did_not_start_survives_it(start):
    """As in `tensorboard & exec python train_appo.py`: the other program is a child of the driver."""
    shell = f"{sys.executable} -S -c 'import time; time.sleep(1000)' >/dev/null 2>&1 & exec \"$@\""
    run = start(*SMALL, "--train_for_env_steps=5000", before=["sh", "-c", shell, "sh"])
    run.wait_for_training()
    [other] = [process for title, process in run.tree().items() if title.endswith("import time; time.sleep(1000)")]
    try:
        assert run.end() == 0, run.output
        assert other.is_running() and other.status() != psutil.STATUS_ZOMBIE
    finally:
        other.kill()


@pytest.mark.parametrize("helper", ["forkserver", "guardian"])
def test_a_signal_ends_a_run_whose_helpers_are_stopped(start, helper):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    run.kill(helper, signal.SIGSTOP)
    family = list(run.tree().values())
    if helper == "forkserver":  # which the driver now waits for
        run.kill("actor-01")
        time.sleep(0.5)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert run.saved().train_step > 0
    assert not wait_for_end(family, seconds=1.0)


def test_a_run_that_is_started_while_its_forkserver_is_stopped_ends_by_a_signal(start):
    run = start(*SMALL)
    while "forkserver" not in run.tree():
        assert run.process.poll() is None
    run.kill("forkserver", signal.SIGSTOP)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end() == 143, run.output
    assert not run.folder.exists()
