"""Between the spaces of environments and the rows that are shared: actions in, observations out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.envs.action_layout import ActionLayout
from appo.envs.api import EnvSpec
from appo.envs.observation_layout import ObservationLayout
from appo.envs.vector.shared_rows import rows_of_envs


class SpaceRows:
    """Converts batches of one kind of environment."""

    def __init__(self, spaces: tuple[Any, Any], spec: EnvSpec) -> None:
        """`spaces`: observation and action space of one agent."""
        self._observations, self._actions = ObservationLayout(spaces[0]), ActionLayout(spaces[1])
        self._agents = spec.agents_per_env

    def write_actions(self, actions: Any, envs: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Store actions of some environments among the rows of all, [E, W].

        Raises:
            ValueError: they have another number, or another shape.
        """
        agents = self._agents
        rows = rows_of_envs(envs, agents)
        given = _flat(actions, agents) if agents > 1 else actions
        number = _length(given)
        if number != len(rows):
            raise ValueError(f"{number} actions for {len(envs)} environments of {agents} agents")
        out[rows] = self.stored(given, len(rows))

    def write_all_actions(self, actions: Any, out: NDArray[np.float32]) -> None:
        """The same for all of them, in their order."""
        given = _flat(actions, self._agents) if self._agents > 1 else actions
        try:
            self._actions.store(given, out)
        except ValueError:  # what is wrong is looked at then only, and too few or too many first
            if (number := _length(given)) != len(out):
                agents = self._agents
                raise ValueError(f"{number} actions for {len(out) // agents} environments of {agents} agents") from None
            raise

    def stored(self, actions: Any, number: int) -> NDArray[np.float32]:
        """[R, W] in policy units of actions of the batched space, one for each of `number` agent rows."""
        stored = np.empty((number, self._actions.width), np.float32)
        self._actions.store(actions, stored)
        return stored

    def restored_actions(self, rows: NDArray[np.float32]) -> Any:
        """Actions [R, W] in policy units as a batch of the action space."""
        return self._actions.batched(rows)

    def restored(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """Observations [n, ...] by name as a batch of the observation space."""
        return self._observations.restored(arrays)


def _flat(actions: Any, agents: int) -> Any:
    """[n, A, ...] -> [n * A, ...], also within tuples and dicts."""
    if isinstance(actions, dict):
        return {name: _flat(value, agents) for name, value in actions.items()}
    if isinstance(actions, tuple):
        return tuple(_flat(value, agents) for value in actions)
    array = np.asarray(actions)
    if array.ndim < 2 or array.shape[1] != agents:
        raise ValueError(f"actions of shape {array.shape}; expected [environments, {agents} agents, ...]")
    return array.reshape(-1, *array.shape[2:])


def _length(actions: Any) -> int:
    parts = tuple(actions.values()) if isinstance(actions, dict) else actions
    if isinstance(parts, tuple) and parts:
        return _length(parts[0])
    try:
        return len(parts)
    except TypeError as error:
        raise ValueError(f"actions are a {type(actions).__name__}; one for each environment is needed") from error
