"""The skeleton of the suite's own environments: one episode, from what begins it to what ends it.

The docstring of each environment, or of the function that makes it, says "Optimum: X" and "Random play: Y", the mean
returns of the best policy and of uniformly drawn allowed actions; the tests read both numbers and measure them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium


class Episodes(gymnasium.Env[Any, Any], ABC):
    """An environment whose episodes have at most `length` steps."""

    length: int
    is_cut = False
    """The end at `length` is a truncation: the task itself would go on."""

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.steps = 0
        self.begin()
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        reward, is_terminated = self.act(action)
        self.steps += 1
        is_at_limit = self.steps >= self.length
        is_terminated = is_terminated or (is_at_limit and not self.is_cut)
        return self.observe(), reward, is_terminated, is_at_limit and not is_terminated, {}

    @abstractmethod
    def begin(self) -> None:
        """Draw what differs between episodes."""

    @abstractmethod
    def act(self, action: Any) -> tuple[float, bool]:
        """Carry out an action; its reward, and whether it ends the episode."""

    @abstractmethod
    def observe(self) -> Any:
        """The observation of the present state, a new array each time."""
