"""Scenarios played alone whose reward is the scenario's own and, beside it, the weighted sum of `doom_shaping`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from appo.envs.simulators.doom_env import DoomEnv, Observation
from appo.envs.simulators.doom_games import variables
from appo.envs.simulators.doom_shaping import SHAPED_SCENARIOS, Shaping

if TYPE_CHECKING:
    from appo.envs.families.doom import DoomOptions


class ShapedDoomEnv(DoomEnv):
    """One of `SHAPED_SCENARIOS`. See `doom_shaping`."""

    def __init__(self, name: str, options: DoomOptions, render_mode: str | None = None) -> None:
        super().__init__(name, options, render_mode)
        self._shaping = Shaping(SHAPED_SCENARIOS[name])
        self._shaped = variables(self._shaping.variables)
        self._latest = np.zeros(len(self._shaped))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `DoomEnv.reset`."""
        result = super().reset(seed=seed, options=options)
        self._latest = self._read_shaped()
        return result

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """See `DoomEnv.step`."""
        observation, reward, terminated, truncated, info = super().step(action)
        before, self._latest = self._latest, self._read_shaped()
        reward += self._shaping.reward(before, self._latest)
        return observation, reward, terminated, truncated, info

    def _read_shaped(self) -> np.ndarray:
        return np.array([self._game.get_game_variable(variable) for variable in self._shaped])

    def get_reward_shaping(self) -> dict[str, float]:
        """The weights now in force, see `doom_shaping`."""
        return self._shaping.weights

    def set_reward_shaping(self, weights: dict[str, float]) -> None:
        """Take new weights, from the next step on."""
        self._shaping.weights = weights
