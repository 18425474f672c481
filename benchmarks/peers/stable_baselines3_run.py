"""PPO of Stable-Baselines3 on the tasks of `benchmarks.speed.side_by_side`; ends with Ctrl+C.

    PYTHON benchmarks/peers/stable_baselines3_run.py --env=cartpole|breakout [--sampler_only]

Run by a Python that has Stable-Baselines3; imports nothing of this project. Prints `frames: N`, frame skip included, as
soon as there are any and before each iteration, so that N is what has been both played and learned from.

CartPole's 128 environments are stepped in the main process (`DummyVecEnv`): a step takes microseconds, so a process for
each would cost more in pipes and memory than it saves. Breakout's 16 games have a process each (`SubprocVecEnv`).
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

ROLLOUT = 32
BATCH = 1024
FOR_EVER = 10**12
WIDTH = 512
FRAME_SKIP = {"cartpole": 1, "breakout": 4}


class SharedMlp(BaseFeaturesExtractor):
    """Two layers of 512 that policy and value share; `net_arch` would build them twice."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, WIDTH)
        size = observation_space.shape[0]
        self._layers = torch.nn.Sequential(
            torch.nn.Linear(size, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """[B, size] -> [B, 512]."""
        return self._layers(observations)


class SamplingOnly(PPO):
    """PPO that plays and does not learn."""

    def train(self) -> None:
        """Nothing."""


class TellFrames(BaseCallback):
    """Prints how many frames there have been."""

    def __init__(self, frame_skip: int) -> None:
        super().__init__()
        self._frame_skip = frame_skip
        self._has_told = False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self._tell()

    def _on_step(self) -> bool:
        if not self._has_told:
            self._tell()
        return True

    def _tell(self) -> None:
        self._has_told = True
        print(f"frames: {self.num_timesteps * self._frame_skip}", flush=True)


def make_envs(env: str) -> Any:
    """As many environments as two workers of ours step."""
    if env == "cartpole":
        return make_vec_env("CartPole-v1", 2 * 64, vec_env_cls=DummyVecEnv)
    # The part before the colon is imported first, in each process: it registers the games.
    games = make_atari_env("ale_py:BreakoutNoFrameskip-v4", 2 * 8, vec_env_cls=SubprocVecEnv)
    return VecFrameStack(games, n_stack=4)


def main() -> None:
    """Train for ever."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=tuple(FRAME_SKIP), required=True)
    parser.add_argument("--sampler_only", action="store_true", help="play with the policy as it is")
    chosen = parser.parse_args()
    envs = make_envs(chosen.env)
    mlp = {"features_extractor_class": SharedMlp, "net_arch": []}
    policy, policy_options = ("MlpPolicy", mlp) if chosen.env == "cartpole" else ("CnnPolicy", {})
    algorithm = SamplingOnly if chosen.sampler_only else PPO
    model = algorithm(
        policy,
        envs,
        n_steps=ROLLOUT,
        batch_size=min(BATCH, envs.num_envs * ROLLOUT),  # it trains on one rollout of each environment at a time
        n_epochs=1,
        policy_kwargs=policy_options,
        device="cpu",
    )
    model.learn(FOR_EVER, callback=TellFrames(FRAME_SKIP[chosen.env]))


if __name__ == "__main__":
    main()
