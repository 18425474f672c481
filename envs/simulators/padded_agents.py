"""Agents with different spaces, brought to one: shorter observations end in zeros, missing choices are masked.

All agents of a run share one layout of observations and actions. Where they differ in the length of a vector or in the
number of choices only, padding makes them equal, and `--agent_policy_map` gives each kind of agent a policy of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from appo.envs.api import ACTION_MASK, ScriptedPlayers
from appo.envs.wrappers import find_ability


def differ(env: Any) -> bool:
    """Some agents have other spaces than the first."""
    first = env.possible_agents[0]
    return any(
        env.observation_space(agent) != env.observation_space(first)
        or env.action_space(agent) != env.action_space(first)
        for agent in env.possible_agents
    )


def can_be_padded(env: Any) -> bool:
    """All observations are vectors of one dtype, and all actions are choices, or vectors of one dtype."""
    seen = [env.observation_space(agent) for agent in env.possible_agents]
    acted = [env.action_space(agent) for agent in env.possible_agents]
    are_choices = all(isinstance(space, spaces.Discrete) and space.start == 0 for space in acted)
    return _are_vectors(seen) and (are_choices or _are_vectors(acted))


class PaddedAgents:
    """A parallel environment whose agents all have the longest observation and the largest action space."""

    def __init__(self, env: Any) -> None:
        """`env`: one of which `can_be_padded` is true."""
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.metadata, self.render_mode = env.metadata, getattr(env, "render_mode", None)
        self._acted = {agent: env.action_space(agent) for agent in self.possible_agents}
        self._observation_space = _longest([env.observation_space(agent) for agent in self.possible_agents])
        actions = list(self._acted.values())
        self._has_choices = isinstance(actions[0], spaces.Discrete)
        self.action_mask_in_info = self._has_choices
        self._action_space: Any = spaces.Discrete(max(s.n for s in actions)) if self._has_choices else _longest(actions)
        choices = np.arange(max(space.n for space in actions)) if self._has_choices else np.zeros(0)
        self._masks = {
            agent: (choices < space.n).astype(np.uint8) for agent, space in self._acted.items() if self._has_choices
        }

    @property
    def agents(self) -> list[Any]:
        """Those that play on."""
        agents: list[Any] = self.env.agents
        return agents

    def observation_space(self, agent: Any) -> Any:
        """The same for all."""
        return self._observation_space

    def action_space(self, agent: Any) -> Any:
        """The same for all."""
        return self._action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._padded(observations), self._with_masks(observations, infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step, without what an agent's own action does not have; its bounds may be narrower than those of others."""
        own = actions if self._has_choices else {agent: self._cut(agent, action) for agent, action in actions.items()}
        observations, rewards, terminations, truncations, infos = self.env.step(own)
        return self._padded(observations), rewards, terminations, truncations, self._with_masks(observations, infos)

    @property
    def scripted_players(self) -> tuple[str, ...]:
        """Those of the environment."""
        scripts = find_ability(self.env, ScriptedPlayers)
        return () if scripts is None else tuple(scripts.scripted_players)

    def scripted_action(self, name: str, agent: Any) -> Any:
        """What the environment's script does, padded; what is no action of the agent's own as it is."""
        scripts = find_ability(self.env, ScriptedPlayers)
        assert scripts is not None, "its names come from there"
        action = scripts.scripted_action(name, agent)
        if self._has_choices or not self._acted[agent].contains(action):
            return action
        padded = np.zeros(self._action_space.shape, self._action_space.dtype)
        padded[: len(action)] = action
        return padded

    def _cut(self, agent: Any, action: Any) -> Any:
        space = self._acted[agent]
        return np.clip(np.asarray(action)[: space.shape[0]], space.low, space.high)

    def _padded(self, observations: dict[Any, Any]) -> dict[Any, np.ndarray]:
        padded = {}
        for agent, observation in observations.items():
            padded[agent] = np.zeros(self._observation_space.shape, self._observation_space.dtype)
            padded[agent][: len(observation)] = observation
        return padded

    def _with_masks(self, observations: dict[Any, Any], infos: dict[Any, Any]) -> dict[Any, dict[str, Any]]:
        """An environment's own mask is padded; where it has none, all of an agent's own choices are allowed."""
        if not self._has_choices:
            return infos
        told = {}
        for agent in {**observations, **infos}:
            mask, info = self._masks[agent], infos.get(agent, {})
            if ACTION_MASK in info:
                mask = mask.copy()
                mask[: len(info[ACTION_MASK])] = info[ACTION_MASK]
            told[agent] = {**info, ACTION_MASK: mask}
        return told

    def render(self) -> Any:
        """The picture, as `render_mode` says."""
        return self.env.render()

    def close(self) -> None:
        """End it."""
        self.env.close()


def _are_vectors(found: list[Any]) -> bool:
    return all(isinstance(s, spaces.Box) and len(s.shape) == 1 and s.dtype == found[0].dtype for s in found)


def _longest(found: list[Any]) -> spaces.Box:
    """Bounds of all: each entry has the widest, and 0 where it pads."""
    length = max(space.shape[0] for space in found)
    low, high = np.zeros((len(found), length)), np.zeros((len(found), length))
    for row, space in enumerate(found):
        low[row, : space.shape[0]], high[row, : space.shape[0]] = space.low, space.high
    dtype = found[0].dtype
    return spaces.Box(low.min(axis=0).astype(dtype), high.max(axis=0).astype(dtype), dtype=dtype.type)
