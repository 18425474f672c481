"""Runs whose environments live in processes of their own: what ends one of these costs that environment alone."""

from __future__ import annotations

import random
import signal
import time

import psutil
import pytest

from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL

SUBPROC = ("--env_backend=subproc", "--num_workers=2", "--num_envs_per_worker=4", "--device=cpu")
OPTIONS = ("--experiment_summaries_interval=1", "--use_rnn=False")


def env_processes(run):
    family = psutil.Process(run.process.pid).children(recursive=True)
    return [process for process in family if name_of(process).startswith("CartPole-v1:")]


def name_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_environments_that_end_their_process_cost_themselves_only_and_the_score_is_reached(start):
    faults = ["--synthetic_exit_probability=1e-4", "--synthetic_fault_probability=0", "--synthetic_stall_probability=0"]
    options = [*OPTIONS, *faults, "--train_for_env_steps=100000", "--stats_avg=50"]
    run = start(*SUBPROC, *options, env="synthetic_unreliable_cartpole")
    assert run.end() == 0, run.output
    faults = run.status()["faults"]
    assert 2 <= faults["env_crashes"] <= 45
    assert not any(count for name, count in faults.items() if name != "env_crashes"), "no actor is restarted"
    points = list(read_json_lines(run.folder / "metrics.jsonl"))
    assert points[-1]["stats/env_crashes"] == faults["env_crashes"]
    assert max(point.get("0_aux/avg_reward", 0) for point in points) >= 400


def test_killed_and_stopped_processes_are_started_anew_while_the_actors_go_on(start):
    options = ["--env_procs_per_worker=2", "--env_step_timeout=1", "--train_for_env_steps=1e9"]
    run = start(*SUBPROC, *OPTIONS, *options)
    run.wait_for_training()
    assert len(env_processes(run)) == 4
    rng = random.Random(1)
    for signals, number in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGKILL), 1):
        rng.choice(env_processes(run)).send_signal(number)
        run.wait_for(lambda: run.status()["faults"]["env_crashes"] >= signals)  # noqa: B023
        frames = run.status()["env_frames"]
        run.wait_for(lambda: run.status()["env_frames"] > frames + 1000)  # noqa: B023
    assert len(env_processes(run)) == 4
    faults = run.status()["faults"]
    assert faults["env_crashes"] == 4 and not any(n for name, n in faults.items() if name != "env_crashes")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.output


def test_a_killed_driver_takes_processes_of_environments_along(start):
    run = start(*SUBPROC, *OPTIONS, "--train_for_env_steps=1e9")
    run.wait_for_training()
    pids = [process.pid for process in env_processes(run)]
    assert len(pids) == 8
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 2.0
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--env_procs_per_worker=2"], "env_procs_per_worker=2 is for env_backend=subproc"),
        (["--env_backend=subproc", "--env_procs_per_worker=3"], "should be a multiple of worker_num_splits=2"),
        (["--env_backend=subproc", "--serial_mode=True"], "serial_mode=True runs everything in one process"),
        (["--env_backend=native"], "no vectorised form"),
    ],
)
def test_what_does_not_fit_is_refused(start, options, why):
    run = start(*SMALL, *options, env="Acrobot-v1")
    assert run.end() == 2
    assert why in run.output and not run.folder.exists()
