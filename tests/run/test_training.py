"""`train(...)`: a run from Python, as from the command line."""

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from appo.algorithms.evaluation import load_policy
from appo.algorithms.run.training import TrainingFailed, train
from appo.utils.options import ConfigError
from tests.architecture.source_tree import ROOT


def make_env():
    """For a name that other processes import."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


def test_a_run_is_trained_resumed_and_loaded(tmp_path, capsys):
    options: dict[str, Any] = {"num_workers": 1, "num_envs_per_worker": 4, "device": "cpu", "use_rnn": False}
    options["mlp_layers"] = [32, 16]
    first = train("CartPole-v1", "x", train_dir=tmp_path, train_for_env_steps=4000, **options)
    assert first.exit_code == 0 and first.folder == tmp_path / "x"
    assert first.summary["env_frames"] >= 4000 and "fps" in capsys.readouterr().out
    again = train(
        "CartPole-v1", "x", train_dir=tmp_path, train_for_env_steps=6000, quiet=True, serial_mode=True, **options
    )
    assert again.summary["env_frames"] >= 6000 and not capsys.readouterr().out
    nothing = train("CartPole-v1", "x", train_dir=tmp_path, train_for_env_steps=6000, quiet=True, **options)
    assert (nothing.exit_code, nothing.summary) == (0, {}), "that of the start before is not its own"
    policy = load_policy(again.folder)
    assert json.loads((again.folder / "config.json").read_text())["options"]["mlp_layers"] == "32,16"
    assert policy.act(policy.observation_space.sample()) in (0, 1)


@pytest.mark.parametrize(
    ("env", "options", "why"),
    [
        ("CartPole-v1", {"learning_rat": 1.0}, r"^train\(\.\.\.\) sets unknown option 'learning_rat'; did you mean"),
        ("CartPole-v1", {"num_envs_per_worker": 3}, "cannot be divided"),
        (lambda: None, {}, "cannot be imported"),
        (functools.partial(make_env), {}, "has no name that the processes of a run could import"),
        ("CartPole-v1", {"mlp_layers": [16, 0]}, "mlp_layers='16,0'"),
        ("CartPole-v1", {"train_dir": "~nobody_of_this_name"}, "no home folder of that user"),
    ],
)
def test_what_the_command_line_refuses_is_refused(tmp_path, env, options, why):
    with pytest.raises(ConfigError, match=why):
        train(env, "x", **({"train_dir": tmp_path, "quiet": True} | options))
    assert not (tmp_path / "x").exists()


def test_a_refusal_is_raised_and_not_printed_as_well(tmp_path, capsys):
    with pytest.raises(ConfigError, match="cannot be divided"):
        train("CartPole-v1", "x", train_dir=tmp_path, num_envs_per_worker=3)
    assert not capsys.readouterr().out


BROKEN = """
import os


def make_env():
    os.write(1, b"no \\xff text\\n")
    raise ZeroDivisionError("as told")
"""


def test_a_run_that_fails_says_why_whatever_its_environment_prints(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingFailed, match="as told"):
        train("broken_module:make_env", "x", train_dir=tmp_path, quiet=True, serial_mode=True)


class ClosedOutput(io.StringIO):
    """What a notebook that has gone away leaves."""

    def write(self, text):
        raise BrokenPipeError("nobody reads")


@pytest.mark.slow
def test_an_error_of_the_caller_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", ClosedOutput())
    with pytest.raises(BrokenPipeError):
        train("CartPole-v1", "x", train_dir=tmp_path, serial_mode=True, device="cpu")
    monkeypatch.undo()
    assert not [child for child in psutil.Process().children() if "train_appo" in " ".join(child.cmdline())]


INTERRUPTED = """
from appo.algorithms.run.training import train

result = train("CartPole-v1", "x", train_dir=".", serial_mode=True, device="cpu", experiment_summaries_interval=1)
print("RESULT", result.exit_code, result.summary.get("env_frames", 0), result.folder)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_run_after_it_has_saved_and_train_returns(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe: Any = subprocess.PIPE
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=pipe, text=True, cwd=tmp_path, env=environment) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if re.search(r"frames .* lag \d", line))  # it has learned
        process.send_signal(signal.SIGINT)
        *_, last = process.stdout
    word, exit_code, frames, folder = last.split()
    assert (word, exit_code, folder) == ("RESULT", "130", "x") and int(frames) > 0
    assert list((tmp_path / "x" / "checkpoint_p0").glob("*.pth"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_ends_after_it_has_saved_when_its_caller_is_killed(tmp_path, number):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe: Any = subprocess.PIPE
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(command, stdout=pipe, text=True, cwd=tmp_path, env=environment) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if re.search(r"frames .* lag \d", line))
        (driver,) = psutil.Process(process.pid).children()
        process.send_signal(number)
        process.wait()
        _, living = psutil.wait_procs([driver], timeout=30.0)
    assert not living
    assert json.loads((tmp_path / "x" / "summary.json").read_text())["reason"] == "stopped by SIGTERM"
    assert list((tmp_path / "x" / "checkpoint_p0").glob("*.pth"))
