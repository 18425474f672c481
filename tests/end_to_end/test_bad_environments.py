"""Environments that raise, hang at the start or give bad data: which recover, which are refused, which end the run."""

from __future__ import annotations

import time

import pytest

from appo.utils.files import read_json_lines
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


@pytest.mark.parametrize("mode", ["--serial_mode=False", pytest.param("--serial_mode=True", marks=pytest.mark.slow)])
def test_environments_that_raise_every_few_hundred_steps_are_built_anew_and_the_run_goes_on(broken, mode):
    run = broken(f"if self.steps > 200: {RAISES}", "--train_for_env_steps=20000", mode)
    assert run.end() == 0, run.output
    faults = run.status()["faults"]
    # Every 201st step of an environment is lost, also those before the first rollout.
    assert 60 < faults["env_crashes"] < 130 and not faults["env_bad_data"]
    assert not any(count for name, count in faults.items() if name != "env_crashes"), "nobody else is restarted"
    if mode.endswith("False"):
        log = (run.folder / "log" / "actor-00.txt").read_text()
        assert "of broken:make_env (worker 0, place " in log and "the wheel came off; it is built anew" in log
        assert log.count("the wheel came off") < 40, "a line a second, not one per crash"
    told = [line for line in run.output.splitlines() if "ZeroDivisionError: the wheel came off; it begins anew" in line]
    assert len(told) == (0 if "True" in mode else 1), "in a terminal one a minute, with the file that has more"
    events = [each for each in read_json_lines(run.folder / "events.jsonl") if each["event"] == "environment_failed"]
    assert len(events) == 1 and "the wheel came off" in events[0]["cause"]


def test_an_environment_that_always_raises_is_told_before_any_worker_starts(broken):
    run = broken(RAISES)
    assert run.end() == 1
    last = run.output.strip().splitlines()[-1]
    assert last.startswith("train_appo.py: error: run failed: environment 0 of broken:make_env ")
    assert "step 1 of the check before the start" in last
    assert last.endswith("ZeroDivisionError: the wheel came off (broken.py, line 10; --debug prints the traceback)")
    assert run.output.strip() == last and not run.folder.exists()


def test_an_environment_that_always_raises_ends_the_run_with_its_traceback_last(broken):
    run = broken(RAISES, "--check_env=False", "--max_env_rebuilds=3", "--restart_pause_seconds=0.1")
    assert run.end() == 1
    last, log = run.output.strip().splitlines()[-1], run.folder / "log" / "driver.txt"
    assert " error: run failed: actor-0" in last and "environment" in last and "failed in step" in last
    assert last.endswith(f"the wheel came off (broken.py, line 10; {log} has the traceback)")
    assert "Traceback" not in run.output and "Traceback" in log.read_text()


NAN = "if self.steps == {step}: observation[1] = np.nan"


def test_bad_data_are_refused_before_anything_is_written(broken):
    run = broken(NAN.format(step=5))
    assert run.end() == 2
    assert "step 5: 'obs' should be finite, but is nan" in run.output.strip().splitlines()[-1]
    assert not run.folder.exists()


def test_bad_data_end_the_run_without_another_try_and_are_named(broken):
    run = broken(NAN.format(step=500), "--check_env=False")  # which would find it
    assert run.end() == 1
    last = run.output.strip().splitlines()[-1]
    assert "of broken:make_env (worker " in last and "'obs' should be finite, but is nan in 1 of 4 numbers" in last
    assert run.status()["faults"]["env_bad_data"] == 0, "it was not dropped"


def test_bad_data_are_dropped_where_that_is_asked_for(broken):
    run = broken(
        "if self.steps % 150 == 149: reward = float('inf')", "--on_bad_env_data=drop", "--train_for_env_steps=15000"
    )
    assert run.end() == 0, run.output
    faults = run.status()["faults"]
    assert 60 < faults["env_bad_data"] < 140 and not faults["env_crashes"]


@pytest.mark.parametrize(
    "fault, message",
    [
        (
            "import time; time.sleep(1000 * (self.steps == 7))",
            "did not finish within 3 s (--reset_timeout_seconds); it was in step 7 of",
        ),
        ("import os; self.steps == 7 and os._exit(9)", "ended by itself with exit code 9; it was in step 7 of"),
    ],
)
def test_an_environment_that_hangs_or_dies_before_the_start_is_named_with_its_step(broken, fault, message):
    run = broken(fault, "--reset_timeout_seconds=3")
    assert run.end() == 1
    assert message in run.output.strip().splitlines()[-1]
    assert not run.folder.exists()


def test_an_environment_that_dies_in_the_check_is_trained_where_only_its_process_ends_with_it(broken):
    fault = "import os; self.steps == 70 and os._exit(9)"
    refused = broken(fault)
    assert refused.end() == 1
    assert "in step 70 of --env=broken:make_env; with --env_backend=subproc only such an" in last_line(refused)
    run = broken(fault, "--env_backend=subproc", "--train_for_env_steps=4000")
    assert run.end() == 0, run.output
    assert "ended by itself with exit code 9; it was in step 70 of --env=broken:make_env; environments in" in run.output
    faults = run.status()["faults"]
    assert faults["env_crashes"] > 10 and not faults["restarts"], faults


