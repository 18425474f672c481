"""What can choose actions for a `RolloutSampler`. All act for a batch of environments at once.

Letters:  n = environments of a batch,  A = agents of each,  R = n * A agent rows,  W = numbers that store an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import ACTION_MASK, ActionLeaf, EnvSpec
from appo.envs.spaces import random_actions


@runtime_checkable
class SamplerPolicy(Protocol):
    """Chooses actions in policy units, [R, W], see `appo.envs.api.BatchEnv.step`."""

    def act_rows(
        self, rows: NDArray[np.int64], observations: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Decide.

        Args:
            rows: [R] numbers of the agent rows among those of all environments.
            observations: [R, ...] by name.
            is_first: [R] an episode begins.
        """


class RandomPolicy:
    """Draws actions evenly, of those that a mask allows; an environment's do not depend on when it is asked."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int) -> None:
        """For all rows of some environments."""
        self._spec = spec
        rows = num_envs * spec.agents_per_env
        self._rngs = [np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(rows)]

    def act_rows(
        self, rows: NDArray[np.int64], observations: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """See `SamplerPolicy`."""
        del is_first
        mask = observations.get(ACTION_MASK)
        chosen = [
            random_actions(self._spec.actions, self._rngs[row], 1, None if mask is None else mask[place : place + 1])
            for place, row in enumerate(rows.tolist())
        ]
        return np.concatenate(chosen)


class ConstantPolicy:
    """Always takes the same action."""

    def __init__(self, action: Any, leaves: tuple[ActionLeaf, ...]) -> None:
        """Check the action.

        Args:
            action: [W] numbers in policy units; a single number where W is 1.
            leaves: the action space.

        Raises:
            ValueError: it is no action of this space.
        """
        self._action = np.atleast_1d(np.asarray(action, np.float32))
        sizes = [size for leaf in leaves for size in ([leaf.size] if leaf.kind == "discrete" else [0] * leaf.size)]
        if self._action.shape != (len(sizes),):
            raise ValueError(f"the action {action!r} has {self._action.size} numbers instead of {len(sizes)}")
        for number, size in zip(self._action.tolist(), sizes, strict=True):
            if not (math.isfinite(number) if not size else number in range(size)):
                wanted = f"a whole number from 0 to {size - 1}" if size else "a finite number"
                raise ValueError(f"the action {action!r} holds {number:g}; {wanted} is needed")

    def act_rows(
        self, rows: NDArray[np.int64], observations: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """See `SamplerPolicy`."""
        del observations, is_first
        return np.tile(self._action, (len(rows), 1))


class CallablePolicy:
    """A function of batched observations that gives actions of the batched action space."""

    def __init__(self, function: Callable[[Any], Any], store: Callable[[Any, int], NDArray[np.float32]]) -> None:
        """For observations of one name, the function gets their array; else a dict.

        Args:
            function: observations -> actions.
            store: (actions of the space, their number) -> [R, W] in policy units.
        """
        self._function, self._store = function, store

    def act_rows(
        self, rows: NDArray[np.int64], observations: Mapping[str, NDArray[Any]], is_first: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """See `SamplerPolicy`."""
        del is_first
        given = observations["obs"] if list(observations) == ["obs"] else dict(observations)
        return self._store(self._function(given), len(rows))
