"""Sample Factory's sampler without its learner, on the tasks of `benchmarks.speed.side_by_side`; ends with Ctrl+C.

    PYTHON benchmarks/peers/sample_factory_sampler.py cartpole|breakout|doom_basic [Sample Factory's options]

Run by a Python that has Sample Factory; imports nothing of this project. It uses the interface that Sample Factory
offers for this, `SyncSamplingAPI`: rollout and inference workers as in training, with weights that stay as they are.
Prints `frames: N`, frame skip included, a few times a second: what has arrived in whole rollouts.
"""

from __future__ import annotations

import sys
import time

import ale_py  # noqa: F401 - registers the games, also in its workers, which run the top of this file as well
from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.env_info import obtain_env_info_in_a_separate_process
from sample_factory.algo.utils.rl_utils import samples_per_trajectory
from sf_examples import train_gym_env
from sf_examples.atari import train_atari
from sf_examples.vizdoom import train_vizdoom

TELL_EVERY_S = 0.25
# What registers a task in its examples, and what parses its options.
TASKS = {
    "cartpole": (train_gym_env.register_custom_components, train_gym_env.parse_custom_args),
    "breakout": (train_atari.register_atari_components, train_atari.parse_atari_args),
    "doom_basic": (train_vizdoom.register_vizdoom_components, train_vizdoom.parse_vizdoom_cfg),
}


def main() -> None:
    """Play for ever."""
    register, parse = TASKS[sys.argv[1]]
    register()
    cfg = parse(sys.argv[2:])
    sampler = SyncSamplingAPI(cfg, obtain_env_info_in_a_separate_process(cfg))
    sampler.start()
    frames, next_line = 0, 0.0
    while (trajectory := sampler.get_trajectories_sync()) is not None:
        frames += samples_per_trajectory(trajectory) * cfg.env_frameskip
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + TELL_EVERY_S
            print(f"frames: {frames}", flush=True)


if __name__ == "__main__":
    main()
