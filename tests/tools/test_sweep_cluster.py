"""Sweeps whose trials are jobs, with submitit's jobs of this machine; a program stands in for the trainer."""

import os
import re
import signal

import psutil
import pytest

from appo.tools.sweep import main, show_status
from appo.tools.sweep_cluster import Cluster, unfinished_job
from appo.tools.sweep_processes import LOCKS, lock_file
from appo.tools.sweep_state import RUNNING, WAITING, Record, Sweep, write_sweep
from tests.tools.sweep_cases import FINISH, STARTS, TWICE, Launched, nothing_left_in, starts, states, wait_for

BASE = '[base]\nenv = "CartPole-v1"\n'
JOBS = '[slurm]\ncluster = "local"\ntimeout_min = 10\n'


@pytest.fixture
def launch(tmp_path):
    """Starts launchers of a plan in the test's folder; nothing of them is left afterwards."""
    with nothing_left_in(tmp_path) as launched:

        def begin(plan, *words):
            (tmp_path / "plan.toml").write_text(plan)
            launched.append(Launched(tmp_path / "plan.toml", *words))
            return launched[-1]

        yield begin


def job_of(trial):
    """The process of submitit that runs a trial."""
    return psutil.Process(starts(trial)[-1]["pid"]).parent()


def test_all_trials_are_jobs_and_one_that_fails_is_tried_again(launch, tmp_path):
    plan = JOBS + BASE + '[grid]\ncallback = ["fails:0", "fails:1", "refused:9"]\n'
    code, printed = launch(plan).end()
    sweep = tmp_path / "train_dir" / "plan"
    assert code == 1, printed
    ended = {name.removeprefix("callback="): state for name, state in states(sweep).items()}
    assert ended == {"fails_0": "done", "fails_1": "done", "refused_9": "refused"}
    assert len(starts(sweep / "callback=fails_1")) == 2 and printed.count(": queued") == 4
    assert all("num_workers" not in starts(sweep / name)[0]["options"] for name in states(sweep)), "the job's cores"


def test_a_job_whose_time_is_over_saves_and_is_queued_again(launch, tmp_path):
    sweep = tmp_path / "train_dir" / "plan"
    launcher = launch(JOBS + BASE + "train_for_seconds = 60\n")
    wait_for(lambda: (sweep / "trial" / STARTS).exists())
    job_of(sweep / "trial").send_signal(signal.SIGUSR2)
    wait_for(lambda: len(starts(sweep / "trial")) == 2)
    assert float((sweep / "trial" / "worked.txt").read_text()) > 0, "it had saved before"
    (sweep / FINISH).touch()
    code, printed = launcher.end()
    assert code == 0, printed
    assert len(starts(sweep / "trial")) == 2 and not (sweep / "trial" / TWICE).exists()


def test_jobs_outlive_their_launcher_and_are_found_again(launch, tmp_path):
    plan = JOBS + BASE + "train_for_seconds = 60\n[grid]\nlearning_rate = [1e-3, 2e-3, 3e-3]\n"
    sweep = tmp_path / "train_dir" / "plan"
    first = launch(plan, "--parallel=2")
    wait_for(lambda: len(list(sweep.glob(f"*/{STARTS}"))) == 2)
    first.process.kill()
    first.process.wait()  # what it printed goes on: jobs of this machine have its output
    second = launch(plan, "--parallel=2")
    wait_for(lambda: "runs already" in second.process.stdout.readline())
    (sweep / FINISH).touch()
    assert second.end()[0] == 0
    assert list(states(sweep).values()) == ["done"] * 3
    assert [len(starts(sweep / name)) for name in states(sweep)] == [1, 1, 1]


