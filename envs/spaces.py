"""Spaces of Gymnasium turned into plain leaves, and values carried over in both directions.

An observation is written straight into the row where it will be read: a layout offers *views*, the caller's arrays
with their axes in the environment's own order, so that moving channels first needs no array in between. The copy itself
takes up to ten times as long where the two sides have other orders in memory, see `ObservationLayout.channels_last`.
Actions come as numbers, [E, W], and are converted for all rows at once.

Letters:  E = agent rows,  W = numbers that store one action,  C, H, W of an image = channels, height, width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from appo.envs.api import ACTION_MASK, ActionLeaf, MisfitError, ObservationLeaf, UnsupportedSpaceError

# A bound beyond this means "unbounded": no policy is meant to be scaled that far.
UNBOUNDED = 1e10

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


def describe(value: Any) -> str:
    """A value in a few words, for an error."""
    if isinstance(value, np.ndarray | np.generic):
        return f"of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


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
    size = _entries(space.shape)
    # A mask is zeros and ones, in whatever dtype.
    return ObservationPart(
        ObservationLeaf(ACTION_MASK, (size,), "uint8", "mask"), path, space.shape, np.dtype(np.float64)
    )


def _box_part(space: spaces.Box, name: str, path: tuple[str, ...]) -> ObservationPart:
    shape, dtype = space.shape, space.dtype.name
    stored = _STORED_AS.get(dtype, dtype)
    if dtype != "uint8" or not 2 <= len(shape) <= 4:
        return ObservationPart(ObservationLeaf(name, shape or (1,), stored, "vector"), path, shape, space.dtype)
    if len(shape) == 2:
        return ObservationPart(ObservationLeaf(name, (1, *shape), stored, "image"), path, shape, space.dtype)
    # The channels are the shorter of the two outer axes of an image; Gymnasium puts them last.
    channels_last = shape[-1] <= shape[-3]
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


def _entries(shape: Sequence[int]) -> int:
    return math.prod(shape)


def _where(path: tuple[str, ...]) -> str:
    return repr("/".join(map(str, path))) if path else "space"


def _observation_remedy(space: spaces.Space[Any], path: tuple[str, ...]) -> str:
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


# Of so many numbers, Python finds the largest sooner than numpy does.
_FEW = 32
# By bytes of an integer.
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


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
        sizes = space.nvec.ravel() if isinstance(space, spaces.MultiDiscrete) else [2] * _entries(space.shape)
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


def _width(leaves: tuple[ActionLeaf, ...]) -> int:
    return sum(1 if leaf.kind == "discrete" else leaf.size for leaf in leaves)


def _action_part(space: spaces.Space[Any], column: int) -> Any:
    if isinstance(space, spaces.Discrete):
        return _DiscretePart(space, column)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary) and _entries(space.shape):
        return _EntriesPart(space, column)
    if isinstance(space, spaces.Box) and _entries(space.shape) and np.issubdtype(space.dtype, np.floating):
        return _ContinuousPart(space, column)
    if isinstance(space, spaces.Tuple | spaces.Dict) and len(space.spaces):
        sub_spaces = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        parts: list[Any] = []
        for sub_space in sub_spaces:
            parts.append(_action_part(sub_space, column))
            column += _width(parts[-1].leaves)
        return _DictPart(list(space.spaces), parts) if isinstance(space, spaces.Dict) else _TuplePart(parts)
    if isinstance(space, spaces.Box) and _entries(space.shape):
        remedy = "whole numbers are a choice: offer them as MultiDiscrete, with gymnasium.wrappers.TransformAction"
    else:
        remedy = (
            "it can be Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Tuple or Dict of those: convert it "
            "with gymnasium.wrappers.TransformAction"
        )
    raise UnsupportedSpaceError(f"the action space is or holds {space}; {remedy}")


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
