"""Several agents that leave at different moments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class LeaveEarly(ParallelEnv[str, Any, Any]):
    """Three agents, each on a line with an exit of its own, 3 to 12 steps away. Optimum: 0.85. Random play: -0.51.

    A step costs 0.02, the exit pays 1, and an agent that has reached it is gone; the others are cut off after 40 steps.
    Hard because the number of agents changes within an episode, and because rows of an agent that has left must not be
    learned from.
    """

    metadata = {"name": "leave_early"}  # noqa: RUF012 - PettingZoo's way to name an environment
    length, nearest, farthest, step_cost = 40, 3, 12, 0.02

    def __init__(self) -> None:
        self.possible_agents = ["first", "second", "third"]
        self.agents: list[str] = []
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Place, exit, and how many agents are there, each scaled to about 1."""
        return spaces.Box(-4.0, 4.0, (3,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Left, stay, right."""
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = self.possible_agents[:], 0
        distances = self.rng.integers(self.nearest, self.farthest + 1, size=len(self.agents))
        sides = 2 * self.rng.integers(2, size=len(self.agents)) - 1
        self.exits = dict(zip(self.agents, (distances * sides).tolist(), strict=True))
        self.places = dict.fromkeys(self.agents, 0)
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Move all agents that are present."""
        present = self.agents
        self.steps += 1
        for agent in present:
            self.places[agent] += int(actions[agent]) - 1
        has_left = {agent: self.places[agent] == self.exits[agent] for agent in present}
        is_over = self.steps >= self.length
        rewards = {agent: has_left[agent] - self.step_cost for agent in present}
        is_cut = {agent: is_over and not has_left[agent] for agent in present}
        observations = self.observe()
        self.agents = [] if is_over else [agent for agent in present if not has_left[agent]]
        return observations, rewards, has_left, is_cut, {agent: {} for agent in present}

    def observe(self) -> dict[str, Any]:
        """What each agent that is there sees."""
        crowd = len(self.agents) / len(self.possible_agents)
        scale = self.farthest
        return {
            agent: np.array((self.places[agent] / scale, self.exits[agent] / scale, crowd), np.float32)
            for agent in self.agents
        }