def test_a_signal_ends_the_jobs_and_the_same_command_goes_on(launch, tmp_path):
    plan = JOBS + BASE + "train_for_seconds = 60\n"
    trial = tmp_path / "train_dir" / "plan" / "trial"
    launcher = launch(plan)
    wait_for(lambda: (trial / STARTS).exists())
    launcher.process.send_signal(signal.SIGTERM)
    code, printed = launcher.end()
    assert code == 143 and "go on with" in printed, printed
    assert not psutil.pid_exists(starts(trial)[0]["pid"])
    (trial.parent / FINISH).touch()
    assert launch(plan).end()[0] == 0
    assert len(starts(trial)) == 2


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands of a Slurm that takes every job and says of each what is in a file."""
    state = tmp_path / "state.txt"
    state.write_text("RUNNING")
    answers = {
        "srun": "exit 0",
        "sbatch": "echo Submitted batch job 12",
        "sacct": f"echo 'JobID|State|NodeList'; echo \"12|$(cat {state})|node1\"",
    }
    (tmp_path / "bin").mkdir()
    for name, answer in answers.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return state


@pytest.mark.parametrize(("table", "most"), [({}, 1_000_000), ({"slurm_max_num_timeout": 5}, 5)])
def test_a_job_of_slurm_may_go_on_as_often_as_its_time_is_over(slurm, tmp_path, table, most):
    from submitit.core.utils import DelayedSubmission

    (tmp_path / LOCKS).mkdir()
    Cluster(tmp_path, table).start("a", ["true"], lock_file(tmp_path, "a"), tmp_path / "a.txt")
    (submitted,) = (tmp_path / "jobs").glob("*_submitted.pkl")
    assert DelayedSubmission.load(submitted)._timeout_countdown == most


def test_a_job_of_slurm_is_shown_as_running_until_it_has_ended(slurm, tmp_path, capsys):
    (tmp_path / LOCKS).mkdir()
    Cluster(tmp_path, {}).start("a", ["true"], lock_file(tmp_path, "a"), tmp_path / "a.txt")
    write_sweep(tmp_path, Sweep("reward", "maximize", {"a": Record({}, RUNNING), "b": Record({}, RUNNING)}))
    show_status(tmp_path)
    rows = {words[0]: words for line in capsys.readouterr().out.splitlines() if (words := re.findall(r"\w+", line))}
    assert RUNNING in rows["a"] and WAITING in rows["b"]
    assert unfinished_job(tmp_path, lock_file(tmp_path, "a")) is not None
    slurm.write_text("FAILED")
    wait_for(lambda: unfinished_job(tmp_path, lock_file(tmp_path, "a")) is None)  # submitit asks every two seconds


def test_a_batch_system_that_fails_once_is_asked_again(slurm, launch, tmp_path):
    asked = tmp_path / "asked"
    once = f"[ -e {asked} ] || {{ touch {asked}; echo no answer >&2; exit 1; }}"
    (tmp_path / "bin" / "sbatch").write_text(f"#!/bin/sh\n{once}\necho Submitted batch job 12\n")
    launcher = launch("[slurm]\n" + BASE)
    wait_for(lambda: states(tmp_path / "train_dir" / "plan") == {"trial": RUNNING})
    launcher.process.kill()
    printed = launcher.end()[1]
    assert printed.count("could not be started (trial was not queued") == 1 and printed.count(": queued") == 1


def test_a_job_that_cannot_be_recorded_is_taken_out_of_the_queue(slurm, tmp_path):
    (tmp_path / "bin" / "scancel").write_text(f"#!/bin/sh\necho $* >> {tmp_path / 'cancelled.txt'}\n")
    (tmp_path / "bin" / "scancel").chmod(0o755)
    (tmp_path / LOCKS / "a.job").mkdir(parents=True)  # in the way of the record
    with pytest.raises(OSError):
        Cluster(tmp_path, {}).start("a", ["true"], lock_file(tmp_path, "a"), tmp_path / "a.txt")
    assert "12" in wait_for((tmp_path / "cancelled.txt").read_text)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("", "[slurm]"),  # there is no Slurm here
        ('cluster = "pbs"', "known: slurm, local"),
        ('cluster = "local"\nnonsense = 3', "nonsense"),
        ('cluster = "local"\nslurm_max_num_timeout = "often"', "slurm_max_num_timeout is 'often'"),
    ],
)
def test_what_cannot_be_queued_is_refused_and_nothing_is_written(tmp_path, capsys, monkeypatch, table, told):
    monkeypatch.setenv("PATH", os.devnull)
    (tmp_path / "plan.toml").write_text(f"{BASE}[slurm]\n{table}\n")
    assert main([str(tmp_path / "plan.toml"), f"--train_dir={tmp_path / 'runs'}"]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()
