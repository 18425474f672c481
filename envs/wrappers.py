"""Looking through the wrappers around an environment, and a wrapper that families share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from appo.envs.api import AgentRewardShaping, EnvParameters, RewardShaping


def layers(env: Any) -> Iterator[Any]:
    """The environment as given, then what each wrapper wraps, down to the environment itself."""
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def find_ability(env: Any, ability: Any) -> Any:
    """The outermost layer with an optional ability of `appo.envs.api`, a Protocol; None when no layer has it."""
    return next((layer for layer in layers(env) if isinstance(layer, ability)), None)


def find_attribute(env: Any, name: str) -> Any:
    """An attribute of the outermost layer that has it; None when none has."""
    return next((getattr(layer, name) for layer in layers(env) if hasattr(layer, name)), None)


def shape_rewards(env: Any, weights: list[dict[str, float]]) -> None:
    """Give an environment the reward weights of its agents, if it has any: each its own, or all those of the first."""
    if (of_agents := find_ability(env, AgentRewardShaping)) is not None:
        for agent, own in enumerate(weights):
            of_agents.set_agent_reward_shaping(agent, own)
    elif (shaping := find_ability(env, RewardShaping)) is not None:
        shaping.set_reward_shaping(weights[0])


def set_env_params(env: Any, params: dict[str, Any]) -> None:
    """Set parameters of an environment.

    Raises:
        TypeError: it has none.
        KeyError: it has no such parameter.
    """
    owner = find_ability(env, EnvParameters)
    if owner is None:
        raise TypeError(f"{env} has no parameters to be set: it lacks get_env_params and set_env_params")
    known = owner.get_env_params()
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise KeyError(f"no such parameter: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    owner.set_env_params(params)


class SelectObservation(gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Shows some entries of a vector observation and hides the others."""

    def __init__(self, env: gymnasium.Env[np.ndarray, Any], indices: Sequence[int]) -> None:
        """Show the entries `indices`, in this order.

        Raises:
            ValueError: the observations are not vectors with these entries.
        """
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"entries can be selected from a vector only, not from {space}")
        if not indices or not all(0 <= index < space.shape[0] for index in indices):
            raise ValueError(f"cannot select entries {list(indices)} of a vector of {space.shape[0]}")
        self._indices = list(indices)
        self.observation_space = gymnasium.spaces.Box(
            space.low[self._indices], space.high[self._indices], dtype=space.dtype.type
        )

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The selected entries."""
        return observation[self._indices]
