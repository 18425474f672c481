"""Several agents, some of which leave early. PettingZoo's parallel interface, without PettingZoo."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from appo.envs.api import EnvContext
from appo.envs.synthetic_options import SyntheticOptions


class MultiIdentity:
    """Each agent acts what it sees; agent i of n terminates after ceil(L * (i + 1) / n) steps, L of the last one's.

    Optimum of an agent: as many as its steps. An answer is worth 1.
    """

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        number, length = options.synthetic_num_agents, options.synthetic_episode_length
        self.possible_agents = [f"agent_{i}" for i in range(number)]
        self.agents: list[str] = []
        self.lifetimes = {agent: -(-length * (i + 1) // number) for i, agent in enumerate(self.possible_agents)}
        self.space = spaces.Discrete(options.synthetic_size)
        self.num_frames = options.synthetic_frames_per_step
        self.action_mask_in_info = False
        self.rng = np.random.default_rng()
        self.asked: dict[str, int] = {}
        self.steps = 0

    def observation_space(self, agent: str) -> spaces.Discrete:
        """The answers."""
        return self.space

    def action_space(self, agent: str) -> spaces.Discrete:
        """The answers."""
        return self.space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        """Start an episode with every agent."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Score every agent that is there; those whose time is over leave."""
        acting = self.agents
        rewards = {agent: float(actions[agent] == self.asked[agent]) for agent in acting}
        self.steps += 1
        terminated = {agent: self.steps >= self.lifetimes[agent] for agent in acting}
        infos: dict[str, Any] = {agent: {"num_frames": self.num_frames} for agent in acting}
        for agent in acting:
            if terminated[agent]:
                infos[agent]["episode_extra_stats"] = {"lifetime": float(self.steps)}
        observations = self._observe()
        self.agents = [agent for agent in acting if not terminated[agent]]
        return observations, rewards, terminated, dict.fromkeys(acting, False), infos

    def _observe(self) -> dict[str, int]:
        self.asked = {agent: int(self.rng.integers(self.space.n)) for agent in self.agents}
        return self.asked

    def close(self) -> None:
        """Nothing is held."""
