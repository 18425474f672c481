"""Action spaces of Gymnasium turned into plain leaves, and actions carried over in both directions.

Actions come as numbers, [E, W], and are converted for all rows at once.

Letters:  E = agent rows,  W = numbers that store one action.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from appo.envs.api import ACTION_MASK, ActionLeaf, ObservationLeaf, UnsupportedSpaceError
from appo.envs.contract import space_remedy

# A bound beyond this means "unbounded": no policy is meant to be scaled that far.
UNBOUNDED = 1e10
# Of so many numbers, Python finds the largest sooner than numpy does.
_FEW = 32
# By bytes of an integer.
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class ActionLayout:
    """How actions of one space are numbered, and turned back into what `env.step` expects."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._root = _action_part(space, 0)
        self.leaves: tuple[ActionLeaf, ...] = self._root.leaves
        self.width = _width(self.leaves)

    def rows(self, actions: np.ndarray) -> Iterable[Any]:
        """[E, W] -> one action per row, as a single environment takes it."""
        rows: Iterable[Any] = self._root.rows(actions)
        return rows

    def batched(self, actions: np.ndarray) -> Any:
        """[E, W] -> all actions in one value of the batched space, as a vectorised environment takes them."""
        return self._root.batched(actions)

    def store(self, actions: Any, out: np.ndarray) -> None:
        """The opposite of `batched`: write actions of the batched space into [E, W]; beyond their bounds they are
        clipped when they are used.

        Raises:
            ValueError: they are not so many, of another kind, or no choice of the space.
        """
        self._root.store(actions, out)


def random_actions(
    leaves: tuple[ActionLeaf, ...], rng: np.random.Generator, num_rows: int, mask: np.ndarray | None = None
) -> np.ndarray:
    """Actions [num_rows, W] drawn evenly: among the allowed choices, and over [-1, 1] in policy units.

    Args:
        leaves: the action space.
        rng: where the numbers come from.
        num_rows: how many actions.
        mask: [num_rows, M] 0 where a choice is forbidden; a leaf whose choices are all forbidden counts as all allowed.
    """
    columns: list[np.ndarray] = []
    choice = 0
    for leaf in leaves:
        if leaf.kind == "continuous":
            columns.append(rng.uniform(-1.0, 1.0, (num_rows, leaf.size)))
            continue
        scores = rng.random((num_rows, leaf.size))
        if mask is not None:
            scores += mask[:, choice : choice + leaf.size] != 0
        columns.append(scores.argmax(axis=1)[:, None])
        choice += leaf.size
    return np.concatenate(columns, axis=1).astype(np.float32)


def mask_width(leaves: tuple[ActionLeaf, ...]) -> int:
    """Entries of an action mask: the choices of every discrete leaf, one after the other; 0 when there are none."""
    return sum(leaf.size for leaf in leaves if leaf.kind == "discrete")


def check_mask(observations: tuple[ObservationLeaf, ...], actions: tuple[ActionLeaf, ...]) -> None:
    """Refuse an action mask that does not fit the action space.

    Raises:
        UnsupportedSpaceError: it has too many or too few entries.
    """
    for leaf in observations:
        if leaf.kind == "mask" and leaf.shape != (mask_width(actions),):
            raise UnsupportedSpaceError(
                f"{ACTION_MASK} has {leaf.shape[0]} entries and the action space {mask_width(actions)} discrete "
                f"choices; give one entry per choice of every discrete action, one action after the other"
            )


