"""Observation spaces of Gymnasium turned into plain leaves, and observations written to arrays.

An observation is written straight into the row where it will be read: a layout offers *views*, the caller's arrays
with their axes in the environment's own order, so that moving channels first needs no array in between. The copy itself
takes up to ten times as long where the two sides have other orders in memory, see `ObservationLayout.channels_last`.

Letters:  E = agent rows,  C, H, W of an image = channels, height, width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from appo.envs.api import ACTION_MASK, MisfitError, ObservationLeaf, UnsupportedSpaceError
from appo.envs.contract import describe, space_remedy

# Dtypes that are stored as another one: their precision is not needed, or tensor libraries do not know them.
_STORED_AS = MappingProxyType(
    {
        "float64": "float32",
        "float128": "float32",
        "bool": "uint8",
        "uint16": "int32",
        "uint32": "int64",
        "uint64": "int64",
    }
)


class ObservationPart(NamedTuple):
    """One leaf of an observation and how its value is found and laid out."""

    leaf: ObservationLeaf
    path: tuple[str, ...]  # keys from the observation down to the value
    native_shape: tuple[int, ...]  # of the value as the environment gives it
    dtype: np.dtype[Any]  # that the space declares
    channels_last: bool = False
    offset: Any = None  # what a categorical value counts from; None: zero
    space_dtype: np.dtype[Any] | None = None  # of the values that the space contains


class ObservationLayout:
    """How observations of one space are stored. `write` takes one row or, with a slice, a batch of them."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.parts = tuple(part._replace(space_dtype=_space_at(space, part.path).dtype) for part in _parts(space, ()))
        self.leaves = tuple(part.leaf for part in self.parts)
        names = [leaf.name for leaf in self.leaves]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise UnsupportedSpaceError(f"two observations are both named {sorted(repeated)}; rename a key of {space}")
        first = self.parts[0]
        is_array = bool(first.native_shape) and first.offset is None
        self.is_plain = len(self.parts) == 1 and len(first.path) < 2 and is_array
        """The observation is one array, alone or under the only key of a dict: if it fits, `views[0][row] = array` does
        all that `write` would. A single number is none: it comes as a Python number, a scalar or an array, and `write`
        knows them apart."""
        self.plain_key = first.path[0] if first.path else None
        """None: the observation is the array itself."""
        self.plain_shape = first.native_shape
        self.known_types: list[Any] = [None] * len(self.parts)
        """The dtype last seen of each part, of single numbers their type: such values are known to be castable."""
        self._plan = [(part.path, part.native_shape, part.offset) for part in self.parts]

    def channels_last(self, *, everywhere: bool = False) -> tuple[str, ...]:
        """Images that are interleaved in memory, as their space says, or all of them; none that are stacked."""
        single = [part for part in self.parts if part.leaf.kind == "image" and len(part.native_shape) == 3]
        return tuple(part.leaf.name for part in single if part.channels_last or everywhere)

    def views(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The arrays [E, ...] by leaf, as views shaped like the environment's own values."""
        return [_native_view(arrays[part.leaf.name], part) for part in self.parts]

    def write(self, views: list[np.ndarray], rows: int | slice, observation: Any) -> None:
        """Store an observation in row `rows` of the views, or a batch of observations in the slice of all rows.

        Raises:
            MisfitError: a key is missing, or a value is not of the declared shape, or cannot be cast to the dtype.
        """
        batch = (len(views[0]),) if isinstance(rows, slice) else ()
        known = self.known_types
        for number, (path, shape, offset) in enumerate(self._plan):
            value = observation
            for key in path:
                value = _below(value, key, self.parts[number])
            # Assigning would stretch a value that is too small, and cast one of any dtype, without a word.
            if type(value) is np.ndarray:
                fits = value.dtype is known[number] and value.shape == (batch + shape if batch else shape)
            else:  # of one number it is enough to know the type
                fits = type(value) is known[number] and not batch
            if not fits:
                array = _fitting(value, self.parts[number], batch)
                if isinstance(value, int | float | np.generic):
                    known[number] = type(value)
                else:
                    value, known[number] = array, array.dtype  # converted once: some objects do it anew each time
            try:
                views[number][rows] = value if offset is None else value - offset
            except OverflowError:  # Python's whole numbers have no bounds
                name, dtype = self.parts[number].leaf.name, views[number].dtype
                raise MisfitError(name, f"a number that {dtype} can hold", describe(value)) from None

    def write_plain(self, views: list[np.ndarray], row: int, observation: Any) -> None:
        """`write` where `is_plain`; of an array like those before with as little ado as possible.

        Raises:
            MisfitError: see `write`.
        """
        value = observation
        if self.plain_key is not None:
            value = observation.get(self.plain_key) if type(observation) is dict else None
        if type(value) is np.ndarray and value.dtype is self.known_types[0] and value.shape == self.plain_shape:
            views[0][row] = value
        else:
            self.write(views, row, observation)

    def batch_size(self, observation: Any) -> int | None:
        """How many observations these are; None: one, without the axis of a batch. `write` says whether they fit.

        Raises:
            MisfitError: the first key is missing, or has no shape.
        """
        part, value = self.parts[0], observation
        for key in part.path:
            value = _below(value, key, part)
        shape = _as_array(value, part).shape
        return shape[0] if len(shape) == len(part.native_shape) + 1 else None

    def restored(self, arrays: dict[str, np.ndarray]) -> Any:
        """The arrays [E, ...] by leaf as one batch of the space: nested, with its dtypes and its own axes."""
        nested: dict[Any, Any] = {}
        for view, part in zip(self.views(arrays), self.parts, strict=True):
            value = view if part.offset is None else view + part.offset
            value = value if value.dtype == part.space_dtype else value.astype(part.space_dtype)
            if not part.path:
                return value
            place = nested
            for key in part.path[:-1]:
                place = place.setdefault(key, {})
            place[part.path[-1]] = value
        return nested

    def check_range(self, observation: Any) -> None:
        """Refuse numbers that are not finite, and categories that do not exist; the observation fits otherwise.

        Raises:
            MisfitError: names the key.
        """
        for part in self.parts:
            value = observation
            for key in part.path:
                value = value[key]
            array = np.asarray(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise MisfitError(part.leaf.name, "finite", str(array[~np.isfinite(array)].flat[0]))
            index = array if part.offset is None else array - part.offset
            if part.leaf.kind == "categorical" and ((index < 0) | (index >= part.leaf.num_categories)).any():
                raise MisfitError(part.leaf.name, f"one of {part.leaf.num_categories} categories", f"{value}")


def _below(value: Any, key: str, part: ObservationPart) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        raise MisfitError(part.leaf.name, "in every observation", _describe_missing(value)) from None


def _as_array(value: Any, part: ObservationPart) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise MisfitError(part.leaf.name, "an array", "a sequence of parts of different sizes") from None


def _fitting(value: Any, part: ObservationPart, batch: tuple[int, ...]) -> np.ndarray:
    """The value as an array, which has the declared shape and can be cast to the declared dtype."""
    array = _as_array(value, part)
    shape = batch + part.native_shape
    if array.shape != shape:
        raise MisfitError(part.leaf.name, f"of shape {shape}, as its space says", describe(value))
    if not np.can_cast(array.dtype, part.dtype, "same_kind"):
        raise MisfitError(
            part.leaf.name, f"{part.dtype}, as its space says, or a dtype that casts to it", f"{array.dtype}"
        )
    return array


def _describe_missing(value: Any) -> str:
    return f"missing: it has {sorted(map(str, value))}" if isinstance(value, dict) else f"missing in {describe(value)}"


def _parts(space: spaces.Space[Any], path: tuple[str, ...]) -> Iterator[ObservationPart]:
    if isinstance(space, spaces.Dict):
        if not space.spaces:
            raise UnsupportedSpaceError(f"the observation {_where(path)} is an empty Dict; give it at least one key")
        for key, sub_space in space.spaces.items():
            yield from _parts(sub_space, (*path, key))
        return
    if 0 in (space.shape or ()):
        raise UnsupportedSpaceError(f"the observation {_where(path)} has no entries: {space}; leave its key out")
    name = "/".join(map(str, path)) or "obs"
    if name == ACTION_MASK:
        yield _mask_part(space, path)
    elif isinstance(space, spaces.Box):
        yield _box_part(space, name, path)
    elif isinstance(space, spaces.Discrete):
        leaf = ObservationLeaf(name, (1,), "int32", "categorical", int(space.n))
        yield ObservationPart(leaf, path, (), np.dtype(np.int64), offset=int(space.start) or None)
    elif isinstance(space, spaces.MultiDiscrete):
        leaf = ObservationLeaf(name, space.shape, "int32", "categorical", int(space.nvec.max()))
        offset = space.start if np.any(space.start) else None
        yield ObservationPart(leaf, path, space.shape, np.dtype(np.int64), offset=offset)
    elif isinstance(space, spaces.MultiBinary):
        yield ObservationPart(
            ObservationLeaf(name, space.shape, "int8", "vector"), path, space.shape, np.dtype(np.int64)
        )
    else:
        raise UnsupportedSpaceError(f"the observation {_where(path)} is {space}; {_observation_remedy(space, path)}")


def _mask_part(space: spaces.Space[Any], path: tuple[str, ...]) -> ObservationPart:
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise UnsupportedSpaceError(
            f"the observation {ACTION_MASK!r} is {space}; make it a MultiBinary with one entry per choice of every "
            f"discrete action, one action after the other"
        )
    size = math.prod(space.shape)
    # A mask is zeros and ones, in whatever dtype.
    return ObservationPart(
        ObservationLeaf(ACTION_MASK, (size,), "uint8", "mask"), path, space.shape, np.dtype(np.float64)
    )


def has_channels_last(shape: Sequence[int]) -> bool:
    """Whether an image with three axes, the last ones of `shape`, has its channels behind height and width.

    They are the shorter of the two outer axes; Gymnasium puts them last.
    """
    return shape[-1] <= shape[-3]


def _box_part(space: spaces.Box, name: str, path: tuple[str, ...]) -> ObservationPart:
    shape, dtype = space.shape, space.dtype.name
    stored = _STORED_AS.get(dtype, dtype)
    if dtype != "uint8" or not 2 <= len(shape) <= 4:
        return ObservationPart(ObservationLeaf(name, shape or (1,), stored, "vector"), path, shape, space.dtype)
    if len(shape) == 2:
        return ObservationPart(ObservationLeaf(name, (1, *shape), stored, "image"), path, shape, space.dtype)
    channels_last = has_channels_last(shape)
    height, width, channels = shape[-3:] if channels_last else (shape[-2], shape[-1], shape[-3])
    frames = shape[0] if len(shape) == 4 else 1  # stacked images: each brings its channels
    leaf = ObservationLeaf(name, (frames * channels, height, width), stored, "image")
    return ObservationPart(leaf, path, shape, space.dtype, channels_last)


def _space_at(space: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        space = space[key]
    return space


def _native_view(array: np.ndarray, part: ObservationPart) -> np.ndarray:
    shape = part.native_shape
    if not part.channels_last:
        return array.reshape(array.shape[0], *shape)
    *frames, height, width, channels = shape
    return np.moveaxis(array.reshape(array.shape[0], *frames, channels, height, width), -3, -1)


def _where(path: tuple[str, ...]) -> str:
    return repr("/".join(map(str, path))) if path else "space"


def _observation_remedy(space: spaces.Space[Any], path: tuple[str, ...]) -> str:
    if remedy := space_remedy(space):
        return remedy
    if isinstance(space, spaces.Text) and path:
        return "text is not learned from: drop it with gymnasium.wrappers.FilterObservation(env, [the other keys])"
    if isinstance(space, spaces.Text):
        return "turn the text into numbers with gymnasium.wrappers.TransformObservation"
    if isinstance(space, spaces.Tuple):
        return "name its parts: turn it into a Dict with gymnasium.wrappers.TransformObservation"
    return (
        "it can be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of those: convert it with "
        "gymnasium.wrappers.TransformObservation"
    )
