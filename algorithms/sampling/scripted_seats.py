"""Seats that no policy plays: random actions are drawn here, scripts of an environment act inside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.sampling.config import RANDOM
from appo.envs.action_layout import random_actions
from appo.envs.api import ACTION_MASK, BatchEnv, ScriptedBatch


class ScriptedSeats:
    """Plays the scripted seats of one split."""

    def __init__(self, env: BatchEnv, scripts: tuple[str, ...], first: int, seed: np.random.SeedSequence) -> None:
        """`first`: number of the player that acts as the first of the scripts does; the others follow."""
        self._env = env
        self._first, self._scripts = first, scripts
        self._random = first + scripts.index(RANDOM) if RANDOM in scripts else -1
        self._rng = np.random.default_rng(seed)

    @property
    def random_state(self) -> dict[str, Any]:
        """Where the random numbers stand, as plain values."""
        return dict(self._rng.bit_generator.state)

    @random_state.setter
    def random_state(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state

    def begin(self, index: int, players: NDArray[np.int32]) -> None:
        """Tell an environment which of its agents it plays itself in the match that begins."""
        if isinstance(self._env, ScriptedBatch):
            self._env.play_scripts(index, [self._script_of(player) for player in players.tolist()])

    def fill(
        self, actions: NDArray[np.float32], players: NDArray[np.int32], observations: dict[str, NDArray[np.generic]]
    ) -> NDArray[np.float32]:
        """The same actions [E, W] with random ones in the rows of the random player."""
        rows = np.flatnonzero(players == self._random)
        if not len(rows):
            return actions
        mask = observations[ACTION_MASK][rows] if ACTION_MASK in observations else None
        actions = actions.copy()
        actions[rows] = random_actions(self._env.spec.actions, self._rng, len(rows), mask)
        return actions

    def _script_of(self, player: int) -> str:
        """Empty: the environment does not play it."""
        script = self._scripts[player - self._first] if player >= self._first else ""
        return "" if script == RANDOM else script