def _checked(actions: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A batch of actions as an array.

    Raises:
        ValueError: it has another shape, or holds no numbers.
    """
    given = np.asarray(actions)
    if given.shape != shape or given.dtype.kind not in "biuf":
        kind = given.dtype.name if given.dtype != object else type(actions).__name__
        what = f"shape {given.shape} and type {kind}" if given.ndim else f"type {kind}"
        raise ValueError(f"actions have {what}; expected numbers of shape {shape}")
    return given


def _whole(given: np.ndarray) -> np.ndarray:
    """Whole numbers, also where they are stored as others.

    Raises:
        ValueError: some are none.
    """
    if given.dtype.kind == "f" and not (given == np.rint(given)).all():
        raise ValueError(f"actions {_shortened(given)} are not all whole numbers")
    return given.astype(np.int64)


def _outside(given: np.ndarray, least: int, most: int) -> str:
    return f"actions {_shortened(given)} are not all from {least} to {most}"


def _shortened(given: np.ndarray) -> str:
    return np.array2string(given, threshold=8, separator=", ").replace("\n", "")


class _DiscretePart:
    """One column that holds an index -> int64."""

    def __init__(self, space: spaces.Discrete, column: int) -> None:
        self._column, self._start, self._size = column, int(space.start), int(space.n)
        self.leaves = (ActionLeaf("discrete", int(space.n)),)

    def batched(self, actions: np.ndarray) -> np.ndarray:
        index = actions[:, self._column].astype(np.int64)
        return index + self._start if self._start else index

    rows = batched

    def store(self, actions: Any, out: np.ndarray) -> None:
        given = _checked(actions, (len(out),))
        index = given if not self._start and given.dtype.kind in "iu" else _whole(given) - self._start
        if len(index) <= _FEW:
            choices = index.tolist()
            fits = min(choices) >= 0 and max(choices) < self._size
        else:  # below 0 is huge without a sign: one comparison instead of two
            fits = index.view(_UNSIGNED[index.itemsize]).max() < self._size
        if not fits:
            raise ValueError(_outside(given, self._start, self._start + self._size - 1))
        out[:, self._column] = index


class _EntriesPart:
    """Several columns of indices -> an integer array, for MultiDiscrete and MultiBinary."""

    def __init__(self, space: spaces.MultiDiscrete | spaces.MultiBinary, column: int) -> None:
        self._space, self._shape = space, space.shape
        sizes = space.nvec.ravel() if isinstance(space, spaces.MultiDiscrete) else [2] * math.prod(space.shape)
        self._start = getattr(space, "start", None)
        self._columns, self._sizes = slice(column, column + len(sizes)), np.asarray(sizes)
        self.leaves = tuple(ActionLeaf("discrete", int(size)) for size in sizes)

    def batched(self, actions: np.ndarray) -> np.ndarray:
        indices = actions[:, self._columns].astype(self._space.dtype).reshape(-1, *self._shape)
        return indices if self._start is None else indices + self._start

    rows = batched

    def store(self, actions: Any, out: np.ndarray) -> None:
        given = _checked(actions, (len(out), *self._shape))
        indices = (_whole(given) - (0 if self._start is None else self._start)).reshape(len(out), -1)
        if ((indices < 0) | (indices >= self._sizes)).any():
            raise ValueError(f"actions {_shortened(given)} are not all of {self._space}")
        out[:, self._columns] = indices


class _ContinuousPart:
    """Columns in policy units -> numbers within the bounds of a Box."""

    def __init__(self, space: spaces.Box, column: int) -> None:
        low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
        low, high = np.where(low < -UNBOUNDED, -np.inf, low), np.where(high > UNBOUNDED, np.inf, high)
        is_bounded = np.isfinite(low) & np.isfinite(high)
        self._clip_low, self._clip_high = np.where(is_bounded, -1.0, low), np.where(is_bounded, 1.0, high)
        with np.errstate(invalid="ignore"):  # inf - inf, in entries that are not stretched
            self._scale = np.where(is_bounded, (high - low) / 2, 1.0)
            self._centre = np.where(is_bounded, (high + low) / 2, 0.0)
        self._divisor = np.where(self._scale == 0.0, 1.0, self._scale)  # an entry with a single value is stored as 0
        self._space, self._columns = space, slice(column, column + low.size)
        self.leaves = (ActionLeaf("continuous", low.size, tuple(low.tolist()), tuple(high.tolist())),)
        self._is_in_policy_units = bool(is_bounded.all() and (high == 1.0).all() and (low == -1.0).all())

    def batched(self, actions: np.ndarray) -> np.ndarray:
        if self._is_in_policy_units:
            clipped = np.maximum(actions[:, self._columns], -1.0)  # both together take a third of `np.clip`
            clipped = np.minimum(clipped, 1.0, out=clipped)
            return clipped.astype(self._space.dtype, copy=False).reshape(-1, *self._space.shape)
        numbers = np.clip(actions[:, self._columns], self._clip_low, self._clip_high) * self._scale + self._centre
        numbers = numbers.astype(self._space.dtype).reshape(-1, *self._space.shape)
        return np.clip(numbers, self._space.low, self._space.high, out=numbers)  # rounding may have left the bounds

    rows = batched

    def store(self, actions: Any, out: np.ndarray) -> None:
        given = _checked(actions, (len(out), *self._space.shape))
        rows = given.reshape(len(out), -1)
        # A sum of squares is no number only if one of them is none.
        if given.dtype.kind == "f" and (squares := np.vdot(given, given)) != squares:
            raise ValueError(f"actions {_shortened(given)} hold NaN")
        out[:, self._columns] = rows if self._is_in_policy_units else (rows - self._centre) / self._divisor


class _TuplePart:
    """Parts side by side -> a tuple of them."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self.leaves = tuple(leaf for part in parts for leaf in part.leaves)

    def batched(self, actions: np.ndarray) -> tuple[Any, ...]:
        return tuple(part.batched(actions) for part in self._parts)

    def rows(self, actions: np.ndarray) -> Iterable[tuple[Any, ...]]:
        return zip(*(part.rows(actions) for part in self._parts), strict=True)

    def store(self, actions: Any, out: np.ndarray) -> None:
        if not isinstance(actions, tuple) or len(actions) != len(self._parts):
            raise ValueError(f"actions are a {type(actions).__name__}; expected a tuple of {len(self._parts)} batches")
        for part, given in zip(self._parts, actions, strict=True):
            part.store(given, out)


class _DictPart:
    """Parts side by side -> a dict of them."""

    def __init__(self, keys: list[str], parts: list[Any]) -> None:
        self._keys, self._tuple = keys, _TuplePart(parts)
        self.leaves = self._tuple.leaves

    def batched(self, actions: np.ndarray) -> dict[str, Any]:
        return dict(zip(self._keys, self._tuple.batched(actions), strict=True))

    def rows(self, actions: np.ndarray) -> Iterable[dict[str, Any]]:
        return [dict(zip(self._keys, row, strict=True)) for row in self._tuple.rows(actions)]

    def store(self, actions: Any, out: np.ndarray) -> None:
        if not isinstance(actions, dict) or actions.keys() != set(self._keys):
            raise ValueError(f"actions are a {type(actions).__name__}; expected a dict with {', '.join(self._keys)}")
        self._tuple.store(tuple(actions[key] for key in self._keys), out)


def _width(leaves: tuple[ActionLeaf, ...]) -> int:
    return sum(1 if leaf.kind == "discrete" else leaf.size for leaf in leaves)


def _action_part(space: spaces.Space[Any], column: int) -> Any:
    if isinstance(space, spaces.Discrete):
        return _DiscretePart(space, column)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and 0 not in space.shape:
        return _EntriesPart(space, column)
    if isinstance(space, spaces.Box) and 0 not in space.shape and np.issubdtype(space.dtype, np.floating):
        return _ContinuousPart(space, column)
    if isinstance(space, spaces.Tuple | spaces.Dict) and len(space.spaces):
        sub_spaces = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        parts: list[Any] = []
        for sub_space in sub_spaces:
            parts.append(_action_part(sub_space, column))
            column += _width(parts[-1].leaves)
        return _DictPart(list(space.spaces), parts) if isinstance(space, spaces.Dict) else _TuplePart(parts)
    if isinstance(space, spaces.Box) and 0 not in space.shape:
        remedy = "whole numbers are a choice: offer them as MultiDiscrete, with gymnasium.wrappers.TransformAction"
    else:
        remedy = space_remedy(space) or (
            "it can be Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Tuple or Dict of those: convert it "
            "with gymnasium.wrappers.TransformAction"
        )
    raise UnsupportedSpaceError(f"the action space is or holds {space}; {remedy}")
