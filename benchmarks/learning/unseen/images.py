"""Tasks seen as images, small (16, 24, 32 pixels a side) and large (128 x 160), and one of an image beside numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.learning.unseen.episodes import Episodes

BRIGHT = 255
RED, GREEN, BLUE = range(3)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # rows, columns


class CatchDrifting(Episodes):
    """16 x 16 grey: a ball falls and drifts, a paddle has to be below it. Optimum: 1. Random play: -0.62.

    The paddle has three pixels. Catching pays 1, missing -1, after 15 steps. Hard because ball and paddle are a few
    pixels, and because the ball changes its column, bouncing off the walls.
    """

    side = 16
    length = side - 1

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, BRIGHT, (self.side, self.side, 1), np.uint8)
        self.action_space = spaces.Discrete(3)

    def begin(self) -> None:
        """Draw the ball's column and drift."""
        self.column, self.drift = int(self.np_random.integers(self.side)), int(self.np_random.integers(-1, 2))
        self.paddle = self.side // 2

    def act(self, action: Any) -> tuple[float, bool]:
        """Move the paddle and let the ball fall by a row."""
        self.paddle = min(self.side - 2, max(1, self.paddle + int(action) - 1))
        if not 0 <= self.column + self.drift < self.side:
            self.drift = -self.drift
        self.column += self.drift
        if self.steps < self.length - 1:
            return 0.0, False
        return 1.0 if abs(self.column - self.paddle) <= 1 else -1.0, True

    def observe(self) -> Any:
        """Ball and paddle."""
        image = np.zeros((self.side, self.side, 1), np.uint8)
        image[-1, self.paddle - 1 : self.paddle + 2] = BRIGHT
        image[min(self.steps, self.side - 1), self.column] = BRIGHT
        return image


class Gather(Episodes):
    """24 x 24 in colour: walk to the food, which then lies elsewhere. Optimum: 7.3. Random play: 0.19.

    A grid of 12 x 12 cells of two pixels; each food pays 1; the episode is cut after 60 steps. Hard because the task
    has two dimensions and random walks seldom meet food.
    """

    length = 60
    is_cut = True
    cells, cell = 12, 2

    def __init__(self) -> None:
        super().__init__()
        side = self.cells * self.cell
        self.observation_space = spaces.Box(0, BRIGHT, (side, side, 3), np.uint8)
        self.action_space = spaces.Discrete(4)

    def begin(self) -> None:
        """Draw both places."""
        self.place = tuple(self.np_random.integers(self.cells, size=2).tolist())
        self.lay_food()

    def lay_food(self) -> None:
        """Draw a place other than the agent's."""
        self.food = self.place
        while self.food == self.place:
            self.food = tuple(self.np_random.integers(self.cells, size=2).tolist())

    def act(self, action: Any) -> tuple[float, bool]:
        """One step, as far as the edge allows it."""
        row, column = self.place
        down, right = MOVES[int(action)]
        self.place = (min(self.cells - 1, max(0, row + down)), min(self.cells - 1, max(0, column + right)))
        if self.place != self.food:
            return 0.0, False
        self.lay_food()
        return 1.0, False

    def observe(self) -> Any:
        """The agent in blue, food in green."""
        side = self.cells * self.cell
        image = np.zeros((side, side, 3), np.uint8)
        for (row, column), colour in ((self.place, BLUE), (self.food, GREEN)):
            top, left = row * self.cell, column * self.cell
            image[top : top + self.cell, left : left + self.cell, colour] = BRIGHT
        return image


