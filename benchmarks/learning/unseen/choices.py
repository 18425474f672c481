"""Tasks of one step each: contextual bandits with and without masks, MultiDiscrete and Tuple actions.

What is right depends on the present observation alone, so nothing has to be explored over time; the difficulty is in
the action space and in the table that has to be learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.learning.unseen.episodes import Episodes

CONTEXTS = ARMS = 8


def preference(context: int, arm: int) -> int:
    """How much a context prefers an arm, 0 to 7: a different order of the arms for each context, the same for ever."""
    return ((2 * context + 1) * arm + 3 * context) % ARMS


class ContextualBandit(Episodes):
    """Eight arms, of which each of eight contexts prefers one. Optimum: 28.8. Random play: 6.4.

    The preferred arm pays 1 in nine of ten cases, the others in one of ten. Hard because of that noise, and because a
    context is a category of which no number says anything about its neighbours.
    """

    length = 32

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(CONTEXTS)
        self.action_space = spaces.Discrete(ARMS)

    def begin(self) -> None:
        """Draw a context."""
        self.context = int(self.np_random.integers(CONTEXTS))

    def act(self, action: Any) -> tuple[float, bool]:
        """Pay, and draw the next context."""
        chance = 0.9 if preference(self.context, int(action)) == ARMS - 1 else 0.1
        reward = float(self.np_random.random() < chance)
        self.begin()
        return reward, False

    def observe(self) -> Any:
        """The context."""
        return self.context


class MaskedBandit(Episodes):
    """Two to four of eight arms are allowed in a step; the one that the context prefers among them pays 1.

    Optimum: 32. Random play: 11.56. Hard because the best arm of a context is seldom allowed: the whole order of the
    arms has to be learned for each context. An arm that is not allowed costs 1.
    """

    length = 32

    def __init__(self) -> None:
        super().__init__()
        masks = spaces.MultiBinary(ARMS)
        self.observation_space = spaces.Dict({"context": spaces.Discrete(CONTEXTS), "action_mask": masks})
        self.action_space = spaces.Discrete(ARMS)

    def begin(self) -> None:
        """Draw a context and which arms are allowed."""
        self.context = int(self.np_random.integers(CONTEXTS))
        num_allowed = int(self.np_random.integers(2, 5))
        allowed = self.np_random.permutation(ARMS)[:num_allowed]
        self.mask = np.zeros(ARMS, np.int8)
        self.mask[allowed] = 1
        self.best = max(allowed.tolist(), key=lambda arm: preference(self.context, arm))

    def act(self, action: Any) -> tuple[float, bool]:
        """Pay, and draw the next context and mask."""
        reward = float(action == self.best) if self.mask[action] else -1.0
        self.begin()
        return reward, False

    def observe(self) -> Any:
        """The context and the mask."""
        return {"context": self.context, "action_mask": self.mask}

    def action_masks(self) -> np.ndarray:
        """The mask again, where MaskablePPO asks for it."""
        return self.mask.astype(bool)


class ThreeDials(Episodes):
    """Three dials of 3, 4 and 5 positions, one MultiDiscrete action. Optimum: 32. Random play: 2.88.

    A dial's right position is the sum of its number and the next dial's, modulo its size. Each right dial pays 0.1, all
    three together 0.7 more. Hard because the large part comes to one of 60 actions only, and because the dials have to
    be set from two numbers each.
    """

    length = 32
    sizes = (3, 4, 5)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.MultiDiscrete(np.array(self.sizes))
        self.action_space = spaces.MultiDiscrete(np.array(self.sizes))

    def begin(self) -> None:
        """Draw the numbers."""
        self.numbers = [int(self.np_random.integers(size)) for size in self.sizes]

    def act(self, action: Any) -> tuple[float, bool]:
        """Count the right dials, and draw the next numbers."""
        nexts = (*self.numbers[1:], self.numbers[0])
        right = [(own + other) % size for own, other, size in zip(self.numbers, nexts, self.sizes, strict=True)]
        num_right = sum(turned == wanted for turned, wanted in zip(action.tolist(), right, strict=True))
        self.begin()
        return 0.1 * num_right + 0.7 * (num_right == 3), False

    def observe(self) -> Any:
        """The numbers."""
        return np.array(self.numbers)


class ToolAndAim(Episodes):
    """A Tuple action: which of three tools, and where to aim it in the plane. Optimum: 16. Random play: 1.13.

    The tool with the largest number is right; with it a step pays 1 less the distance to the target, at least 0. Hard
    because the aim is rewarded only where the choice was right.
    """

    length = 16

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
        aim = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Tuple((spaces.Discrete(3), aim))

    def begin(self) -> None:
        """Draw the tools' numbers and the target."""
        self.seen = self.np_random.uniform(-0.8, 0.8, 5).astype(np.float32)

    def act(self, action: Any) -> tuple[float, bool]:
        """Judge the tool and the aim, and draw the next ones."""
        tool, aim = action
        is_right = int(tool) == int(self.seen[:3].argmax())
        distance = float(np.hypot(aim[0] - self.seen[3], aim[1] - self.seen[4]))
        self.begin()
        return max(0.0, 1.0 - distance) if is_right else 0.0, False

    def observe(self) -> Any:
        """Three numbers, one for each tool, and the target."""
        return self.seen
