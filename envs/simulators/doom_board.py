"""The memory that a Doom match shares with its environment: actions one way, what players see and earn the other.

It has no name, so a killed process leaves none behind. Only one side uses it at a time: commands and answers of one
byte, through pipes, hand it over.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np

from appo.envs.simulators.doom_matches import MatchPlan

START, STEP = b"S", b"T"  # commands: begin the map anew, play the tics that the board asks for
DONE, FAILED = b"d", b"f"  # answers: the board is filled; this process ends, and why follows


class Board:
    """Arrays over the shared memory of a match."""

    def __init__(self, plan: MatchPlan, descriptor: int) -> None:
        """Map the memory behind a descriptor that `open_memory` gave."""
        self._memory = mmap.mmap(descriptor, board_size(plan))
        self._offset = 0
        players = plan.num_players
        self.actions: np.ndarray = self._take((players, len(plan.buttons)), np.float64)
        """How far each button is pressed."""
        self.numbers: np.ndarray = self._take((players, len(plan.variables)), np.float64)
        """The variables of each player."""
        self.rewards: np.ndarray = self._take((players,), np.float64)
        """The scenario's own, of all tics of the step."""
        self.counts: np.ndarray = self._take((3,), np.int64)
        """Tics asked for, tics played, and 1 when the map has ended."""
        self.screens: np.ndarray = self._take((players, plan.height, plan.width, 3), np.uint8)

    def _take(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        array: np.ndarray = np.ndarray(shape, dtype, self._memory, self._offset)
        self._offset += array.nbytes
        return array


def board_size(plan: MatchPlan) -> int:
    """Bytes that a board takes."""
    of_player = 8 * (len(plan.buttons) + len(plan.variables) + 1) + 3 * plan.height * plan.width
    return plan.num_players * of_player + 3 * 8


def open_memory(size: int) -> int:
    """A descriptor of fresh memory without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("doom_match")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