class FallingWalls(Episodes):
    """32 x 32 grey: walls with one gap fall; be where the gap is. Optimum: 24. Random play: 0.16.

    Eight columns of four pixels; a wall every fourth step, its gap at most three columns from the last one's, which is
    just within reach. A wall that passes pays 1, one that hits ends the episode; it is cut after 100 steps. Hard
    because two walls are on their way at once, and the lower one counts first.
    """

    length = 100
    is_cut = True
    columns, rows, cell, interval = 8, 8, 4, 4

    def __init__(self) -> None:
        super().__init__()
        side = self.rows * self.cell
        self.observation_space = spaces.Box(0, BRIGHT, (side, side, 1), np.uint8)
        self.action_space = spaces.Discrete(3)

    def begin(self) -> None:
        """Draw the first gap; nothing has fallen yet."""
        self.place = self.gap = self.columns // 2
        self.walls: list[list[int]] = []  # row and gap of each, the lowest first
        self.raise_wall()

    def raise_wall(self) -> None:
        """A new wall at the top."""
        lowest, highest = max(0, self.gap - 3), min(self.columns - 1, self.gap + 3)
        self.gap = int(self.np_random.integers(lowest, highest + 1))
        self.walls.append([0, self.gap])

    def act(self, action: Any) -> tuple[float, bool]:
        """Move by a column, and let the walls fall by a row."""
        self.place = min(self.columns - 1, max(0, self.place + int(action) - 1))
        for wall in self.walls:
            wall[0] += 1
        reward, is_hit = 0.0, False
        if self.walls[0][0] == self.rows - 1:
            _, gap = self.walls.pop(0)
            is_hit = gap != self.place
            reward = float(not is_hit)
        if (self.steps + 1) % self.interval == 0:
            self.raise_wall()
        return reward, is_hit

    def observe(self) -> Any:
        """The walls, and the agent at the bottom, less bright."""
        cell = self.cell
        image = np.zeros((self.rows * cell, self.columns * cell, 1), np.uint8)
        for row, gap in self.walls:
            image[row * cell : (row + 1) * cell] = BRIGHT
            image[row * cell : (row + 1) * cell, gap * cell : (gap + 1) * cell] = 0
        image[-cell:, self.place * cell : (self.place + 1) * cell] = BRIGHT // 2
        return image


class LargeScreen(Episodes):
    """128 x 160 in colour: touch the green square and not the red one. Optimum: 1. Random play: 0.

    The agent's blue square and the others are one of 8 x 10 cells of 16 pixels each. Green pays 1, red -1, either ends
    the episode; it is cut after 40 steps. Hard because the image is large, and chance gets as much of red as of green.
    """

    length = 40
    is_cut = True
    size, cell = (8, 10), 16

    def __init__(self) -> None:
        super().__init__()
        self.shape = (self.size[0] * self.cell, self.size[1] * self.cell, 3)
        self.observation_space = spaces.Box(0, BRIGHT, self.shape, np.uint8)
        self.action_space = spaces.Discrete(4)

    def begin(self) -> None:
        """Draw three different places."""
        numbers = self.np_random.permutation(self.size[0] * self.size[1])[:3].tolist()
        self.place, self.green, self.red = (divmod(number, self.size[1]) for number in numbers)

    def act(self, action: Any) -> tuple[float, bool]:
        """One step, as far as the edge allows it."""
        (row, column), (down, right) = self.place, MOVES[int(action)]
        self.place = (min(self.size[0] - 1, max(0, row + down)), min(self.size[1] - 1, max(0, column + right)))
        return float(self.place == self.green) - float(self.place == self.red), self.place in (self.green, self.red)

    def observe(self) -> Any:
        """Three squares on black."""
        image = np.zeros(self.shape, np.uint8)
        for (row, column), colour in ((self.place, BLUE), (self.green, GREEN), (self.red, RED)):
            top, left = row * self.cell, column * self.cell
            image[top : top + self.cell, left : left + self.cell, colour] = BRIGHT
        return image


class FindColour(Episodes):
    """A Dict of a 40 x 40 image and numbers: in which quarter is the colour that is asked for?

    Optimum: 16. Random play: 4. The quarters show four colours in any order, the numbers name one of them; the right
    quarter pays 1. Hard because neither part tells anything without the other.
    """

    length = 16
    half = 20
    colours = np.array(((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)), np.uint8)

    def __init__(self) -> None:
        super().__init__()
        image = spaces.Box(0, BRIGHT, (2 * self.half, 2 * self.half, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "asked": spaces.Box(0.0, 1.0, (4,), np.float32)})
        self.action_space = spaces.Discrete(4)

    def begin(self) -> None:
        """Draw the colours' order and what is asked."""
        self.order = self.np_random.permutation(4)
        self.asked = int(self.np_random.integers(4))

    def act(self, action: Any) -> tuple[float, bool]:
        """1 for the quarter; then the next image."""
        reward = float(self.order[int(action)] == self.asked)
        self.begin()
        return reward, False

    def observe(self) -> Any:
        """The image, and what is asked as one number of four."""
        small = self.colours[self.order].reshape(2, 2, 3)
        asked = np.zeros(4, np.float32)
        asked[self.asked] = 1.0
        return {"image": small.repeat(self.half, 0).repeat(self.half, 1), "asked": asked}
