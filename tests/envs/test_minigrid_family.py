"""MiniGrid: the image and the direction are kept, channels first; the mission is not."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from appo.envs.api import EnvContext
from appo.envs.families.minigrid import FAMILY, NAMES

TURN_LEFT, FORWARD = 0, 2


def make(name):
    return FAMILY.make(name, FAMILY.config(), EnvContext())


@pytest.mark.parametrize("name", NAMES)
def test_random_play_stays_within_the_spaces(name):
    env = make(name)
    env.action_space.seed(0)
    observation = env.reset(seed=0)[0]
    for _ in range(200 if "DoorKey" in name else 20):
        assert set(observation) == {"image", "direction"} and env.observation_space.contains(observation)
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation = env.reset()[0]
    env.close()


def test_the_image_is_minigrids_own_with_channels_first():
    env, plain = make("MiniGrid-DoorKey-8x8-v0"), gymnasium.make("MiniGrid-DoorKey-8x8-v0", disable_env_checker=True)
    observation, expected = env.reset(seed=5)[0], plain.reset(seed=5)[0]
    for action in (TURN_LEFT, FORWARD, TURN_LEFT, FORWARD):
        assert observation["direction"] == expected["direction"]
        for x, y, channel in np.ndindex(7, 7, 3):
            assert observation["image"][channel, x, y] == expected["image"][x, y, channel]
        observation, expected = env.step(action)[0], plain.step(action)[0]
    assert len(np.unique(observation["image"])) > 3


def test_turning_for_ever_is_truncated_and_reaching_the_goal_terminates():
    env = make("MiniGrid-Empty-5x5-v0")
    env.reset(seed=0)
    ends = [env.step(TURN_LEFT)[2:4] for _ in range(100)]
    assert ends == [(False, False)] * 99 + [(False, True)]
    env.reset(seed=0)
    steps = [env.step(action) for action in (FORWARD, FORWARD, 1, FORWARD, FORWARD)]
    assert [step[2] for step in steps] == [False] * 4 + [True]
    assert steps[-1][1] > 0.9 and not steps[-1][3]


def test_memory_is_switched_on_where_the_task_needs_it():
    assert FAMILY.defaults("MiniGrid-MemoryS7-v0")["use_rnn"]
    assert not FAMILY.defaults("MiniGrid-DoorKey-5x5-v0")["use_rnn"]


def test_importing_the_family_imports_no_simulator():
    code = "import sys, appo.envs.families.minigrid; "
    code += "sys.exit(any(name in sys.modules for name in ('minigrid', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(("name", "rollout"), [("MiniGrid-DoorKey-5x5-v0", 128), ("MiniGrid-MemoryS7-v0", 32)])
def test_an_iteration_is_one_rollout_of_two_workers_and_long_without_memory(name, rollout):
    values = FAMILY.defaults(name)
    assert values["rollout"] == rollout and values.get("rnn_chrono_init", rollout) == rollout
    batches = values["num_batches_per_iteration"], values["num_minibatches_to_accumulate"]
    assert batches == (2 * values["num_envs_per_worker"] * rollout // values["batch_size"],) * 2
