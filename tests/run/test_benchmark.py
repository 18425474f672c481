"""The benchmark of the trainer: rates from looks that are known, and once as a user starts it."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import types
from typing import Any

import psutil
import pytest

from appo.algorithms.config import resolve
from appo.algorithms.run import autotune, benchmark
from appo.algorithms.run.benchmark import Rates, period_of, rates_of
from appo.algorithms.run.config import CONFIG_FILE
from appo.algorithms.run.trial import Period, started, without, words_of
from appo.algorithms.train_config import to_json
from appo.utils.options import ConfigError
from tests.architecture.source_tree import ROOT
from tests.in_process import exit_code_of


def test_the_mean_is_over_all_and_windows_do_not_overlap():
    rates = [100] * 5 + [50] * 5 + [200] * 5
    looks = [(10.0 + second, 1000 + sum(rates[:second])) for second in range(16)]
    assert rates_of(looks) == Rates(1750 / 15, 50.0, 200.0, 15.0)
    assert rates_of(looks[:3]) == Rates(100.0, 100.0, 100.0, 2.0), "shorter than a window"


def test_words_of_options_that_a_trial_sets_itself_are_left_out():
    words = ["--env=x", "--benchmark", "True", "--train-dir=here", "--experiment", "name", "--gamma=0.9"]
    assert without(words, ("benchmark", "train_dir", "experiment")) == ["--env=x", "--gamma=0.9"]


def test_a_file_of_options_neither_starts_a_trial_within_a_trial_nor_moves_it_elsewhere(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('autotune = true\nbenchmark = true\nexperiments_root = "group"\n')
    with started(["--env=CartPole-v1", f"--config={file}"], tmp_path, Period(1.0, 1.0, 1.0), 0.1) as trial:
        given: Any = trial.process.args
    run = resolve([word for word in given if word.startswith("--")]).config.run
    assert (run.autotune, run.benchmark, run.folder) == (False, False, trial.folder)


def test_a_trial_that_is_killed_leaves_no_process(tmp_path):
    with started(["--env=CartPole-v1"], tmp_path, Period(1.0, 1.0, 1.0), 0.0) as trial:
        driver, deadline = psutil.Process(trial.process.pid), time.monotonic() + 30.0
        while len(family := driver.children(recursive=True)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert len(family) >= 3 and trial.process.returncode == -signal.SIGKILL
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


class EndedAtOnce(Exception):
    pass


def measured_by_benchmark(words, resolved, stop):
    benchmark.measure(words, resolved, stop)


def measured_by_autotune(words, resolved, stop):
    autotune.tuned_words(words, resolved, 2, stop)


@pytest.mark.parametrize("measured", [measured_by_benchmark, measured_by_autotune])
def test_a_second_ctrl_c_ends_the_trial_and_leaves_no_folder(tmp_path, monkeypatch, measured):
    """The trial is one that does nothing; its end, and what is left, is seen when this process would end."""
    folders = tmp_path / "folders"
    folders.mkdir()
    seen: list[Any] = []
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    stop: Any = types.SimpleNamespace(received=None, end_at_once=lambda: seen.append(list(folders.iterdir())))

    @contextlib.contextmanager
    def started(argv, folder, *_, **__):
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        with (folder / "tried.txt").open("w") as output, subprocess.Popen(command, stdout=output) as process:
            assert list(folders.iterdir()) == [folder]
            stop.end_at_once()
            seen.append(process.poll())
            process.kill()
            raise EndedAtOnce
        yield

    for module in (benchmark, autotune):
        monkeypatch.setattr(module, "started", started)
    words = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--device=cpu"]
    with pytest.raises(EndedAtOnce):
        measured(words, resolve(words), stop)
    assert seen == [[], -signal.SIGKILL]
    stop.end_at_once()
    assert len(seen) == 3, "what is to be done at the end is as before"


def test_a_trial_neither_reaches_a_goal_nor_tells_others(tmp_path):
    words = ["--env=CartPole-v1", "--preset=cartpole", "--with_wandb=True", "--callback=mine:Mine"]
    with started(words, tmp_path, Period(1.0, 1.0, 1.0), 0.1) as trial:
        given: Any = trial.process.args
    run = resolve([word for word in given if word.startswith("--")]).config.run
    assert (run.stop_when, run.with_wandb, run.callback) == ("", False, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kinds", "name"),
    [
        (["--num_workers=2"], ["actor", "policy", "learner", "driver"], "benchmark_CartPole-v1.json"),
        (
            ["--sampler_only=True", "--num_workers=1"],
            ["actor", "policy", "learner", "driver"],
            "benchmark_sampler_CartPole-v1.json",
        ),
        (
            ["--sampler_only=True", "--policy=random", "--num_workers=1"],
            ["actor", "learner", "driver"],
            "benchmark_random_CartPole-v1.json",
        ),
    ],
)
def test_a_run_is_measured_and_leaves_one_file(tmp_path, options, kinds, name):
    words = [
        "--env=CartPole-v1",
        "--benchmark=True",
        "--train_for_seconds=6",
        f"--train_dir={tmp_path}",
        "--device=cpu",
    ]
    command = [sys.executable, str(ROOT / "train_appo.py"), *words, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    saved = json.loads((tmp_path / name).read_text())
    rates = saved["frames_per_s"]
    assert rates["mean"] > 500 and 6 <= rates["seconds"] < 12 and rates["lowest"] <= rates["highest"]
    assert [kind["name"] for kind in saved["processes"]] == kinds
    learner = next(kind for kind in saved["processes"] if kind["name"] == "learner")
    trained = [stage for stage in learner["parts"] if stage["name"] == "train" and stage.get("parts")]
    assert bool(trained) == (len(options) == 1), "its parts are those of optimizer steps"
    assert f"{rates['mean']:,.0f} frames per second" in done.stdout and "env_step" in done.stdout


def test_an_experiment_that_goes_on_is_measured_with_its_options_for_as_long_as_is_typed(tmp_path):
    words = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--device=cpu", "--experiment=first"]
    resolved = resolve([*words, "--gamma=0.9", "--train_for_seconds=3600", "--eval_every_sec=7"])
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(to_json(resolved.config, resolved.typed))
    again = resolve([*words, "--num_workers=3"])
    assert again.resumed
    told = words_of([*words, "--num_workers=3"], again)
    assert {"--gamma=0.9", "--num_workers=3", "--eval_every_sec=7.0", "--env=CartPole-v1"} <= set(told)
    assert resolve([word for word in told if "experiment=" not in word]).config.learning == again.config.learning
    fresh = resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}", "--device=cpu"])
    assert words_of(["--env=CartPole-v1"], fresh) == ["--env=CartPole-v1"]


def test_the_seconds_of_a_file_or_preset_count_as_typed_and_those_of_an_earlier_start_do_not(tmp_path):
    (tmp_path / "mine.toml").write_text("train_for_seconds = 7\n")
    words = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--device=cpu"]
    of_file = resolve([*words, f"--config={tmp_path / 'mine.toml'}"])
    assert period_of(of_file).measured_s == 7.0
    assert period_of(resolve(words)).measured_s == benchmark.MEASURED_S
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(to_json(of_file.config, of_file.typed))
    again = resolve([*words, "--experiment=first"])
    assert again.resumed and again.config.run.train_for_seconds == 7.0
    assert period_of(again).measured_s == benchmark.MEASURED_S
    assert period_of(resolve([*words, "--experiment=first", "--train-for-seconds=8"])).measured_s == 8.0


MORTAL = """
import time
from pathlib import Path

