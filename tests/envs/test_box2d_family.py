"""Box2D tasks run as Gymnasium defines them."""

import subprocess
import sys

import numpy as np
import pytest

from appo.envs.api import EnvContext
from appo.envs.families.box2d import FAMILY, NAMES


def make(name):
    return FAMILY.make(name, FAMILY.config(), EnvContext())


@pytest.mark.parametrize("name", NAMES)
def test_random_play_stays_within_the_spaces(name):
    env = make(name)
    env.action_space.seed(0)
    env.reset(seed=0)
    seen = set()
    for _ in range(20 if name == "CarRacing-v3" else 200):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        seen.add(observation.tobytes())
        if terminated or truncated:
            env.reset()
    env.close()
    assert len(seen) > 15


def test_a_fallen_walker_terminates_and_a_crouching_one_is_truncated():
    env = make("BipedalWalker-v3")
    env.reset(seed=0)
    crouch = np.array([-1, 0, 1, 0], np.float32)
    ends = [env.step(crouch)[2:4] for _ in range(1600)]
    assert ends == [(False, False)] * 1599 + [(False, True)]
    env.reset(seed=0)
    limp = np.zeros(4, np.float32)
    ends = [env.step(limp)[2:4]]
    while not any(ends[-1]):
        ends.append(env.step(limp)[2:4])
    assert ends[-1] == (True, False) and len(ends) < 1600


def test_the_seed_decides_everything():
    def digest(seed):
        env = make("LunarLander-v3")
        return [env.reset(seed=seed)[0].tobytes(), *(env.step(2)[0].tobytes() for _ in range(20))]

    assert digest(1) == digest(1) != digest(2)


def test_defaults_fit_what_the_task_shows():
    assert FAMILY.defaults("CarRacing-v3")["encoder"] == "conv_nature"
    assert FAMILY.defaults("BipedalWalker-v3")["encoder"] == "mlp"


def test_importing_the_family_imports_no_simulator():
    code = "import sys, appo.envs.families.box2d; sys.exit(any(name in sys.modules for name in ('Box2D', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
