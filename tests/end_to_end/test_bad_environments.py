"""Environments that raise, hang at the start or give bad data: who is mended, what is refused, what ends the run."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import SMALL

BROKEN = """
import gymnasium
import numpy as np

class Broken(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        self.steps += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        {fault}
        return observation, reward, terminated, truncated, info

def make_env():
    return Broken(gymnasium.make("CartPole-v1", disable_env_checker=True))
"""
RAISES = "raise ZeroDivisionError('the wheel came off')"
OPTIONS = (*SMALL, "--use_rnn=False")


@pytest.fixture
def broken(tmp_path, start):
    """Starts a run on a CartPole with a fault."""

    def begin(fault, *options):
        (tmp_path / "broken.py").write_text(BROKEN.format(fault=fault))
        return start(*OPTIONS, *options, env="broken:make_env")

    return begin


@pytest.mark.parametrize("mode", ["--serial_mode=False", "--serial_mode=True"])
def test_environments_that_raise_every_few_hundred_steps_are_built_anew_and_the_run_goes_on(broken, mode):
    run = broken(f"if self.steps > 200: {RAISES}", "--train_for_env_steps=20000", mode)
    assert run.end() == 0, run.output
    troubles = run.status()["troubles"]
    # Every 201st step of an environment is lost, also those before the first rollout.
    assert 60 < troubles["env_crashes"] < 130 and not troubles["env_bad_data"]
    assert not any(count for name, count in troubles.items() if name != "env_crashes"), "nobody else is restarted"
    if mode.endswith("False"):
        log = (run.folder / "log" / "actor-00.txt").read_text()
        assert "of broken:make_env (worker 0, place " in log and "the wheel came off; it is built anew" in log
        assert log.count("the wheel came off") < 40, "a line a second, not one per crash"


def test_an_environment_that_always_raises_is_told_before_any_worker_starts(broken):
    run = broken(RAISES)
    assert run.end() == 1
    last = run.output.strip().splitlines()[-1]
    assert "step 1 of the check before the start" in last and last.endswith("the wheel came off")
    assert "Traceback" in run.output and not run.folder.exists()


def test_an_environment_that_always_raises_ends_the_run_with_its_traceback_last(broken):
    run = broken(RAISES, "--check_env=False", "--max_env_rebuilds=3", "--restart_pause_seconds=0.1")
    assert run.end() == 1
    assert "Traceback" in run.output and "in step" in run.output and "environment" in run.output
    assert "the wheel came off" in run.output.strip().splitlines()[-1]


NAN = "if self.steps == {step}: observation[1] = np.nan"


def test_bad_data_are_refused_before_anything_is_written(broken):
    run = broken(NAN.format(step=5))
    assert run.end() == 2
    assert "step 5: 'obs' should be finite, but is nan" in run.output.strip().splitlines()[-1]
    assert not run.folder.exists()


def test_bad_data_end_the_run_without_another_try_and_are_named(broken):
    run = broken(NAN.format(step=500))
    assert run.end() == 1
    last = run.output.strip().splitlines()[-1]
    assert "of broken:make_env (worker " in last and "'obs' should be finite, but is nan in 1 of 4 numbers" in last
    assert run.status()["troubles"]["env_bad_data"] == 0, "it was not dropped"


def test_bad_data_are_dropped_where_that_is_asked_for(broken):
    run = broken(
        "if self.steps % 150 == 149: reward = float('inf')", "--on_bad_env_data=drop", "--train_for_env_steps=15000"
    )
    assert run.end() == 0, run.output
    troubles = run.status()["troubles"]
    assert 60 < troubles["env_bad_data"] < 140 and not troubles["env_crashes"]


@pytest.mark.parametrize(
    "fault, message",
    [
        ("import time; time.sleep(1000 * (self.steps == 7))", "did not finish within 3 s; it was in step 7 of"),
        ("import os; self.steps == 7 and os._exit(9)", "ended by itself with exit code 9; it was in step 7 of"),
    ],
)
def test_an_environment_that_hangs_or_dies_before_the_start_is_named_with_its_step(broken, fault, message):
    run = broken(fault, "--reset_timeout_seconds=3")
    assert run.end() == 1
    assert message in run.output.strip().splitlines()[-1]
    assert not run.folder.exists()
