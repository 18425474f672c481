"""Runs whose environments live in processes of their own: what ends one of these costs that environment alone."""

from __future__ import annotations

import random
import signal
import time

import numpy as np
import psutil
import pytest

from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL

SUBPROC = ("--env_backend=subproc", "--num_workers=2", "--num_envs_per_worker=4", "--device=cpu")
OPTIONS = ("--experiment_summaries_interval=1", "--use_rnn=False")


def env_processes(run, env="CartPole-v1"):
    family = psutil.Process(run.process.pid).children(recursive=True)
    return [process for process in family if name_of(process).startswith(f"{env}:")]


def name_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.slow
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


def held(run):
    """Processes, open descriptors and private memory (MB) of a run."""
    family = [psutil.Process(run.process.pid)]
    family += family[0].children(recursive=True)
    descriptors, private_mb = 0, 0.0
    for process in family:
        try:
            descriptors += process.num_fds()
            private_mb += process.memory_full_info().uss / 1e6
        except psutil.NoSuchProcess:
            continue
    return len(family), descriptors, private_mb


@pytest.mark.slow
def test_a_minute_of_kills_leaves_processes_descriptors_and_memory_as_they_were(start):
    run = start(*SUBPROC, *OPTIONS, "--env_procs_per_worker=2", "--train_for_env_steps=1e9")
    run.wait_for_training(frames=20_000)
    rng, kills, looks = random.Random(2), 0, []
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        rng.choice(env_processes(run)).kill()
        kills += 1
        run.wait_for(lambda: run.status()["faults"]["env_crashes"] >= kills)  # noqa: B023
        time.sleep(rng.uniform(0.2, 0.8))
        looks.append(held(run))
    print(f"{kills} kills; at first {looks[4]}, at last {looks[-1]}")
    assert kills > 40
    processes, descriptors, private_mb = (np.array(each) for each in zip(*looks, strict=True))
    assert np.median(processes[-10:]) == np.median(processes[5:15])
    # A process that is forked later inherits what its elders did not; one leak for each kill would be forty.
    assert np.median(descriptors[-10:]) < np.median(descriptors[5:15]) + 8
    assert np.median(private_mb[-10:]) < np.median(private_mb[5:15]) + 5.0
    faults = run.status()["faults"]
    assert faults["env_crashes"] == kills and faults["restarts"] == 0
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output


def test_the_engine_of_a_killed_process_goes_with_it_and_another_one_plays(start):
    options = ["--num_workers=1", "--num_envs_per_worker=2", "--env_procs_per_worker=2", "--train_for_env_steps=1e9"]
    run = start("--env_backend=subproc", "--device=cpu", *OPTIONS, *options, env="doom_basic")
    run.wait_for(lambda: run.status().get("env_frames", 0) > 500)

    def engines():
        below = psutil.Process(run.process.pid).children(recursive=True)
        return {process.pid for process in below if "vizdoom" in name_of(process)}

    before = engines()
    assert len(before) == 2
    (victim, _) = env_processes(run, "doom_basic")
    its_engine = {process.pid for process in victim.children(recursive=True)} & before
    assert len(its_engine) == 1
    victim.kill()
    run.wait_for(lambda: not any(psutil.pid_exists(pid) for pid in its_engine), 5.0)
    frames = run.status()["env_frames"]
    run.wait_for(lambda: len(engines()) == 2 and run.status()["env_frames"] > frames + 500)
    assert before - its_engine < engines(), "the other engine goes on"
    assert run.status()["faults"]["env_crashes"] == 1 and run.status()["faults"]["restarts"] == 0
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output


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
