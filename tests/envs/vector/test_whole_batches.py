"""Steps of all environments: what the serial backend knows of them without a look at the flags is what flags say."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.vector.make import Restarts, make_vec_env

STEPS, NEVER = 150, 10**9


class Talkative(gymnasium.Env):
    """Ends often, in every way; says more than the ordinary with a chance, in steps and resets; fails in some step."""

    observation_space = spaces.Box(-1e6, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)
    action_mask_in_info = False

    def __init__(self, index, chance, fails_after):
        self.chance, self.rng, self.num_steps, self.fails_after = chance, np.random.default_rng(index), 0, fails_after

    def _info(self):
        kinds = [{"num_frames": 4}, {"true_reward": 2.0}, {"is_active": False}, {"lives": 3}]
        return kinds[self.rng.integers(len(kinds))] if self.rng.random() < self.chance else {}

    def reset(self, *, seed=None, options=None):
        info = self._info()
        info = {key: value for key, value in info.items() if key in ("is_active", "lives")}
        return self.rng.random(3, np.float32), info

    def step(self, action):
        self.num_steps += 1
        if self.num_steps > self.fails_after:
            raise ValueError("out of order")
        how = self.rng.random()
        ends = how < 0.1
        truncated = ends if self.chance == 0 and how < 0.02 else self.rng.random() < self.chance / 5
        return self.rng.random(3, np.float32), float(action), ends, truncated, self._info()


@pytest.mark.parametrize(("chance", "fails_after"), [(0.0, NEVER), (0.1, NEVER), (0.0, 20)])
def test_a_step_says_the_same_of_environments_here_and_in_a_process(chance, fails_after):
    factories = [functools.partial(Talkative, index, chance, fails_after) for index in range(4)]
    restarts = Restarts("restart", max_lifetime=1000, rate=-1)
    actions = np.random.default_rng(0).integers(0, 2, (STEPS, 4))
    with (
        make_vec_env(factories, backend="serial", seed=1, restarts=restarts) as here,
        make_vec_env(
            factories, backend="subproc", num_workers=1, start_method="fork", seed=1, restarts=restarts
        ) as there,
    ):
        here.reset(), there.reset()
        known = []
        for number, chosen in enumerate(actions):
            if number % 7 == 6:
                for env in (here, there):
                    env.reset_envs([number % 4])
                    env.recv(1)
            if number % 5 == 4:
                for env in (here, there):
                    env.send(chosen[:2], [0, 1 + number % 3])
                    env.recv(2)
            one, other = here.step(chosen), there.step(chosen)
            known.append(here._envs.ended)
            for name in ("rewards", "terminated", "truncated", "is_first", "is_active", "frames", "episode_id", "kind"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
            np.testing.assert_array_equal(one.obs["obs"], other.obs["obs"])
            assert one.infos == other.infos
            assert one.final_obs.keys() == other.final_obs.keys()
            if one.final_obs:
                ended = one.terminated | one.truncated
                np.testing.assert_array_equal(one.final_obs["obs"][ended], other.final_obs["obs"][ended])
            assert not one.is_first.flags.writeable and not one.episode_id.flags.writeable
    assert [] in known and any(known), "otherwise this test would prove nothing"
    assert (None in known) == (chance > 0 or fails_after < NEVER)
