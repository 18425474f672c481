"""As many actors as a large machine has cores, and more."""

import pytest

SLEEPS = """
import time
import gymnasium
import numpy as np

class Sleeps(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        time.sleep(2.0)
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 10, False, {}
"""
ONE_EACH = ("--num_envs_per_worker=1", "--worker_num_splits=1", "--device=cpu", "--use_rnn=False", "--hidden_size=32")


@pytest.mark.slow
def test_600_actors_of_one_sleeping_environment_each_sample_and_learn(start, tmp_path):
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    options = ("--num_workers=600", "--decorrelate_experience_max_seconds=0", "--train_for_env_steps=40000")
    run = start(*ONE_EACH, *options, env="sleeps:Sleeps")
    # An iteration takes one rollout of everybody, at the soonest.
    run.wait_for(lambda: run.status() and run.status()["policies"][0]["train_steps"] > 0, seconds=400.0)
    status = run.status()
    assert status["env_frames"] >= 600 * 32 and status["faults"]["restarts"] == 0
    run.signal(15)
    assert run.end() == 143, run.output
