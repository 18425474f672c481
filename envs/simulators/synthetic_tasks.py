"""Environments whose optimum is known: what the tests of learning train on.

Each class says what the best policy earns in an episode of `--synthetic_episode_length` steps, L below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from appo.envs.api import EnvContext
from appo.envs.synthetic_options import SyntheticOptions


class Task(gymnasium.Env[Any, Any], ABC):
    """Episodes of fixed length in which the reward of a step depends on what was seen and done in it."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        self.options, self.context = options, context
        self.size, self.length = options.synthetic_size, options.synthetic_episode_length
        self.action_space = spaces.Discrete(self.size)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), self.describe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Score the action by what was last seen, and show what comes next."""
        reward = self.score(action)
        self.steps += 1
        has_ended = self.steps >= self.length
        info = self.describe()
        if self.options.synthetic_frames_per_step != 1:
            info["num_frames"] = self.options.synthetic_frames_per_step
        return self.observe(), reward, has_ended, False, info

    @abstractmethod
    def observe(self) -> Any:
        """What the agent sees now; draws what is asked of it."""

    @abstractmethod
    def score(self, action: Any) -> float:
        """The reward of an action."""

    def describe(self) -> dict[str, Any]:
        """The info that goes with the step so far."""
        return {}


class Identity(Task):
    """Act what you see. Optimum: L. At random: L / size. Reports the share of right answers at the end."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.observation_space: Any = spaces.Discrete(self.size)
        self.asked, self.num_right = 0, 0

    def observe(self) -> Any:
        """The answer itself."""
        if self.steps == 0:
            self.num_right = 0
        self.asked = int(self.np_random.integers(self.size))
        return self.asked

    def score(self, action: Any) -> float:
        """1 for the answer."""
        is_right = int(action) == self.asked
        self.num_right += is_right
        return float(is_right)

    def describe(self) -> dict[str, Any]:
        """The share of right answers, with the last step."""
        return {"episode_extra_stats": {"right": self.num_right / self.steps}} if self.steps == self.length else {}


class Bandit(Task):
    """Arm k pays 1 with probability k / size: the last arm is best. Optimum: L * (size - 1) / size on average.

    The true reward, given with the last step, is the mean pay of the arms chosen, free of luck.
    """

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.expected = 0.0

    def observe(self) -> Any:
        """Nothing."""
        return np.ones(1, np.float32)

    def score(self, action: Any) -> float:
        """What the arm pays this time."""
        chance = int(action) / self.size
        self.expected = chance + (self.expected if self.steps else 0.0)
        return float(self.np_random.random() < chance)

    def describe(self) -> dict[str, Any]:
        """What the arms of the whole episode would pay on average, with the last step."""
        return {"true_reward": self.expected} if self.steps == self.length else {}


class Memory(Task):
    """A cue is shown at first only and asked for after `synthetic_delay` blank steps.

    Optimum: 1; without memory 1 / size. The observation has one entry per cue and one that asks; the episode has
    delay + 2 steps.
    """

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.length = options.synthetic_delay + 2
        self.observation_space = spaces.Box(0.0, 1.0, (self.size + 1,), np.float32)
        self.cue = 0

    def observe(self) -> Any:
        """The cue, then nothing, then the question."""
        seen = np.zeros(self.size + 1, np.float32)
        if self.steps == 0:
            self.cue = int(self.np_random.integers(self.size))
            seen[self.cue] = 1.0
        elif self.steps == self.length - 1:
            seen[self.size] = 1.0
        return seen

    def score(self, action: Any) -> float:
        """1 for the cue, when it is asked for."""
        return float(self.steps == self.length - 1 and int(action) == self.cue)


