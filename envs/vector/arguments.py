"""What may be asked of a `VecEnv`: numbers of environments, seeds and times, each refused in one line that names it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SEED = "a seed has to be a whole number of at least 0, a list of one (or None) for each environment, or None"


def checked_env_ids(env_ids: Any, num_envs: int) -> NDArray[np.int64]:
    """[n] numbers of environments.

    Raises:
        ValueError: there is no such environment, or one is named twice.
    """
    given = np.asarray(env_ids)
    if given.dtype.kind not in "iu" or given.ndim != 1 or not len(given) or given.min() < 0 or given.max() >= num_envs:
        hint = "; numpy.flatnonzero gives those of a mask" if given.dtype.kind == "b" else ""
        raise ValueError(f"env_ids should be numbers from 0 to {num_envs - 1}, each once: {env_ids}{hint}")
    envs = given.astype(np.int64, copy=False)
    if len(envs) > 1 and not (envs[1:] > envs[:-1]).all() and len(set(envs.tolist())) < len(envs):
        raise ValueError(f"env_ids names an environment twice: {env_ids}")
    return envs


def checked_seeds(seed: Any, num_envs: int) -> int | list[int | None]:
    """One seed from which those of all environments follow, or one for each of these.

    Raises:
        ValueError: it is neither, or there are more or fewer than environments.
    """
    if _is_whole(seed):
        return _checked_seed(seed)
    if isinstance(seed, str | bytes) or not isinstance(seed, Iterable):
        raise ValueError(f"seed={seed!r}: {_SEED}")
    seeds = list(seed)
    if len(seeds) != num_envs:
        raise ValueError(f"{len(seeds)} seeds for {num_envs} environments")
    return [None if each is None else _checked_seed(each) for each in seeds]


def _checked_seed(seed: Any) -> int:
    if not _is_whole(seed) or seed < 0:
        raise ValueError(f"seed={seed!r}: {_SEED}")
    return int(seed)


def check_min_envs(min_envs: Any) -> None:
    """Refuse a number of environments that `recv` cannot wait for.

    Raises:
        ValueError: it is no whole number of at least 1.
    """
    if not _is_whole(min_envs) or min_envs < 1:
        raise ValueError(f"min_envs={min_envs!r} has to be a whole number of at least 1, or None: batch_size of them")


def check_close_timeout(timeout: Any) -> None:
    """Refuse a time in which `close` cannot end.

    Raises:
        ValueError: it is no number of at least 0.
    """
    if not isinstance(timeout, int | float | np.number) or not timeout >= 0:
        raise ValueError(f"timeout={timeout!r} has to be a time of at least 0, in seconds")


def _is_whole(number: Any) -> bool:
    return isinstance(number, int | np.integer)


def one_for_each(name: str, values: Any, num_envs: int) -> list[Any]:
    """A list has one value for each environment, anything else is for all of them.

    Raises:
        ValueError: the list has another length.
    """
    if not isinstance(values, list):
        return [values] * num_envs
    if len(values) != num_envs:
        raise ValueError(f"{name} has {len(values)} entries for {num_envs} environments")
    return values


def are_same(one: Any, other: Any) -> bool:
    """Two values are one object or equal, arrays in all their elements; those that cannot be compared are not."""
    if one is other:
        return True
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(value, other[key]) for key, value in one.items())
    try:
        if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
            return np.array_equal(one, other)
        return bool(one == other)
    except Exception:  # whatever the user's own comparison raises
        return False
