"""The check of how environments close: it counts, and sees what is left of processes that were killed."""

import random
import subprocess
import sys

import psutil
import pytest

from appo.utils.processes import is_alive
from benchmarks.faults import env_closes
from tests.architecture.source_tree import ROOT

# The engine's parent has ended, and it has a session of its own.
LEAVES = """
import subprocess
from benchmarks.faults import env_closes

def leave_an_engine(*trouble, **how):
    subprocess.run(["sh", "-c", "setsid sleep 98.75 >/dev/null 2>&1 &"], check=True)
    return 0.0

env_closes.close_once = leave_an_engine
raise SystemExit(env_closes.main(["--closes=2"]))
"""


def run(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


def test_what_a_killed_process_has_left_is_reported_and_ended():
    done = run("-c", LEAVES)
    try:
        assert done.returncode == 1 and "2 left a process" in done.stdout, done.stdout + done.stderr
    finally:
        left = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "98.75"]]
        for process in left:
            process.kill()
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_few_closes_pass():
    done = run("-m", "benchmarks.faults.env_closes", "--closes=6", "--doom_share=0", "--seed=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 closes with a timeout of 1 s; 0 took more than 3 s, 0 left a process, 0 files" in done.stdout


def test_an_engine_has_been_started_before_its_environment_is_closed(monkeypatch):
    started: list[psutil.Process] = []

    class Recorded:
        def __init__(self, environments):
            self.environments = environments

        def __getattr__(self, name):
            if name == "_envs":  # asked for before anything is killed
                started.extend(child for child in psutil.Process().children(recursive=True) if is_engine(child))
            return getattr(self.environments, name)

    def is_engine(process):
        try:
            return "import time; time.sleep(3600)" in process.cmdline()
        except psutil.Error:  # another test's, that has ended
            return False

    make = env_closes.make_vec_env
    monkeypatch.setattr(env_closes, "make_vec_env", lambda *args, **options: Recorded(make(*args, **options)))
    rng = random.Random(0)
    monkeypatch.setattr(rng, "random", lambda: 0.0)  # no pause, and a process is killed
    env_closes.close_once("engine", "fork", rng, 1.0, plays_doom=False)
    assert len(started) == 4 and not any(is_alive(engine.pid) for engine in started)
