"""With how many threads a learner computes, and how threads wait for each other."""

import json
import os
import subprocess
import sys
import time

import pytest

from appo.algorithms.workers.thread_trial import LEAST_S, SAMPLES, ThreadTrial
from tests.architecture.source_tree import ROOT


def played(trial, used, ms, disturbed=lambda iteration: False):
    """Iterations until the trial is over, each of which takes as long as its number of threads needs."""
    iterations, spent = 0, 0.0
    while not trial.is_over and spent < 1000.0:
        took = ms[used[-1]] / 1000 * (5 if disturbed(iterations) else 1)
        trial.took(took)
        iterations, spent = iterations + 1, spent + took
    return iterations


@pytest.mark.parametrize(
    ("ms", "threads", "comparisons"),
    [
        ({8: 1000, 4: 1200}, 8, 1),
        ({8: 1000, 4: 1090, 2: 1300}, 4, 2),
        ({8: 1000, 4: 800, 2: 700, 1: 600}, 1, 3),
        ({6: 1000, 3: 900, 1: 2000}, 3, 2),
        ({2: 1000, 1: 1110}, 2, 1),
    ],
)
@pytest.mark.parametrize("other", [range(6), range(3, 9), (4, 5, 7)])
def test_threads_are_halved_until_iterations_take_longer_whatever_comes_between(
    ms, threads, comparisons, other, caplog
):
    caplog.set_level("INFO")
    used = [max(ms)]
    trial = ThreadTrial(max(ms), used.append)
    # At least one iteration with each number is left alone.
    iterations = played(trial, used, ms, lambda iteration: iteration > 0 and (iteration - 1) % (2 * SAMPLES) in other)
    assert used[-1] == trial.threads == threads
    assert trial.is_over and iterations == 1 + comparisons * 2 * SAMPLES
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"computes with {threads} of {max(ms)} threads: ") and f"{ms[threads]:.3g} ms" in said
    trial.took(1.0)
    assert used[-1] == threads


def test_what_happens_in_every_second_iteration_happens_to_both():
    used = [4]
    trial = ThreadTrial(4, used.append)
    played(trial, used, {4: 500, 2: 1000})
    assert used == [4, 2, 2, 4] * (SAMPLES // 2) + [4]
    used = [4]
    trial = ThreadTrial(4, used.append)
    played(trial, used, {4: 1000, 2: 1000, 1: 1000}, lambda iteration: iteration % 2 == 0)
    assert trial.threads == 1


def test_short_iterations_are_compared_for_some_seconds():
    used = [2]
    iterations = played(ThreadTrial(2, used.append), used, {2: 10, 1: 5})
    assert iterations * 0.0075 == pytest.approx(LEAST_S, rel=0.05) and used[-1] == 1


# A run on a machine that seems to have four cores.
RUN = """
import sys
from appo.algorithms.workers import placement

placement.core_count = lambda: 4
sys.argv[0] = "train_appo.py"
from appo import train_appo

sys.exit(train_appo.main(sys.argv))
"""


def test_a_learner_tries_as_it_begins_and_says_what_it_found(tmp_path):
    command = [sys.executable, "-c", RUN, "--env=CartPole-v1", "--experiment=x", f"--train_dir={tmp_path}"]
    command += ["--num_workers=1", "--num_envs_per_worker=8", "--device=cpu"]
    log = tmp_path / "x/log/learner-0.txt"
    deadline = time.monotonic() + 90.0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as run:
        try:
            while not log.exists() or "of 2 threads: an iteration takes" not in log.read_text():
                assert run.poll() is None and time.monotonic() < deadline, log.exists() and log.read_text()
                time.sleep(0.1)
        finally:
            run.terminate()
    assert run.returncode == 143
    assert json.loads((tmp_path / "x/summary.json").read_text())["env_frames"] > 0


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(tmp_path, own, expected):
    code = (
        "import os, sys\n"
        "from appo.algorithms.workers.process_launcher import ProcessLauncher, TimeLimit\n"
        "launcher = ProcessLauncher(sys.path)\n"
        "try:\n"
        "    launcher.import_torch()\n"
        "    for uses_torch in (False, True):\n"
        "        told = launcher.run_once('os:getenv', ('OMP_WAIT_POLICY',), TimeLimit(60.0), lambda: False, "
        "uses_torch=uses_torch)\n"
        "        print(told)\n"
        "    print(os.environ.get('OMP_WAIT_POLICY'))\n"
        "finally:\n"
        "    launcher.kill_everything()\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    variables |= {"OMP_WAIT_POLICY": own} if own else {}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == [expected, expected, str(own)], done.stdout + done.stderr
