"""An unknown environment starts from options that fit it, learns with them, and keeps them."""

from __future__ import annotations

import json
import shutil

import pytest

WALK = '''
import gymnasium
import numpy as np

class Walk(gymnasium.Env):
    """Ten steps to the right earn 1."""
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return self.see(), {}

    def step(self, action):
        self.place, self.steps = max(0, self.place + 2 * int(action) - 1), self.steps + 1
        arrived = self.place == 10
        return self.see(), float(arrived), arrived, self.steps == 40, {}

    def see(self):
        return np.array([self.place / 10], np.float32)

class Blind(Walk):
    needs_memory = True
'''


@pytest.fixture
def walk(start, tmp_path):
    """A run of an environment that no family knows."""
    (tmp_path / "walk.py").write_text(WALK)
    few = ("--num_workers=2", "--device=cpu")
    return lambda *options, env="walk:Walk", **script: start(*few, *options, env=env, **script)


def options_of(run):
    return json.loads((run.folder / "config.json").read_text())["options"]


def test_it_learns_with_no_option_and_keeps_its_options_when_it_goes_on(walk):
    run = walk("--train_for_env_steps=60000")
    assert run.end() == 0, run.output
    assert run.status()["policies"][0]["avg_reward"] > 0.9
    assert "fitted: " in run.output and "single steps" in run.output
    first = options_of(run)
    assert first["num_envs_per_worker"] == 16 and first["recurrence"] == 1 and first["use_rnn"] is False
    more = walk("--train_for_env_steps=80000", "--gamma=0.9")
    assert more.end() == 0, more.output
    changed = {name: value for name, value in options_of(more).items() if value != first[name]}
    assert changed == {"train_for_env_steps": 80000, "gamma": 0.9}


@pytest.mark.parametrize("is_told", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_critic_is_told_the_time_in_training_and_not_asked_when_the_policy_is_scored(walk, is_told):
    run = walk(f"--critic_sees_time={is_told}", "--train_for_env_steps=20000")
    assert run.end() == 0, run.output
    weights = run.saved().payload["model"]
    seen = weights.get("preprocessor.normalizers.1.moments")
    assert (seen is not None) == is_told
    assert seen is None or 4.0 < seen[0, 0].item() < 20.0  # the mean, of at most 40 steps
    watched = walk("--no_render", "--max_num_episodes=20", script="enjoy_appo.py")
    assert watched.end() == 0 and "episode 20: " in watched.output, watched.output


def test_what_is_typed_is_kept_and_a_memory_is_given_where_the_environment_asks_for_one(walk):
    run = walk("--rollout=24", "--mlp_layers=32", "--train_for_env_steps=9000", env="walk:Blind")
    assert run.end() == 0, run.output
    options = options_of(run)
    assert options["rollout"] == 24 and options["mlp_layers"] == "32"
    assert options["use_rnn"] is True and 24 % options["recurrence"] == 0


@pytest.mark.parametrize("env, memory", [("walk:Walk", "False"), ("walk:Blind", "True")])
def test_the_help_tells_them_with_their_reasons_and_writes_nothing(walk, env, memory, tmp_path):
    run = walk("--help", "--rollout=48", env=env)
    assert run.end() == 0, run.output
    words = " ".join(run.output.replace("│", " ").split())
    assert f"default: {memory} for this environment (fitted: " in words
    assert "default: 16 for this environment (fitted: steps of " in words
    assert not run.folder.exists()


def test_the_help_of_an_environment_that_does_not_start_says_why(walk):
    run = walk("--help", env="walk:Nobody")
    assert run.end() == 2
    assert "Nobody" in run.output.splitlines()[-1]


@pytest.mark.slow
def test_data_are_younger_where_only_the_next_iteration_may_be_collected_meanwhile(walk):
    steps = 64  # of an iteration, which takes longer than collecting
    slow = ("--ppo_epochs=16", "--batch_size=256", "--num_batches_per_iteration=4", "--rollout=32")
    lags = {}
    for ahead in (0, 4, -1):
        run = walk(
            *slow, f"--num_minibatches_to_accumulate={ahead}", "--train_for_env_steps=40000", f"--seed={5 + ahead}"
        )
        assert run.end() == 0, run.output
        lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        lags[ahead] = max(line.get("0_aux/policy_lag_avg", 0.0) for line in lines) / steps
        shutil.rmtree(run.folder)
    # On a busy machine collecting may take as long as learning: then the data of the second are as young as can be.
    assert lags[0] == 0.0 <= lags[4] < 1.5 < lags[-1], lags
