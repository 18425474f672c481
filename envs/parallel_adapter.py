"""A parallel environment of PettingZoo, made to write its steps into the rows of a batch, one for each agent.

What it shares with single environments is in `appo.envs.adapters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from appo.envs.adapters import OneEnv, Target, keep_final, read_step
from appo.envs.api import ACTION_MASK, EnvContext, MisfitError, ScriptedPlayers, UnsupportedSpaceError
from appo.envs.faults import FAILURES
from appo.envs.wrappers import find_ability


class ParallelEnvAdapter(OneEnv):
    """One PettingZoo parallel environment: a row per possible agent, in the order of `possible_agents`.

    An agent that ends before the others is flagged once; from then on its row is inactive, zero and without reward
    until the environment starts anew, which happens when no agent is left: at once, unless the last to go include
    truncated ones, whose final observation comes first. An agent that comes late is inactive until then. No agent
    comes back within an episode.
    """

    def __init__(self, env: Any, env_index: int, context: EnvContext) -> None:
        """Adapt `env`, environment `env_index` of its batch.

        Raises:
            UnsupportedSpaceError: a space that cannot be trained on, or agents whose spaces differ.
            EnvError: the early reset failed.
        """
        self.agents = tuple(env.possible_agents)
        if not self.agents:
            raise UnsupportedSpaceError("possible_agents is empty; name every agent that can take part")
        observation_space = _same_for_all(self.agents, env.observation_space, "observation", "pad_observations_v0")
        action_space = _same_for_all(self.agents, env.action_space, "action", "pad_action_space_v0")
        super().__init__(env, env_index, context, observation_space, action_space, self.agents)
        self._is_alive = [False] * len(self.agents)
        self._has_ended = [False] * len(self.agents)
        self._scripts: dict[int, str] = {}
        self._scripted: Any = None
        self.is_between_episodes = False
        """The next step ignores its actions and starts an episode."""

    def _each(self, infos: Any) -> Iterable[dict[str, Any]]:
        return list(infos.values())

    def start(self, first_row: int, target: Target) -> None:
        """Reset, and write the first observation of an episode of every agent that is there from the start."""
        self.latest_start = target
        self.is_between_episodes = False
        observations, infos = self._reset_env()
        # Of those that come later as well: their seats are dealt now.
        target.out.is_first[first_row : first_row + len(self.agents)] = 1
        for i, agent in enumerate(self.agents):
            self._has_ended[i] = False
            self._enter_or_blank(i, first_row + i, agent in observations, (observations, infos), target)

    def step(self, actions: Sequence[Any], first_row: int, target: Target) -> None:
        """Step once and write the rows of all agents."""
        out, rows = target.out, slice(first_row, first_row + len(self.agents))
        out.rewards[rows] = 0.0
        if self.is_between_episodes:
            out.frames[rows] = 0
            self.start(first_row, target)
            return
        chosen = {agent: actions[i] for i, agent in enumerate(self.agents) if self._is_alive[i]}
        for i, script in self._scripts.items():
            if self._is_alive[i]:
                chosen[self.agents[i]] = scripted_action(self._scripted, script, self.agents[i], self.env)
        results = self.env.step(chosen)
        observations, _, _, _, infos = results
        present = set(self.env.agents)
        for i, agent in enumerate(self.agents):
            is_present = agent in present
            if self._is_alive[i]:
                self._write_step(i, first_row + i, is_present, results, target)
                continue
            out.frames[first_row + i] = 0
            comes_late = is_present and agent in observations and not self._has_ended[i]
            self._enter_or_blank(i, first_row + i, comes_late, (observations, infos), target)
        if not any(self._is_alive):
            self.is_between_episodes = target.finals is None and bool(out.truncated[rows].any())
            if not self.is_between_episodes:
                out.active[rows] = 1
                self.start(first_row, target)

    def play_scripts(self, scripts: Sequence[str]) -> None:
        """See `ScriptedBatch`."""
        self._scripts = {i: script for i, script in enumerate(scripts) if script}
        self._scripted = find_ability(self.env, ScriptedPlayers)

    def _write_step(self, i: int, row: int, is_present: bool, results: Any, target: Target) -> None:
        observations, rewards, terminations, truncations, infos = results
        agent, out = self.agents[i], target.out
        info = infos.get(agent, {})
        out.rewards[row] = rewards.get(agent, 0.0)
        read_step(info, row, target)
        is_terminated = terminations.get(agent, not is_present)
        is_truncated = not is_terminated and truncations.get(agent, False)
        if is_terminated:
            out.terminated[row] = 1
            if target.finals is not None:
                self._write_final(target.finals, row, observations.get(agent))
            self._blank(row, target)
        else:
            self.layout.write(target.views, row, observations[agent])
            self._read_state(info, row, out)
        if is_truncated:
            out.truncated[row] = 1
            if target.finals is None:
                out.is_last[row] = out.active[row] = 1
            else:
                keep_final(target.views, target.finals, row)
                self._blank(row, target)
        self._has_ended[i] = bool(is_terminated or is_truncated)
        self._is_alive[i] = not self._has_ended[i]

    def _write_final(self, finals: list[np.ndarray], row: int, observation: Any) -> None:
        if observation is not None:
            self.layout.write(finals, row, observation)
            return
        for final in finals:
            final[row] = 0

    def _enter_or_blank(self, i: int, row: int, enters: bool, state: tuple[Any, Any], target: Target) -> None:
        self._is_alive[i] = enters
        if not enters:
            self._blank(row, target)
            return
        observations, infos = state
        self.layout.write(target.views, row, observations[self.agents[i]])
        target.out.is_first[row] = 1
        self._read_state(infos.get(self.agents[i], {}), row, target.out)

    def _blank(self, row: int, target: Target) -> None:
        for view in target.views:
            view[row] = 0
        if self._adds_mask:
            target.out.observations[ACTION_MASK][row] = 0
        target.out.active[row] = 0


def scripted_action(scripted: Any, script: str, agent: Any, env: Any) -> Any:
    """What a script does in the place of an agent.

    Raises:
        MisfitError: it is no action, or the script raised.
    """
    space, name = env.action_space(agent), f"scripted_action({script!r}, {agent!r})"
    try:
        action = scripted.scripted_action(script, agent)
    except FAILURES as error:
        raise MisfitError(name, f"an action of {space}", f"{type(error).__name__}: {error}") from error
    if not space.contains(action):
        raise MisfitError(name, f"an action of {space}", repr(action))
    return action


def _same_for_all(agents: tuple[Any, ...], space_of: Any, what: str, remedy: str) -> Any:
    first = space_of(agents[0])
    for agent in agents[1:]:
        if space_of(agent) != first:
            raise UnsupportedSpaceError(
                f"agents {agents[0]!r} and {agent!r} have different {what} spaces, {first} and {space_of(agent)}; "
                "all agents of a run share one layout, whichever policies play them: pad vectors and choices with "
                f"appo.envs.simulators.padded_agents.PaddedAgents, or anything with supersuit.{remedy}"
            )
    return first