from gymnasium.envs.classic_control import CartPoleEnv


class Mortal(CartPoleEnv):
    action_mask_in_info = False
    steps_left = 1200

    def reset(self, **options):
        if Path("died").exists():
            raise RuntimeError("died again")
        return super().reset(**options)

    def step(self, action):
        time.sleep(0.001)
        self.steps_left -= 1
        if not self.steps_left:
            Path("died").touch()
            raise RuntimeError("died at last")
        return super().step(action)
"""


@pytest.mark.slow
def test_a_run_that_fails_while_it_is_measured_gives_no_measurement(tmp_path, monkeypatch, capsys):
    (tmp_path / "mortal.py").write_text(MORTAL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the run's process, which starts in this folder
    monkeypatch.setattr(benchmark, "WARM_UP_S", 0.1)
    words = ["--env=mortal:Mortal", "--benchmark=True", "--train_for_seconds=60", "--train_dir=runs", "--device=cpu"]
    words += ["--sampler_only=True", "--serial_mode=True", "--num_workers=1", "--num_envs_per_worker=1"]
    words += ["--worker_num_splits=1", "--check_env=False"]
    assert exit_code_of(words) == 1
    told = capsys.readouterr().out
    assert re.search(r"benchmark: the run ended after [1-9]\d? of 60 s; the run said last: .*died", told)
    assert not list((tmp_path / "runs").iterdir()) and "frames per second" not in told


@pytest.mark.parametrize("what", ["--benchmark=True", "--autotune=True"])
def test_where_nothing_can_be_written_nothing_is_measured(what, capsys):
    words = ["--env=CartPole-v1", what, "--train_dir=/proc/nowhere", "--device=cpu"]
    assert exit_code_of(words) == 2
    assert "train_dir=/proc/nowhere cannot be made" in capsys.readouterr().err


def test_no_time_to_measure_in_is_refused(tmp_path, capsys):
    assert (
        exit_code_of(["--env=CartPole-v1", "--benchmark=True", "--train_for_seconds=0.5", f"--train_dir={tmp_path}"])
        == 2
    )
    assert "train_for_seconds=0.5 is too short to measure anything in; nearest: 1" in capsys.readouterr().err


def test_an_experiment_that_was_not_named_has_nothing_to_do_with_it(tmp_path):
    place = f"--train_dir={tmp_path}"
    resolved = resolve(["--env=CartPole-v1", place])
    folder = tmp_path / resolved.config.run.experiment
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(to_json(resolved.config, resolved.typed))
    with pytest.raises(ConfigError, match="was trained with env='CartPole-v1'"):
        resolve(["--env=Acrobot-v1", place])
    assert resolve(["--env=Acrobot-v1", place, "--benchmark=True"]).config.env.env == "Acrobot-v1"


def test_a_run_that_does_not_train_is_told_with_its_last_line(tmp_path):
    words = ["--env=CartPole-v1", "--benchmark=True", f"--train_dir={tmp_path}", "--env_step_timeout=0", "--device=cpu"]
    words += ["--load_checkpoint_kind=best", "--num_workers=100000"]
    command = [sys.executable, str(ROOT / "train_appo.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 1 and not list(tmp_path.iterdir())
    assert "nothing was measured; the run said last: train_appo.py: error: this run needs about" in done.stdout
