"""Tasks of patience: a choice that pays 100 steps later, a small reward in the way of a large one, a distant goal."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.learning.unseen.episodes import Episodes


class LatePayment(Episodes):
    """The first action decides about the reward that comes 100 steps later. Optimum: 1. Random play: 0.25.

    The first observation shows which of four actions is right. What follows shows the time and nothing of the choice,
    and no later action matters. Hard because the reward has to be credited to an action 100 steps before, past 100
    actions without any effect.
    """

    length = 101

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
        self.action_space = spaces.Discrete(4)

    def begin(self) -> None:
        """Draw what is right."""
        self.asked, self.is_right = int(self.np_random.integers(4)), False

    def act(self, action: Any) -> tuple[float, bool]:
        """Note the first action, pay with the last."""
        if self.steps == 0:
            self.is_right = int(action) == self.asked
        return float(self.steps == self.length - 1 and self.is_right), False

    def observe(self) -> Any:
        """What is asked, at first, and the time."""
        seen = np.zeros(5, np.float32)
        if self.steps == 0:
            seen[self.asked] = 1.0
        seen[4] = self.steps / self.length
        return seen


class NearOrFar(Episodes):
    """A chain that pays 0.2 two steps to the left and 1 eighteen steps to the right. Optimum: 1. Random play: 0.27.

    Both end the episode; it is cut after 200 steps. Hard because nine of ten random walks end at the small reward, so
    what is learned first is to walk left.
    """

    length = 200
    is_cut = True
    start, last = 2, 20

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(self.last + 1)
        self.action_space = spaces.Discrete(2)

    def begin(self) -> None:
        """Go to the start."""
        self.place = self.start

    def act(self, action: Any) -> tuple[float, bool]:
        """One step to the left or to the right."""
        self.place += 2 * int(action) - 1
        return {0: 0.2, self.last: 1.0}.get(self.place, 0.0), self.place in (0, self.last)

    def observe(self) -> Any:
        """The place."""
        return self.place


class FarGoal(Episodes):
    """A grid of 12 x 12 with one goal, at least 10 steps away. Optimum: 1. Random play: 0.045.

    Arriving pays 1 and ends the episode; it is cut after 60 steps. The coordinates of the agent and of the goal are
    observed. Hard because no reward leads to the goal, and few random walks of 60 steps find it.
    """

    length = 60
    is_cut = True
    side, least_distance = 12, 10

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.moves = np.array(((1, 0), (-1, 0), (0, 1), (0, -1)))

    def begin(self) -> None:
        """Draw both places."""
        self.place, self.goal = self.np_random.integers(self.side, size=(2, 2))
        while np.abs(self.place - self.goal).sum() < self.least_distance:
            self.place, self.goal = self.np_random.integers(self.side, size=(2, 2))

    def act(self, action: Any) -> tuple[float, bool]:
        """One step, as far as the edge allows it."""
        self.place = np.minimum(np.maximum(self.place + self.moves[int(action)], 0), self.side - 1)
        has_arrived = bool((self.place == self.goal).all())
        return float(has_arrived), has_arrived

    def observe(self) -> Any:
        """The agent's coordinates, then the goal's."""
        return np.concatenate((self.place, self.goal), dtype=np.float32) / np.float32(self.side - 1)
