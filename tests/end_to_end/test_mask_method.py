"""An environment whose `action_masks()` says which choices are allowed, as sb3-contrib asks it, behind a wrapper."""

import subprocess
import sys

from tests.end_to_end.conftest import ROOT, SMALL

STRICT = """
import gymnasium
import numpy as np

class Strict(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.allowed = 0, int(self.np_random.integers(3))
        return np.zeros(2, np.float32), {}

    def action_masks(self):
        return [True, False] + [choice == self.allowed for choice in range(3)]

    def step(self, action):
        assert action[0] == 0 and action[1] == self.allowed, "a forbidden choice"
        self.steps, self.allowed = self.steps + 1, int(self.np_random.integers(3))
        return np.zeros(2, np.float32), 1.0, self.steps == 11, self.steps == 7 and self.allowed == 0, {}

class Outer(gymnasium.Wrapper):
    pass

def make_env():
    return gymnasium.wrappers.TimeLimit(Outer(Strict()), 10)
"""


def test_no_forbidden_choice_is_taken_in_training_nor_in_evaluation(start, tmp_path):
    (tmp_path / "strict.py").write_text(STRICT)
    run = start(*SMALL, "--train_for_env_steps=6000", env="strict:make_env")
    assert run.end() == 0, run.output
    assert "action_mask mask (5,) uint8" in run.output
    status = run.status()
    assert status["env_frames"] >= 6000 and not any(status["faults"].values()), "no environment has raised"
    enjoy = [sys.executable, str(ROOT / "enjoy_appo.py"), "--experiment=run", f"--train_dir={tmp_path}", "--no_render"]
    scored = subprocess.run(
        [*enjoy, "--max_num_episodes=20"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert scored.returncode == 0, scored.stdout + scored.stderr
    assert "AssertionError" not in scored.stdout + scored.stderr