def test_actors_that_their_environments_end_are_given_up_with_what_would_help(broken):
    run = broken("import os; self.steps == 7 and os._exit(9)", "--check_env=False", "--restart_pause_seconds=0.1")
    assert run.end() == 1
    assert "ended by itself with exit code 9, 4 times in a row soon after its start; " in last_line(run)
    assert "; an environment that ends its process costs only itself with --env_backend=subproc; see " in last_line(run)


HOSTILE = """
import os
import sys
import time

import gymnasium
import numpy as np

{at_import}

class Hostile(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        self.steps += 1
        {in_step}
        return self.env.step(action)
    def close(self):
        {in_close}
        self.env.close()
    def set_training_progress(self, env_frames):
        {in_progress}

def make_env(env_id, attempt):
    {in_factory}
    env = Hostile(gymnasium.make("CartPole-v1", disable_env_checker=True))
    env.attempt = attempt
    return env
"""


@pytest.fixture
def hostile(tmp_path, start):
    """Starts a run on a CartPole that does something nasty somewhere."""

    def begin(*options, **where):
        places = ("at_import", "in_step", "in_close", "in_progress", "in_factory")
        code = HOSTILE.format(**{place: where.get(place, "pass") for place in places})
        (tmp_path / "hostile.py").write_text(code)
        return start(*OPTIONS, "--train_for_env_steps=4000", *options, env="hostile:make_env")

    return begin


def last_line(run):
    return run.output.strip().splitlines()[-1]


@pytest.mark.parametrize("mode", ["--serial_mode=False", "--serial_mode=True"])
def test_an_environment_whose_close_raises_costs_a_warning(hostile, mode):
    run = hostile(mode, in_close="raise OSError('the window is gone')")
    assert run.end() == 0, run.output
    assert "--env=hostile:make_env, close: " in run.output and "OSError: the window is gone" in run.output
    assert "Traceback" not in run.output


def test_a_module_that_ends_the_process_is_refused(hostile):
    run = hostile(at_import="sys.exit(0)")
    assert run.end() == 2
    assert "cannot import 'hostile' from " in last_line(run) and "SystemExit: 0 (hostile.py, line 9)" in last_line(run)
    assert not run.folder.exists()


@pytest.mark.parametrize("options", [(), ("--check_env=False",)])
def test_a_factory_that_ends_the_process_is_told(hostile, options):
    run = hostile(*options, in_factory="sys.exit(0)")
    assert run.end() == 1
    assert "failed in make: SystemExit: 0" in last_line(run) and not run.folder.exists()


def test_a_probe_that_forks_and_ends_is_told_at_once(hostile):
    """The child holds what the driver listens to; it is the probe's end that counts."""
    run = hostile("--reset_timeout_seconds=60", in_step="if os.fork(): os._exit(9)\n        time.sleep(1000)")
    assert run.end() == 1
    assert time.monotonic() - run.began < 45.0
    assert "ended by itself with exit code 9; it was in step 1 of --env=hostile:make_env" in last_line(run)


def test_an_environment_that_differs_from_the_one_looked_at_ends_the_run_before_anything_is_learned(hostile):
    """In one split all agree with each other, so only the one that was looked at shows the difference."""
    other = "if env_id > 3: return gymnasium.make('Acrobot-v1')"
    run = hostile("--num_workers=2", "--num_envs_per_worker=4", in_factory=other)
    assert run.end() == 1
    assert "of hostile:make_env (worker 1, place 0 of its batch) failed in make: its spaces differ" in last_line(run)
    assert "actions: one of 3; 1 agent]; expected [" in last_line(run)
    assert run.status().get("env_frames", 0) < 4000


@pytest.mark.parametrize("mode", ["--serial_mode=False", "--serial_mode=True"])
def test_late_bad_infos_end_the_run_in_a_line_that_names_them(broken, mode):
    run = broken("if self.steps == 400: info = {'num_frames': -88_000_000}", mode, "--check_env=False")
    assert run.end() == 1
    message = "'num_frames' should be a whole number of frames, at least 1, in the info, but is -88000000"
    assert message in last_line(run) and "of broken:make_env (worker " in last_line(run)
    assert run.status()["env_frames"] > 0


@pytest.mark.parametrize("mode", ["--serial_mode=True", pytest.param("--serial_mode=False", marks=pytest.mark.slow)])
def test_an_environment_that_raises_when_it_is_told_of_progress_is_built_anew(hostile, mode):
    raises = "if env_frames > 2000 and not self.attempt: raise ZeroDivisionError('no curriculum')"
    run = hostile("--train_for_env_steps=60000", mode, in_progress=raises)
    assert run.end() == 0, run.output
    assert run.status()["faults"]["env_crashes"] > 0 and "Traceback" not in run.output


def test_an_environment_that_changes_directory_moves_nothing(hostile, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    at_import = f"os.chdir({str(tmp_path / 'elsewhere')!r})"
    in_step = "os.chdir('/')"
    run = hostile("--serial_mode=True", "--train_dir=.", "--save_every_sec=0.5", at_import=at_import, in_step=in_step)
    assert run.end() == 0, run.output
    assert list((run.folder / "checkpoint_p0").glob("*.pth")) and (run.folder / "summary.json").exists()
    assert not list((tmp_path / "elsewhere").iterdir()) and "Traceback" not in run.output
    assert "\nwatch:" in run.output  # its last lines have found the checkpoint