class Masked(Task):
    """One choice, another in each step, is forbidden and costs 1; the others pay 1. Optimum: L, with the mask alone.

    Nothing else tells which one it is: without the mask no policy earns more than L * (1 - 2 / size).
    """

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        nothing = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Dict({"nothing": nothing, "action_mask": spaces.MultiBinary(self.size)})
        self.mask = np.ones(self.size, np.int8)

    def draw_mask(self) -> np.ndarray:
        """The choices allowed in the next step."""
        self.mask = np.ones(self.size, np.int8)
        self.mask[self.np_random.integers(self.size)] = 0
        return self.mask

    def observe(self) -> Any:
        """The mask beside nothing."""
        return {"nothing": np.ones(1, np.float32), "action_mask": self.draw_mask()}

    def score(self, action: Any) -> float:
        """1, or -1 for the forbidden choice."""
        return 1.0 if self.mask[action] else -1.0


class MaskedInInfo(Masked):
    """The same, with the mask in `info`. Optimum: L."""

    action_mask_in_info = True

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def observe(self) -> Any:
        """Nothing."""
        return np.ones(1, np.float32)

    def describe(self) -> dict[str, Any]:
        """The mask of the next step."""
        return {"action_mask": self.draw_mask()}


class Truncation(Task):
    """Every step pays 1 for ever; a limit only cuts. The value of every state is 1 / (1 - gamma). Optimum: L."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One more step of the same."""
        observation, reward, has_ended, _, info = super().step(action)
        return observation, reward, False, has_ended, info

    def observe(self) -> Any:
        """Always the same: no state knows how near the limit is."""
        return np.ones(1, np.float32)

    def score(self, action: Any) -> float:
        """Always 1."""
        return 1.0


class MixedTuple(Task):
    """A Tuple of a choice, a number and two choices, each to equal what is seen. Optimum: L; a quarter for each part.

    The number earns 0.25 * (1 - |difference|).
    """

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        number = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.choices = spaces.MultiDiscrete([self.size, 2, 3])
        self.action_space: Any = spaces.Tuple((spaces.Discrete(self.size), number, spaces.MultiDiscrete([2, 3])))
        self.observation_space = spaces.Dict({"choices": self.choices, "number": number})
        self.asked: Any = None

    def observe(self) -> Any:
        """The answers."""
        choices, number = self.np_random.integers(self.choices.nvec), self.np_random.uniform(-1.0, 1.0, 1)
        self.asked = {"choices": choices, "number": number.astype(np.float32)}
        return self.asked

    def score(self, action: Any) -> float:
        """A quarter for each part."""
        choice, number, pair = action
        num_right = np.sum(self.asked["choices"] == [choice, *pair])
        return 0.25 * float(num_right + max(0.0, 1.0 - abs(number - self.asked["number"]).item()))


class Image(Task):
    """Which quadrant of a small image is bright? Four choices. Optimum: L."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        side = options.synthetic_image_size
        self.action_space = spaces.Discrete(4)
        self.observation_space: Any = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.side, self.bright = side, 0

    def draw_image(self) -> np.ndarray:
        """Dark, but for one quadrant."""
        self.bright = int(self.np_random.integers(4))
        half = self.side // 2
        image = np.zeros((self.side, self.side, 3), np.uint8)
        row, column = half * (self.bright // 2), half * (self.bright % 2)
        image[row : row + half, column : column + half] = 255
        return image

    def observe(self) -> Any:
        """The image."""
        return self.draw_image()

    def score(self, action: Any) -> float:
        """1 for the bright quadrant."""
        return float(int(action) == self.bright)


class NestedDict(Image):
    """An image, a category and a vector that says which of the two to answer, in a nested Dict. Optimum: L."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        pointer = spaces.Box(-1.0, 1.0, (2,), np.float32)
        sensors = spaces.Dict({"camera": self.observation_space, "category": spaces.Discrete(4, start=1)})
        self.observation_space = spaces.Dict({"sensors": sensors, "pointer": pointer})
        self.asked = 0

    def observe(self) -> Any:
        """All three."""
        image, category, which = self.draw_image(), int(self.np_random.integers(4)), int(self.np_random.integers(2))
        self.asked = (self.bright, category)[which]
        pointer = np.array((1.0, -1.0) if which else (-1.0, 1.0), np.float32)
        return {"sensors": {"camera": image, "category": category + 1}, "pointer": pointer}

    def score(self, action: Any) -> float:
        """1 for the answer of the sensor that was pointed at."""
        return float(int(action) == self.asked)


