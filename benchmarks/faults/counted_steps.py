"""An environment that counts its own frames, in a file that outlives the process that steps it.

    CHAOS_ENV=CartPole-v1 CHAOS_COUNTS=FOLDER python train_appo.py --env=benchmarks.faults.counted_steps:make_env

A run that counts a frame twice counts more than these files hold. They are written after each step by the process that
steps the environment, and read from outside: one file of eight bytes per environment.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Any

import gymnasium

from appo.envs.api import EnvContext
from appo.envs.registry import resolve

ENV, COUNTS = "CHAOS_ENV", "CHAOS_COUNTS"
_NUMBER = struct.Struct("<q")


class CountedSteps(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Books every step into a file, going on from what an earlier process booked."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: Path) -> None:
        """The file is made when it is not there."""
        super().__init__(env)
        with path.open("a+b") as file:
            file.truncate(_NUMBER.size)  # fills with zeros, and leaves what is there
            self._book = mmap.mmap(file.fileno(), _NUMBER.size)

    def step(self, action: Any) -> Any:
        """Step, then book what it covered."""
        result = self.env.step(action)
        (frames,) = _NUMBER.unpack_from(self._book)
        _NUMBER.pack_into(self._book, 0, frames + int(result[4].get("num_frames", 1)))
        return result


def make_env(context: EnvContext) -> Any:
    """What `--env` names."""
    name = os.environ[ENV]
    family = resolve(name).family
    env = family.make(name, family.config(), context)
    return CountedSteps(env, Path(os.environ[COUNTS]) / f"{context.env_id}")


def booked(folder: Path) -> int:
    """Frames stepped so far, in all environments."""
    return sum(_NUMBER.unpack(path.read_bytes())[0] for path in folder.iterdir())


def options_for(name: str) -> list[str]:
    """The options that make an environment behind this one train as it would by its own name."""
    values = resolve(name).family.defaults(name)
    # Steps that are taken at random before the first rollout are no frames of the run, and would blur the comparison.
    return [f"--{option}={value}" for option, value in values.items()] + ["--decorrelate_envs_on_one_worker=False"]
