"""With how many threads a learner computes, and how threads wait for each other."""

import json
import os
import subprocess
import sys

import pytest

from appo.algorithms.workers.thread_trial import TURNS, ThreadTrial
from tests.architecture.source_tree import ROOT


@pytest.mark.parametrize(
    ("ms", "threads", "iterations"),
    [
        ({8: 10, 4: 15}, 8, 2 * TURNS),
        ({8: 10, 4: 10.2, 2: 12}, 4, 4 * TURNS),
        ({8: 10, 4: 8, 2: 7, 1: 6}, 1, 6 * TURNS),
        ({6: 10, 3: 9, 1: 20}, 3, 4 * TURNS),
        ({2: 10, 1: 10.4}, 2, 2 * TURNS),
    ],
)
def test_threads_are_halved_for_as_long_as_iterations_do_not_take_longer(ms, threads, iterations, caplog):
    caplog.set_level("INFO")
    used = [max(ms)]
    trial = ThreadTrial(max(ms), used.append)
    for iteration in range(50):
        # In one iteration with each number something else came between.
        trial.took(ms[used[-1]] * (5 if iteration % (2 * TURNS) in (0, 3) else 1) / 1000)
    assert used[-1] == trial.threads == threads
    assert len(used) - 1 == iterations and trial.is_over
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"computes with {threads} of {max(ms)} threads: ") and f"{ms[threads]:.3g} ms" in said


def test_both_numbers_take_turns():
    used = [4]
    trial = ThreadTrial(4, used.append)
    for _ in range(2 * TURNS):
        trial.took(1.0 if used[-1] == 4 else 2.0)
    assert used == [4, 2] * TURNS + [4]


# A run on a machine that seems to have four cores.
RUN = """
import sys
from appo.algorithms.workers import placement

placement.core_count = lambda: 4
sys.argv[0] = "train_appo.py"
from appo import train_appo

sys.exit(train_appo.main(sys.argv))
"""


@pytest.mark.parametrize(("options", "tries"), [([], True), (["--learner_threads=1"], False)])
def test_a_learner_tries_as_it_begins_and_says_what_it_found(tmp_path, options, tries):
    command = [sys.executable, "-c", RUN, "--env=CartPole-v1", "--experiment=x", f"--train_dir={tmp_path}"]
    command += ["--num_workers=1", "--num_envs_per_worker=8", "--device=cpu", "--train_for_env_steps=20000", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "x/summary.json").read_text())["env_frames"] >= 20_000
    said = (tmp_path / "x/log/learner-0.txt").read_text()
    assert ("of 2 threads: an iteration takes" in said) is tries, said


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
