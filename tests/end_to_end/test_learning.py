"""Defaults that learn: whole runs, no option but the environment, until the task is solved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning.table import TASKS, Outcome, run


def learn(task: str, tmp_path: Path) -> Outcome:
    outcome = run(task, TASKS[task], seed=1, train_dir=tmp_path)
    log = (tmp_path / f"{task}_1.log").read_text()
    assert outcome.exit_code in (0, 130), log
    return outcome


@pytest.mark.parametrize("task", ["identity", "masked", "memory", "tuple", "continuous", "cartpole"])
def test_a_small_task_is_solved_within_its_frames(task, tmp_path):
    outcome = learn(task, tmp_path)
    assert outcome.best >= TASKS[task].bar, outcome  # a run ends when its frames are spent


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    ["cartpole_gru", "acrobot", "lunarlander", "doorkey", "inverted_pendulum", "pendulum", "halfcheetah", "doom_basic"],
)
def test_a_larger_task_is_solved_within_its_frames(task, tmp_path):
    outcome = learn(task, tmp_path)
    assert outcome.best >= TASKS[task].bar, outcome  # a run ends when its frames are spent


@pytest.mark.slow
def test_a_task_that_needs_memory_is_not_solved_without(tmp_path):
    assert learn("cartpole_blind", tmp_path).best < TASKS["cartpole_blind"].bar


@pytest.mark.slow
def test_the_value_of_a_task_that_is_only_ever_truncated_is_the_value_of_playing_for_ever(start):
    run_ = start("--num_workers=2", "--train_for_env_steps=100000", "--gamma=0.9", env="synthetic_truncation")
    assert run_.end() == 0, run_.output
    lines = [json.loads(line) for line in (run_.folder / "metrics.jsonl").read_text().splitlines()]
    # Every step pays 1 for ever. Taken for an end, the limit of 20 steps would leave a mean value near 6.
    assert lines[-1]["train/value"] == pytest.approx(1.0 / (1.0 - 0.9), rel=0.02)


@pytest.mark.parametrize(
    "critic",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["--critic_sees_time=True", "--actor_critic_share_weights=False"],
    ],
)
def test_values_of_an_endless_task_reach_their_truth_from_below_in_units_of_returns(critic, start):
    """Targets bootstrap on values, so units that moved the values would feed back: up to five times the truth.

    A critic that sees the time must not be asked for the value of a time that no reward ever follows.
    """
    options = (
        "--normalize_returns=True",
        "--gamma=0.99",
        "--synthetic_episode_length=32",
        "--serial_mode=True",
        "--experiment_summaries_interval=0.1",
        "--seed=1",
        *critic,
    )
    run_ = start("--num_workers=2", "--train_for_env_steps=60000", *options, env="synthetic_truncation")
    assert run_.end() == 0, run_.output
    lines = [json.loads(line) for line in (run_.folder / "metrics.jsonl").read_text().splitlines()]
    values = {line["env_frames"]: line["train/value"] for line in lines if "train/value" in line}
    late = [value for frames, value in values.items() if frames >= 30_000]
    assert len(late) > 3
    assert late == pytest.approx([100.0] * len(late), rel=0.1)
    assert max(values.values()) < 200.0
