"""Continuous control whose difficulty is in the scale: of rewards, of bounds, of the actions that are needed.

And one endless task, whose episodes are cut at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.learning.unseen.episodes import Episodes


class Follow(Episodes):
    """Move points to targets that stay where they are; each step costs the mean distance. Cut after 40 steps.

    An action within its bounds is a velocity; at the bound a point moves by a tenth of half the width of its world.
    """

    length = 40
    is_cut = True
    speed = 0.1

    def __init__(self, low: Sequence[float], high: Sequence[float], reward_scale: float = 1.0) -> None:
        """`low`, `high`: the bounds, one for each axis."""
        super().__init__()
        self.size, self.reward_scale = len(low), reward_scale
        self.action_space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.observation_space = spaces.Box(-1.0, 1.0, (2 * self.size,), np.float32)
        self.centre = (self.action_space.high + self.action_space.low) / 2
        self.stretch = (self.action_space.high - self.action_space.low) / 2 / self.speed

    def begin(self) -> None:
        """Draw places and targets."""
        self.seen = self.np_random.uniform(-1.0, 1.0, 2 * self.size).astype(np.float32)

    def act(self, action: Any) -> tuple[float, bool]:
        """Move; minus the mean distance that is left."""
        seen = self.seen.copy()
        place, target = seen[: self.size], seen[self.size :]
        place += (action - self.centre) / self.stretch
        np.minimum(np.maximum(place, -1.0, out=place), 1.0, out=place)
        self.seen = seen
        return -float(np.abs(place - target).mean()) * self.reward_scale, False

    def observe(self) -> Any:
        """The places, then the targets."""
        return self.seen


def make_tiny_rewards() -> Follow:
    """A point in the plane whose rewards are of the order of 0.001. Optimum: -0.003. Random play: -0.0268.

    Hard where losses or normalisers take such rewards for none.
    """
    return Follow((-1.0, -1.0), (1.0, 1.0), reward_scale=1e-3)


def make_huge_rewards() -> Follow:
    """A point in the plane whose rewards are of the order of 1000. Optimum: -3000. Random play: -26800.

    Hard where the value's loss drowns the policy's.
    """
    return Follow((-1.0, -1.0), (1.0, 1.0), reward_scale=1e3)


def make_tight_bounds() -> Follow:
    """A point on a line, actions within 0.01 of zero. Optimum: -3. Random play: -26.8.

    Hard where noise of size 1 would always be at one bound or the other.
    """
    return Follow((-0.01,), (0.01,))


def make_six_joints() -> Follow:
    """Six points at once, each with bounds of its own, not all round zero. Optimum: -3. Random play: -26.8.

    Hard because each of six numbers gets a sixth of the reward, and because of the bounds.
    """
    return Follow((-1.0, -2.0, 0.0, -5.0, -0.1, 10.0), (1.0, 2.0, 1.0, 5.0, 0.1, 20.0))


class Regulator(Episodes):
    """Bring a linear system to zero with actions that have no bounds; cut after 30 steps.

    state' = R (state + action / 2 + noise), with R a slow rotation of neighbouring pairs of axes. A step costs the mean
    square of the state and a tenth of that of the action. A linear policy is best: action = -1.531 state.
    """

    length = 30
    is_cut = True
    strength, noise, action_cost, start, wall, angle = 0.5, 0.1, 0.1, 3.0, 50.0, 0.3

    def __init__(self, size: int) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_space = spaces.Box(-self.wall, self.wall, (size,), np.float32)
        self.size = size
        sine, cosine = np.sin(self.angle), np.cos(self.angle)
        pairs = np.kron(np.eye(size // 2), ((cosine, -sine), (sine, cosine)))
        self.rotation = pairs if size > 1 else np.eye(1)

    def begin(self) -> None:
        """Draw the state."""
        self.state = self.np_random.uniform(-self.start, self.start, self.size)

    def act(self, action: Any) -> tuple[float, bool]:
        """The cost of the present state and of the action, then the next state, which ends at walls."""
        cost = float(self.state @ self.state + self.action_cost * (action @ action)) / self.size
        noise = self.noise * self.np_random.standard_normal(self.size)
        state = self.rotation @ (self.state + self.strength * action + noise)
        self.state = np.minimum(np.maximum(state, -self.wall), self.wall)
        return -cost, False

    def observe(self) -> Any:
        """The state."""
        return self.state.astype(np.float32)


def make_unbounded() -> Regulator:
    """The regulator of one number. Optimum: -4.3. Random play: -133.

    Hard where the best actions, up to 4.6, lie far outside of what is tried at first.
    """
    return Regulator(1)


def make_unbounded_six() -> Regulator:
    """The regulator of six numbers. Optimum: -4.3. Random play: -133.

    Hard for the same reason, with six noises at once.
    """
    return Regulator(6)


class EndlessBalance(Episodes):
    """Keep an unstable number near zero for ever; episodes are cut after 50 to 150 steps, drawn evenly.

    Optimum: 99. Random play: 3. A step pays 1 while the number is within 0.3. It grows by a tenth of itself in each
    step, and a push moves it by 0.2. Hard because nothing tells when an episode is cut, so its length is noise in every
    return, and what comes after a cut is worth as much as before it.
    """

    is_cut = True
    growth, push, noise, wall, near = 1.1, 0.2, 0.05, 1.5, 0.3

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-self.wall, self.wall, (1,), np.float32)
        self.action_space = spaces.Discrete(3)

    def begin(self) -> None:
        """Draw the number and how long the episode is."""
        self.length = int(self.np_random.integers(50, 151))
        self.number = self.np_random.uniform(-1.0, 1.0)

    def act(self, action: Any) -> tuple[float, bool]:
        """Push; 1 near zero."""
        number = self.growth * self.number + self.push * (int(action) - 1)
        number += self.noise * self.np_random.standard_normal()
        self.number = min(self.wall, max(-self.wall, number))
        return float(abs(self.number) < self.near), False

    def observe(self) -> Any:
        """The number."""
        return np.array((self.number,), np.float32)
