"""`--preset`: environments with options that have reached a score, and what is told of them."""

import re
import subprocess
import sys
import tomllib

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.config_file import MEASURED, PRESETS, preset_names
from appo.algorithms.run.config import goal_of
from appo.utils.options import ConfigError
from benchmarks.learning.results import KEPT, KNOWN, read, row
from benchmarks.learning.table import TASKS
from tests.architecture.source_tree import ROOT

NAMES = preset_names()
PAGE = ROOT / "docs" / "presets.md"


def content(name):
    return tomllib.loads((PRESETS / f"{name}.toml").read_text())


TO_A_GOAL = [name for name in NAMES if "stop_when" in content(name)]
FOR_A_BUDGET = [name for name in NAMES if name not in TO_A_GOAL]


def task_of(name):
    (task,) = re.findall(r"--tasks=(\S+)", content(name)[MEASURED]["command"])
    return task


@pytest.mark.parametrize("name", TO_A_GOAL)
def test_a_preset_with_a_goal_is_a_task_of_the_benchmarks_with_its_bar(name, tmp_path):
    config = resolve([f"--preset={name}", f"--train_dir={tmp_path}"]).config
    measured = content(name)[MEASURED]
    task = TASKS[task_of(name)]
    goal = goal_of(config.run.stop_when)
    assert goal is not None
    assert (config.env.env, goal.value, config.run.train_for_env_steps) == (task.env, task.bar, task.frames)
    assert measured["score"] == task.bar and not task.options


@pytest.mark.parametrize("name", TO_A_GOAL)
def test_what_reached_a_goal_is_a_row_of_the_results_and_of_the_page(name):
    found = content(name)
    measured, thousands = found[MEASURED], found[MEASURED]["frames"] // 1000
    results = (ROOT / "docs" / "benchmarks.md").read_text()
    reached = measured["reached"].removesuffix(" seeds")
    score, seconds = f"{measured['score']:g}", measured["seconds"]
    row = rf"^\| {re.escape(found['env'])} \|  \| {score} in .* \| {reached} \| {thousands}k .*\| {seconds} \("
    assert re.search(row, results, re.MULTILINE), row
    cells = (f"`{name}`", found["env"], score, measured["reached"], f"{thousands}k", str(seconds))
    assert f"| {' | '.join(cells)} |\n" in PAGE.read_text()


@pytest.mark.parametrize("name", FOR_A_BUDGET)
def test_a_preset_without_a_goal_is_a_known_task_with_its_budget_and_what_the_runs_have_reached(name, tmp_path):
    config = resolve([f"--preset={name}", f"--train_dir={tmp_path}"]).config
    task, measured = KNOWN[task_of(name)], content(name)[MEASURED]
    assert goal_of(config.run.stop_when) is None
    assert (config.env.env, config.run.train_for_env_steps) == (task.env, task.frames) == (task.env, measured["frames"])
    assert set(content(name)) == {"env", "train_for_env_steps", MEASURED}, "what was measured had no other option"
    runs = [run for run in read(KEPT) if run.task == task_of(name)]
    _, env, frames, seeds, learning, _, minutes, _ = row(task_of(name), runs)
    assert f"{measured['score']:.4g}" == learning.partition(" ")[0]
    assert (str(measured["seeds"]), f"{measured['minutes']}") == (seeds, minutes)
    assert {measured["machine"]} == {run.machine for run in runs}
    assert (re.findall(r"--seeds=(\d+)", measured["command"]) or ["1"]) == [seeds]
    assert f"| {' | '.join([f'`{name}`', env, frames, seeds, learning, minutes])} |\n" in PAGE.read_text()


def test_there_are_presets_and_the_page_has_no_others():
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == NAMES and len(TO_A_GOAL) >= 9 and FOR_A_BUDGET


def test_a_file_outranks_the_preset_and_the_command_line_both(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("train_for_env_steps = 1000\nrollout = 16\n")
    words = ["--preset=cartpole", f"--config={plan}", "--rollout=8", f"--train_dir={tmp_path}"]
    resolved = resolve(words)
    config = resolved.config
    assert (config.env.env, config.run.stop_when) == ("CartPole-v1", "reward>=475")
    assert (config.run.train_for_env_steps, config.learning.rollout) == (1000, 8)
    origins = {name: resolved.origins[name] for name in ("env", "stop_when", "train_for_env_steps", "rollout")}
    assert origins == {
        "env": "preset cartpole",
        "stop_when": "preset cartpole",
        "train_for_env_steps": str(plan),
        "rollout": "command line",
    }


def test_an_unknown_preset_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r"there is no preset 'zzzz'; there are .*lunarlander"):
        resolve(["--preset=zzzz"])
    with pytest.raises(ConfigError, match=r"there is no preset 'carpole'; did you mean cartpole\? There are acrobot, "):
        resolve(["--preset=carpole"])


def test_a_preset_is_of_its_environment(tmp_path):
    told = "--preset=cartpole is for --env=CartPole-v1 and not for Acrobot-v1; leave"
    with pytest.raises(ConfigError, match=told):
        resolve(["--preset=cartpole", "--env=Acrobot-v1"])
    assert (
        resolve(["--preset=cartpole", "--env=CartPole-v1", f"--train_dir={tmp_path}"]).config.env.env == "CartPole-v1"
    )


def test_a_preset_cannot_be_named_by_a_file(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text("preset = 'cartpole'\n")
    with pytest.raises(ConfigError, match="sets preset; that is for the command line"):
        resolve([f"--config={plan}", "--env=CartPole-v1"])


def test_a_run_of_a_preset_needs_no_other_word(tmp_path):
    words = ["train_appo.py", "--preset=cartpole", "--train_for_env_steps=3000", f"--train_dir={tmp_path}"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preset cartpole" in done.stdout + done.stderr  # in the table of where values come from
