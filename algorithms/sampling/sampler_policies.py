"""What can choose actions for a `RolloutSampler`. All act for a batch of environments at once.

Letters:  n = environments of a batch,  A = agents of each,  R = n * A agent rows,  W = numbers that store an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appo.envs.action_layout import random_actions
from appo.envs.api import ACTION_MASK, ActionLeaf, EnvSpec
from appo.envs.vector.shared_rows import rows_of_envs
from appo.envs.vector.space_rows import SpaceRows


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
        self._spec, self._rows = spec, num_envs * spec.agents_per_env
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Draw what a new one with this seed would draw."""
        self._rngs = [np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(self._rows)]

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
        """For observations of one name, the function gets their array; else a dict. Of several agents, one row each.

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


def policy_of(given: Any, spec: EnvSpec, num_envs: int, seed: int, space_rows: SpaceRows) -> SamplerPolicy:
    """The policy that is meant: "random", an action, a function of observations, or a `SamplerPolicy` as it is.

    Args:
        given: what a caller of the sampler gave.
        spec: of the environments.
        num_envs: how many there are.
        seed: of random actions.
        space_rows: converts the actions of a function.

    Raises:
        TypeError: it is none of these, or was made for other observations or actions.
        ValueError: it is no action of these environments.
    """
    if isinstance(given, str):
        if given != "random":
            raise TypeError(f"{given!r} is no policy; by name there is 'random'")
        return RandomPolicy(spec, num_envs, seed)
    if isinstance(given, SamplerPolicy):
        known = getattr(given, "spec", None)
        if isinstance(known, EnvSpec) and _layout(known) != _layout(spec):
            raise TypeError(
                f"a policy for observations and actions {_layout(known)} cannot act in these environments, which "
                f"have {_layout(spec)}"
            )
        return given
    if isinstance(given, int | float | np.number | np.ndarray | list | tuple):
        return ConstantPolicy(given, spec.actions)
    if callable(given):
        return CallablePolicy(given, space_rows.stored)
    if isinstance(given, dict):
        raise TypeError("parameters without a policy cannot act: update_policy gives them to one that acts already")
    raise TypeError(f"{given!r} cannot act: 'random', an action, a function of observations, or a loaded policy can")


def policies_of(given: Any, spec: EnvSpec, num_envs: int, seed: int, space_rows: SpaceRows) -> list[SamplerPolicy]:
    """One policy for all environments, or of a list one for each of them; see `policy_of`.

    Raises:
        ValueError: the list has another length.
    """
    if isinstance(given, list) and len(given) != num_envs:
        raise ValueError(f"{len(given)} policies for {num_envs} environments")
    several = given if isinstance(given, list) else [given]
    return [policy_of(each, spec, num_envs, seed + place, space_rows) for place, each in enumerate(several)]


def choose_actions(
    policies: Sequence[SamplerPolicy],
    envs: NDArray[np.int64],
    observations: Mapping[str, NDArray[Any]],
    is_first: NDArray[np.bool_],
    agents: int,
) -> NDArray[np.float32]:
    """[R, W] actions of some environments.

    Args:
        policies: one for all environments, or one for each of them.
        envs: [n] numbers of the environments.
        observations: [n, ...] by name, or [n, A, ...] with several agents.
        is_first: [n] or [n, A] an episode begins.
        agents: of each environment.
    """
    if len(policies) > 1:
        places = [slice(place, place + 1) for place in range(len(envs))]
        decided = [
            choose_actions(
                [policies[env]],
                envs[one],
                {name: array[one] for name, array in observations.items()},
                is_first[one],
                agents,
            )
            for env, one in zip(envs.tolist(), places, strict=True)
        ]
        return np.concatenate(decided)
    if agents > 1:
        observations = {name: array.reshape(-1, *array.shape[2:]) for name, array in observations.items()}
    return policies[0].act_rows(rows_of_envs(envs, agents), observations, is_first.ravel())


def _layout(spec: EnvSpec) -> tuple[Any, ...]:
    """What a network has to fit to."""
    observations = tuple((leaf.name, leaf.shape) for leaf in spec.observations)
    return observations, tuple((leaf.kind, leaf.size) for leaf in spec.actions)
