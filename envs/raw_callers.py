"""Calls an environment as it is, single, parallel or vector, with its results checked before adapters convert them.

The check before the start (`preflight`) plays with these: each kind of environment becomes dicts by agent.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from appo.envs.action_layout import ActionLayout
from appo.envs.api import ACTION_MASK, MisfitError, ScriptedPlayers, SignatureError
from appo.envs.contract import checked_reset, describe, flag, flags, outline, translated
from appo.envs.observation_layout import ObservationLayout
from appo.envs.observation_watch import ObservationWatch
from appo.envs.parallel_adapter import scripted_action
from appo.envs.specs import mask_method, script_names
from appo.envs.wrappers import find_ability

_END_OF_STEP = (
    "; end step with: return observation, reward, terminated, truncated, info "
    "(truncated: a time limit, no end of the task)"
)


class RawResults(NamedTuple):
    """What a reset or step gave, per agent that is there."""

    observations: dict[Any, Any]
    infos: dict[Any, Any]
    rewards: dict[Any, Any]
    has_ended: bool
    choosing: Collection[Any]  # agents that choose an action by what they are shown, unless an info says otherwise
    is_truncated: bool = False


class RawEnvCaller:
    """Calls a Gymnasium environment."""

    agents: tuple[Any, ...] = (0,)
    num_rows = 1
    rows: int | slice = 0
    begins_by_itself = False

    def __init__(self, env: Any, observation_space: Any, action_space: Any) -> None:
        self.env = env
        self.layout, self.actions = ObservationLayout(observation_space), ActionLayout(action_space)
        self.watch = ObservationWatch(observation_space)
        self.views = self.layout.views(
            {leaf.name: np.zeros((self.num_rows, *leaf.shape), leaf.dtype) for leaf in self.layout.leaves}
        )
        self._ask_mask = mask_method(env, self.layout, self.actions)

    def reset(self, seed: int) -> RawResults:
        """Begin an episode."""
        observation, info = checked_reset(self.env, seed)
        return RawResults({0: observation}, {0: self._with_mask(info)}, {}, False, (0,))

    def step(self, actions: np.ndarray) -> RawResults:
        """Take one step."""
        (action,) = self.actions.rows(actions)
        observation, reward, terminated, truncated, info = self._checked_step(action)
        is_terminated, is_truncated = flag("terminated", terminated), flag("truncated", truncated)
        # What follows a terminated step is never learned from.
        observations = {} if is_terminated else {0: observation}
        has_ended = is_terminated or is_truncated
        told = info if has_ended else self._with_mask(info)
        return RawResults(observations, {0: told}, {0: reward}, has_ended, () if has_ended else (0,), is_truncated)

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        """An info with the mask that the environment is asked for, if it is."""
        return info if self._ask_mask is None else {**info, ACTION_MASK: self._ask_mask()}

    def _checked_step(self, action: Any) -> tuple[Any, ...]:
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            hint = f"{_END_OF_STEP}{translated(self.env)}" if isinstance(result, tuple) and len(result) == 4 else ""
            raise SignatureError("step", "(observation, reward, terminated, truncated, info)", outline(result) + hint)
        if not isinstance(result[4], dict):
            raise MisfitError("info", "a dict", describe(result[4]))
        return result


class RawParallelCaller(RawEnvCaller):
    """Calls a PettingZoo parallel environment: dicts by agent wherever a single one has a value."""

    def __init__(self, env: Any) -> None:
        self.agents = tuple(env.possible_agents)
        self.num_rows = len(self.agents)
        self._scripts_are_tried = False
        super().__init__(env, env.observation_space(self.agents[0]), env.action_space(self.agents[0]))

    def reset(self, seed: int) -> RawResults:
        """Begin an episode."""
        observations, infos = checked_reset(self.env, seed)
        self._require_agents("observations", observations)
        if not self._scripts_are_tried:
            self._scripts_are_tried = True
            self._try_scripts()
        return RawResults(observations, infos, {}, False, tuple(self.env.agents))

    def step(self, actions: np.ndarray) -> RawResults:
        """Take one step."""
        present = list(self.env.agents)
        chosen = dict(zip(self.agents, self.actions.rows(actions), strict=True))
        results = self._checked_step({agent: chosen[agent] for agent in present})
        for name, values in zip(("observations", "rewards", "terminations", "truncations"), results, strict=False):
            self._require_agents(name, values)
        observations, rewards, terminations, truncations, infos = results
        for value in terminations.values():
            flag("terminated", value)
        is_truncated = max((flag("truncated", value) for value in truncations.values()), default=False)
        stays = set(self.env.agents)
        missing = [
            agent for agent in present if agent not in observations and not terminations.get(agent, agent not in stays)
        ]
        if missing:
            raise MisfitError("observations", "given for every agent that goes on", f"without {missing}")
        going_on = {agent: seen for agent, seen in observations.items() if not terminations.get(agent, False)}
        return RawResults(going_on, infos, rewards, not self.env.agents, tuple(self.env.agents), is_truncated)

    def _try_scripts(self) -> None:
        """Ask each script once in the place of each agent."""
        scripts = find_ability(self.env, ScriptedPlayers)
        for name in script_names(scripts.scripted_players) if scripts is not None else ():
            for agent in self.env.agents:
                scripted_action(scripts, name, agent, self.env)

    def _require_agents(self, name: str, values: Any) -> None:
        if not isinstance(values, dict) or not set(values) <= set(self.agents):
            raise MisfitError(name, f"a dict by agent, of {list(self.agents)}", outline(values))


class RawVectorCaller(RawEnvCaller):
    """Calls a Gymnasium `VectorEnv`: arrays with one entry per environment wherever a single one has a value."""

    rows = slice(None)
    begins_by_itself = True

    def __init__(self, env: Any) -> None:
        self.num_rows = env.num_envs
        super().__init__(env, env.single_observation_space, env.single_action_space)

    def reset(self, seed: int) -> RawResults:
        """Begin episodes everywhere."""
        observations, infos = checked_reset(self.env, seed)
        return RawResults({0: observations}, _told(infos), {}, False, (0,))

    def step(self, actions: np.ndarray) -> RawResults:
        """Take one step everywhere; its episodes end and begin by themselves."""
        observations, rewards, terminated, truncated, infos = self._checked_step(self.actions.batched(actions))
        for name, values in (("reward", rewards), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(values) != (self.num_rows,):
                raise MisfitError(name, f"one for each of {self.num_rows} environments", describe(values))
        are_terminated, are_truncated = flags("terminated", terminated), flags("truncated", truncated)
        has_ended, rows = bool(np.any(are_terminated | are_truncated)), dict(enumerate(rewards))
        choosing = () if has_ended else (0,)
        return RawResults({0: observations}, _told(infos), rows, has_ended, choosing, bool(np.any(are_truncated)))


def raw_caller(batch: Any) -> Any:
    """How the environment inside an adapted batch of one is called."""
    env = batch.env if hasattr(batch, "env") else batch.envs[0]
    if hasattr(env, "single_observation_space"):
        return RawVectorCaller(env)
    if hasattr(env, "possible_agents"):
        return RawParallelCaller(env)
    return RawEnvCaller(env, env.observation_space, env.action_space)


def _told(infos: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What the infos of a `VectorEnv`, of one environment here, say of its next choice."""
    is_told = ACTION_MASK in infos and np.all(infos.get(f"_{ACTION_MASK}", True))
    return {0: {ACTION_MASK: np.atleast_1d(infos[ACTION_MASK])[0]}} if is_told else {}
