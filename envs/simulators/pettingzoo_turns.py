"""Games of PettingZoo whose agents take turns, as parallel environments: those that wait are inactive."""

from __future__ import annotations

from typing import Any


class InTurns:
    """A parallel environment in which one agent acts at a time; the actions of the others are ignored."""

    def __init__(self, env: Any) -> None:
        """`env`: of PettingZoo's AEC interface."""
        from pettingzoo.utils.conversions import turn_based_aec_to_parallel

        self._aec = env
        self._env = turn_based_aec_to_parallel(env)
        self.possible_agents = self._env.possible_agents
        self.metadata, self.render_mode = env.metadata, getattr(env, "render_mode", None)

    @property
    def agents(self) -> list[Any]:
        """Those that play on."""
        agents: list[Any] = self._env.agents
        return agents

    def observation_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self._env.observation_space(agent)

    def action_space(self, agent: Any) -> Any:
        """Of one agent."""
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start a game."""
        observations, infos = self._env.reset(seed=seed, options=options)
        return observations, self._with_turns(infos)

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Take the action of the agent whose turn it is."""
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        return observations, rewards, terminations, truncations, self._with_turns(infos)

    def _with_turns(self, infos: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
        turn = self._aec.agent_selection
        return {agent: {"is_active": agent == turn} for agent in infos}

    def render(self) -> Any:
        """The picture, as `render_mode` says."""
        return self._env.render()

    def close(self) -> None:
        """End the game."""
        self._aec.close()
