"""PPO of Stable-Baselines3 on a task of `benchmarks.learning.unseen`, with its defaults, for a number of frames.

    PYTHON benchmarks/peers/stable_baselines3_unseen.py --env=NAME --algorithm=ppo --frames=N --seed=1

Run by a Python that has Stable-Baselines3, sb3-contrib and the task's own package; imports only the suite's
environments from this project. 8 environments, stepped in the main process as `make_vec_env` does by default. Ends
after N frames and prints `result:` with frames, episodes and the mean return of the last 100 training episodes as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import FilterObservation, FlattenObservation
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space

ENVS = 8
LEAST_SIDE = 36  # of an image that the network of CnnPolicy can read; a smaller one goes to MlpPolicy, flattened
ALGORITHMS = {"ppo": PPO, "maskable": MaskablePPO, "recurrent": RecurrentPPO}
ROOT = Path(__file__).resolve().parents[2]


class EndAtBudget(BaseCallback):
    """Ends the run after a number of frames: whole rollouts would play up to 16384 more."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self._frames = frames

    def _on_step(self) -> bool:
        return bool(self.num_timesteps < self._frames)


def make_env(env: str, is_masked: bool) -> gymnasium.Env[Any, Any]:
    """The environment that `--env` means for `train_appo.py`, as Stable-Baselines3 can take it."""
    module, _, attribute = env.partition(":")
    if module.startswith("benchmarks."):
        made = getattr(importlib.import_module(module), attribute)()
    elif env.startswith("MiniGrid-"):
        importlib.import_module("minigrid")  # registers the ids
        # Its own networks read neither so small an image nor the mission's text.
        made = FlattenObservation(FilterObservation(gymnasium.make(env), ["image", "direction"]))
    else:
        made = gymnasium.make(env)
    return ActionMasker(made, allowed) if is_masked else made


def allowed(env: gymnasium.Env[Any, Any]) -> Any:
    """Which actions are allowed now."""
    inner: Any = env.unwrapped
    return inner.action_masks() if hasattr(inner, "action_masks") else inner.action_mask(inner.s)  # the latter is Taxi


def policy_for(space: gymnasium.Space[Any], is_recurrent: bool) -> str:
    """The name of the policy that its documentation recommends for a space."""
    if isinstance(space, gymnasium.spaces.Dict):
        name = "MultiInput"
    elif is_image_space(space) and min(sorted(space.shape or ())[1:]) >= LEAST_SIDE:
        name = "Cnn"
    else:
        name = "Mlp"
    return f"{name}{'Lstm' if is_recurrent else ''}Policy"


def main() -> None:
    """Train, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True)
    parser.add_argument("--algorithm", choices=tuple(ALGORITHMS), required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    chosen = parser.parse_args()
    sys.path.append(str(ROOT))
    is_masked, is_recurrent = chosen.algorithm == "maskable", chosen.algorithm == "recurrent"
    envs = make_vec_env(lambda: make_env(chosen.env, is_masked), ENVS, seed=chosen.seed)
    algorithm: Any = ALGORITHMS[chosen.algorithm]
    policy = policy_for(envs.observation_space, is_recurrent)
    model = algorithm(policy, envs, seed=chosen.seed, device="cpu")
    model.learn(chosen.frames, callback=EndAtBudget(chosen.frames))
    returns = [episode["r"] for episode in model.ep_info_buffer]  # holds the last 100
    result = {"frames": model.num_timesteps, "episodes": len(returns)}
    print("result:", json.dumps(result | {"score": statistics.mean(returns) if returns else None}), flush=True)


if __name__ == "__main__":
    main()
