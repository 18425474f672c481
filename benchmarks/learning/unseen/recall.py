"""Tasks that need memory, of four kinds: holding one thing, an order of things, a sum, and a cue while walking."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from benchmarks.learning.unseen.episodes import Episodes

SYMBOLS = 4
_SHOWS, _ASKS = SYMBOLS, SYMBOLS + 1  # entries of an observation that say what a symbol is for


class Symbols(Episodes):
    """Observations of one symbol and two flags: it is to be remembered; an answer is due."""

    needs_memory = True

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (SYMBOLS + 2,), np.float32)
        self.action_space = spaces.Discrete(SYMBOLS)

    def seen(self, symbol: int | None, is_shown: bool, is_asked: bool) -> np.ndarray:
        """An observation."""
        seen = np.zeros(SYMBOLS + 2, np.float32)
        if symbol is not None:
            seen[symbol] = 1.0
        seen[_SHOWS], seen[_ASKS] = is_shown, is_asked
        return seen


class RecallCue(Symbols):
    """A cue of four in the first step, 20 steps of other symbols, then the question. Optimum: 1. Random play: 0.25.

    Hard because the symbols in between look like cues, but for a flag, and have to be kept out of memory.
    """

    length = 22

    def begin(self) -> None:
        """Draw the cue and what distracts from it."""
        self.symbols = self.np_random.integers(SYMBOLS, size=self.length).tolist()

    def act(self, action: Any) -> tuple[float, bool]:
        """1 for the cue, in the last step."""
        return float(self.steps == self.length - 1 and int(action) == self.symbols[0]), False

    def observe(self) -> Any:
        """A symbol; the question comes without one."""
        step = min(self.steps, self.length - 1)
        is_last = step == self.length - 1
        return self.seen(None if is_last else self.symbols[step], step == 0, is_last)


class RepeatSequence(Symbols):
    """Six symbols are shown, then to be repeated in their order. Optimum: 6. Random play: 1.5.

    Each right one pays 1. Hard because six things have to be kept with their order, and nothing but the agent's own
    count tells which is due.
    """

    num_shown = 6
    length = 2 * num_shown

    def begin(self) -> None:
        """Draw the sequence."""
        self.sequence = self.np_random.integers(SYMBOLS, size=self.num_shown).tolist()

    def act(self, action: Any) -> tuple[float, bool]:
        """1 for the symbol that is due."""
        due = self.steps - self.num_shown
        return float(due >= 0 and int(action) == self.sequence[due]), False

    def observe(self) -> Any:
        """A symbol of the sequence, or that an answer is due."""
        is_shown = self.steps < self.num_shown
        return self.seen(self.sequence[self.steps] if is_shown else None, is_shown, not is_shown)


class CountFlashes(Episodes):
    """15 flashes, each on the left or on the right: which side had more? Optimum: 1. Random play: 0.5.

    Only the last step is rewarded, for the answer. Hard because all flashes count alike: the last one alone tells the
    answer in three of five episodes.
    """

    needs_memory = True

    num_flashes = 15
    length = num_flashes + 1

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)

    def begin(self) -> None:
        """Draw the flashes."""
        self.sides = self.np_random.integers(2, size=self.num_flashes).tolist()

    def act(self, action: Any) -> tuple[float, bool]:
        """1 for the side with more flashes, in the last step."""
        is_right = int(action) == (2 * sum(self.sides) > self.num_flashes)
        return float(self.steps == self.num_flashes and is_right), False

    def observe(self) -> Any:
        """Left, right, or that the answer is due."""
        seen = np.zeros(3, np.float32)
        seen[self.sides[self.steps] if self.steps < self.num_flashes else 2] = 1.0
        return seen


class TMaze(Episodes):
    """A cue at the start says which way to turn at the end of a corridor of 10 steps. Optimum: 1. Random play: 0.053.

    The right turn pays 1, the wrong one nothing; either ends the episode, else it is cut after 60 steps. Actions: on,
    back, left, right. Hard because the cue is seen at the start only, every place of the corridor looks alike, and half
    of the few random walks that arrive turn wrong.
    """

    needs_memory = True

    length = 60
    is_cut = True
    corridor = 10
    sees_start, sees_corridor, sees_junction = range(2, 5)  # entries after the two cues

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
        self.action_space = spaces.Discrete(4)

    def begin(self) -> None:
        """Draw the cue."""
        self.place, self.goal = 0, int(self.np_random.integers(2))

    def act(self, action: Any) -> tuple[float, bool]:
        """Walk or turn."""
        if action < 2:
            self.place = min(self.corridor, max(0, self.place + 1 - 2 * int(action)))
            return 0.0, False
        has_turned = self.place == self.corridor
        return float(has_turned and int(action) - 2 == self.goal), has_turned

    def observe(self) -> Any:
        """The kind of place; at the first step of all the cue besides."""
        seen = np.zeros(5, np.float32)
        ends = {0: self.sees_start, self.corridor: self.sees_junction}
        seen[ends.get(self.place, self.sees_corridor)] = 1.0
        if self.steps == 0:
            seen[self.goal] = 1.0
        return seen
