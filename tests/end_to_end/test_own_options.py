"""Options that a factory of the user's own declares: in the help, checked, saved, restored, and handed to it."""

import json
import subprocess
import sys

from tests.end_to_end.conftest import ROOT, SMALL

OWN = """
from dataclasses import dataclass

import gymnasium
import numpy as np

from appo.utils.options import option

@dataclass(frozen=True)
class Options:
    track_length: int = option(20, "Steps of an episode", minimum=1)
    track_bonus: float = option(0.5, "Reward of a step")

class Track(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, options):
        self.options = options

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), self.options.track_bonus, self.steps == self.options.track_length, False, {}

def make_env(options, seed):
    return Track(options)

make_env.config = Options
"""
SCORE = "mean return of the last 100 episodes "


def test_options_of_an_own_factory_are_those_of_a_family(start, tmp_path):
    (tmp_path / "track.py").write_text(OWN)
    env = "track:make_env"
    words = [sys.executable, str(ROOT / "train_appo.py"), f"--env={env}", "--help=family"]
    shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "--track_length INT" in shown.stdout and "default: 20" in shown.stdout
    assert "Options(" not in shown.stdout, "a dataclass without a docstring gets one that is no sentence"
    wrong = start(*SMALL, "--track_length=0", env=env)
    assert wrong.end() == 2 and "sets track_length=0; allowed: at least 1" in wrong.output
    run = start(*SMALL, "--track_length=8", "--train_for_env_steps=6000", env=env)
    assert run.end() == 0, run.output
    assert SCORE + "4" in run.output and "track_length" in run.output
    saved = json.loads((run.folder / "config.json").read_text())
    assert saved["options"]["track_length"] == 8 and "track_length" in saved["typed"]
    again = start(*SMALL, "--track_bonus=1", "--train_for_env_steps=12000", env=env)
    assert again.end() == 0, again.output
    assert SCORE + "8" in again.output, "its length was restored, and what was typed is in force"
    enjoy = [sys.executable, str(ROOT / "enjoy_appo.py"), "--experiment=run", f"--train_dir={tmp_path}", "--no_render"]
    scored = subprocess.run(
        [*enjoy, "--max_num_episodes=2", "--track_length=3"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert "episode 1: return 3.000, " in scored.stdout + scored.stderr
