"""Signals to a whole process group, as a terminal, `timeout`, Slurm or systemd sends them: only the driver decides."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest

from appo.algorithms import checkpoints
from tests.end_to_end.conftest import SMALL, wait_for_end

ENDING = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129, signal.SIGUSR2: 140}


def signal_group(run, number):
    """To the driver's process group, as a shell and `timeout` do."""
    os.killpg(run.process.pid, number)


def signal_everything(run, number):
    """To every process of the run, as systemd and a batch system do."""
    for process in run.tree().values():
        with contextlib.suppress(psutil.NoSuchProcess):  # those that were told first may have made it end meanwhile
            process.send_signal(number)


@pytest.mark.parametrize(
    "send, number", [(signal_group, signal.SIGTERM), *((signal_everything, number) for number in ENDING)]
)
def test_a_signal_to_the_group_or_to_every_process_saves_and_ends_the_run(start, send, number):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    family = list(run.tree().values())
    told, sent = run.status(), time.time()
    send(run, number)
    assert run.end() == ENDING[number], run.output
    saved = run.saved()
    assert saved.path.stat().st_mtime >= sent and saved.env_frames >= told["env_frames"]
    assert not wait_for_end(family, seconds=2.0)
    assert "failed" not in run.output and "was killed" not in run.output


def test_sigusr1_to_every_process_saves_and_the_run_goes_on(start):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    signal_everything(run, signal.SIGUSR1)
    run.wait_for(lambda: checkpoints.list_checkpoints(run.folder / "checkpoint_p0"))
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames)
    assert run.status()["faults"]["restarts"] == 0
    run.signal(signal.SIGTERM)
    assert run.end() == 143


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_while_the_run_starts_ends_it_with_the_same_code(start, number):
    run = start(*SMALL)
    deadline = time.monotonic() + 30.0
    while "forkserver" not in run.tree():
        assert time.monotonic() < deadline and run.process.poll() is None
        time.sleep(0.005)
    os.killpg(run.process.pid, number)
    assert run.end() == ENDING[number], run.output
    assert "failed" not in run.output


def test_nohup_keeps_a_run_alive_when_its_terminal_is_closed(start):
    """A shell sends SIGHUP to its jobs when it ends; nohup starts them with that signal ignored."""
    run = start(*SMALL, before=["nohup"])
    run.wait_for_training()
    os.killpg(run.process.pid, signal.SIGHUP)
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames + 1000)
    run.signal(signal.SIGTERM)
    assert run.end() == 143