class Continuous(Task):
    """Reach a target: each step costs the mean distance. Bounds are [-2, 2], targets within [-1.5, 1.5]. Optimum: 0."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        size = options.synthetic_action_size
        self.action_space: Any = spaces.Box(-2.0, 2.0, (size,), np.float32)
        self.observation_space = spaces.Box(-1.5, 1.5, (size,), np.float32)
        self.target = np.zeros(size, np.float32)

    def observe(self) -> Any:
        """The target."""
        self.target = self.np_random.uniform(-1.5, 1.5, self.target.shape).astype(np.float32)
        return self.target

    def score(self, action: Any) -> float:
        """Minus the distance."""
        return -float(np.abs(action - self.target).mean())


class Shaped(Identity):
    """Identity whose reward also pays for choice 0, whatever was seen: how much is a weight that training may tune.

    The objective, `true_reward`, is the number of right answers: L, which the best policy for the reward reaches where
    that weight is below 1. Above, it always chooses 0, and L / size answers are right.
    """

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.weights = {"right": 1.0, "zero": 1.5}
        self.changes = 0  # of the weights within the present episode

    def get_reward_shaping(self) -> dict[str, float]:
        """See `appo.envs.api.RewardShaping`."""
        return dict(self.weights)

    def set_reward_shaping(self, weights: dict[str, float]) -> None:
        """See `appo.envs.api.RewardShaping`."""
        self.weights = dict(weights)
        self.changes += self.steps > 0

    def observe(self) -> Any:
        """The answer itself."""
        if self.steps == 0:
            self.changes = 0
        return super().observe()

    def score(self, action: Any) -> float:
        """What the weights say."""
        return self.weights["right"] * super().score(action) + self.weights["zero"] * (int(action) == 0)

    def describe(self) -> dict[str, Any]:
        """With the last step the objective, and the weight that was in force."""
        if self.steps != self.length:
            return {}
        told = {"right": self.num_right / self.steps, "zero": self.weights["zero"], "changes": float(self.changes)}
        return {"true_reward": float(self.num_right), "episode_extra_stats": told}


class Lock(gymnasium.Env[Any, Any]):
    """A combination lock of L dials, each set once: it opens, for a reward of 1, if all were right; nothing else tells.

    Optimum: 1. At random: size ** -L. With `synthetic_curriculum_frames` only the last dial counts at first, and all of
    them after so many frames of the run, so that each number of dials is learned from the one before; as long as nobody
    tells how far training is, all count. The true reward is 1 for opening it when all do.
    """

    true_reward_in_info = True

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        self.most, self.size = options.synthetic_episode_length, options.synthetic_size
        self.frames = options.synthetic_curriculum_frames
        self.observation_space = spaces.Discrete(self.most)
        self.action_space = spaces.Discrete(self.size)
        self.dials = self.next_dials = self.most
        self.place, self.is_right = 0, True

    def set_training_progress(self, env_frames: int) -> None:
        """Set how many dials count in the episodes that begin from now on."""
        if self.frames:
            self.next_dials = min(self.most, 1 + env_frames * self.most // self.frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at the first dial. Those that count are the last ones, so what is known already comes at the end."""
        super().reset(seed=seed)
        self.dials = self.next_dials
        self.place, self.is_right = 0, True
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Set a dial."""
        if self.place >= self.most - self.dials:
            self.is_right &= int(action) == (7 * self.place * self.place + 3 * self.place + 1) % self.size
        if self.place < self.most - 1:
            self.place += 1
            return self.place, 0.0, False, False, {}
        opens_all = self.is_right and self.dials == self.most
        info = {"true_reward": float(opens_all), "episode_extra_stats": {"dials": self.dials}}
        return self.place, float(self.is_right), True, False, info
