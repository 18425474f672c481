"""Environments of other packages that need a line or two before a program can take them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


def make_blackjack() -> gymnasium.Env[Any, Any]:
    """Blackjack-v1, its Tuple of three categories told as a MultiDiscrete, which SB3 takes as well."""
    env = gymnasium.make("Blackjack-v1", disable_env_checker=True)
    categories = gymnasium.spaces.MultiDiscrete([32, 11, 2])
    return gymnasium.wrappers.TransformObservation(env, np.array, categories)


def make_minatar_breakout() -> gymnasium.Env[Any, Any]:
    """MinAtar's Breakout, 10 x 10 x 4 planes, with the least set of actions."""
    return _minatar("MinAtar/Breakout-v1")


def make_minatar_space_invaders() -> gymnasium.Env[Any, Any]:
    """MinAtar's Space Invaders, 10 x 10 x 6 planes, with the least set of actions."""
    return _minatar("MinAtar/SpaceInvaders-v1")


def make_popgym_repeat_previous() -> gymnasium.Env[Any, Any]:
    """POPGym's RepeatPreviousEasy-v0."""
    return NeedsMemory(gymnasium.make("popgym:popgym-RepeatPreviousEasy-v0", disable_env_checker=True))


def make_popgym_higher_lower() -> gymnasium.Env[Any, Any]:
    """POPGym's HigherLowerEasy-v0."""
    return NeedsMemory(gymnasium.make("popgym:popgym-HigherLowerEasy-v0", disable_env_checker=True))


class NeedsMemory(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says what the environment itself does not."""

    needs_memory = True


def _minatar(env_id: str) -> gymnasium.Env[Any, Any]:
    import minatar.gym

    if env_id not in gymnasium.registry:
        minatar.gym.register_envs()
    return gymnasium.make(env_id, disable_env_checker=True)
