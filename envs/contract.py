"""What an environment owes its caller: the result of `reset`, flags, and what an info may say.

The check before a run and the adapters that serve the run ask the same functions, so both refuse the same things in the
same words. The adapters take the flags of a single environment as Python does: a look at their type in every step would
cost more than it finds.
"""

from __future__ import annotations

import inspect
import math
import numbers
from typing import Any

import numpy as np

from appo.envs.api import ACTION_MASK, MisfitError, SignatureError
from appo.envs.wrappers import layers

_SHIMMY = 'shimmy.GymV21CompatibilityV0(env=...) translates it: pip install "shimmy[gym-v21]"'
REPORTED = ("true_reward", "episode_extra_stats")  # keys of an info that its caller is told of
_BESIDE_FRAMES = frozenset(("is_active", *REPORTED))
"""Keys of a step's info that are read beside `num_frames`; action masks are read apart."""
_MAX_FRAMES = 2**31 - 1  # what the arrays of a step can hold


def checked_reset(env: Any, seed: Any, options: dict[str, Any] | None = None) -> tuple[Any, dict[Any, Any]]:
    """Reset an environment: (observation, info).

    Raises:
        SignatureError: it takes no seed, or returns something else.
    """
    try:
        result = env.reset(seed=seed) if options is None else env.reset(seed=seed, options=options)
    except TypeError as error:
        if _accepts_seed(env):
            raise
        raise SignatureError(
            "seed",
            "an argument of reset: def reset(self, *, seed=None, options=None)",
            f"not: {error}{translated(env)}",
        ) from None
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        hint = "" if isinstance(result, tuple) else f"; end reset with: return observation, {{}}{translated(env)}"
        raise SignatureError("reset", "(observation, info), the info a dict", outline(result) + hint)
    return result


def translated(env: Any) -> str:
    """What translates an environment of gym, to end an error with; nothing for one that has nothing of gym's."""
    is_of_gym = any(is_from_gym(layer) for layer in layers(env))
    return f"; it is an environment of gym: {_SHIMMY}" if is_of_gym else ""


def space_remedy(space: Any) -> str | None:
    """What to do about a space of gym's; None: it is none."""
    if not is_from_gym(space):
        return None
    return (
        f"a space of gym is none of gymnasium.spaces: import that instead. An environment that is gym's own: {_SHIMMY}"
    )


def is_from_gym(thing: Any) -> bool:
    """Its class, or one below it, is of gym, which came before Gymnasium."""
    return any(kind.__module__.partition(".")[0] == "gym" for kind in type(thing).__mro__)


def read_info(info: Any) -> tuple[int, bool]:
    """What an info says of its step: the frames that it covered, and whether there is a true reward or statistics.

    Raises:
        MisfitError: it breaks the contract; names the key.
    """
    if not isinstance(info, dict):
        raise MisfitError("info", "a dict", describe(info))
    frames = frame_count(info["num_frames"]) if "num_frames" in info else 1
    reports = "true_reward" in info or "episode_extra_stats" in info
    if reports:
        check_report(info)
    return frames, reports


def frames_alone(info: Any) -> int:
    """Frames of a step whose info holds nothing else that is read; 0: `read_info` has to look at it."""
    if type(info) is not dict or not _BESIDE_FRAMES.isdisjoint(info):
        return 0
    frames = info.get("num_frames", 1)
    return frames if type(frames) is int and 0 < frames <= _MAX_FRAMES else 0


def reported(infos: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Of the info of each row, what its caller is told of."""
    return {row: {key: info[key] for key in REPORTED if key in info} for row, info in infos.items()}


def check_report(info: dict[str, Any]) -> None:
    """Refuse a true reward or statistics that no average can take in.

    Raises:
        MisfitError: names the key.
    """
    true_reward = info.get("true_reward", 0.0)
    if not is_number(true_reward) or not math.isfinite(true_reward):
        raise MisfitError("true_reward", "a finite number, in the info", _shown(true_reward))
    extra = info.get("episode_extra_stats", {})
    if not isinstance(extra, dict) or not all(map(is_number, extra.values())):
        raise MisfitError("episode_extra_stats", "a dict of numbers, in the info", describe(extra))


def frame_count(value: Any) -> int:
    """The frames that a step covered.

    Raises:
        MisfitError: it is no whole number, or less than 1.
    """
    if type(value) is int and 0 < value <= _MAX_FRAMES:  # what nearly all of them say, without a further look
        return value
    if not is_number(value) or not float(value).is_integer() or not 0 < value <= _MAX_FRAMES:
        raise MisfitError("num_frames", "a whole number of frames, at least 1, in the info", _shown(value))
    return int(value)


def flag(name: str, value: Any) -> bool:
    """True or False, also when numpy or a number says so.

    Raises:
        MisfitError: it is none.
    """
    if isinstance(value, bool | np.bool_) or (is_number(value) and value in (0, 1)):
        return bool(value)
    raise MisfitError(name, "True or False", describe(value))


def flags(name: str, values: Any) -> np.ndarray:
    """The same for one per environment, [N] bool: numbers would be taken for places in an array.

    Raises:
        MisfitError: some are none.
    """
    array = np.asarray(values)
    if array.dtype.kind == "b":
        return array
    if not np.isin(array, (0, 1)).all():
        raise MisfitError(name, "True or False", describe(values))
    return array.astype(np.bool_)


def fitting_mask(mask: Any, width: int) -> Any:
    """One mask for all discrete actions, also when given as a tuple of one per action.

    Raises:
        MisfitError: it has not one number per choice.
    """
    try:
        flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)
    except ValueError:  # parts of different sizes, or none
        flat = np.empty(())
    if flat.shape != (width,) or flat.dtype.kind not in "buif":
        raise MisfitError(ACTION_MASK, f"one entry for each of {width} choices", describe(mask))
    return flat


def is_number(value: Any) -> bool:
    """A real number, also when numpy has it: a scalar or an array without axes."""
    if isinstance(value, np.ndarray | np.generic):
        return value.shape == () and value.dtype.kind in "buif"
    return isinstance(value, numbers.Real)


def outline(result: Any) -> str:
    """What a call returned, in a few words, for an error."""
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}: {', '.join(type(part).__name__ for part in result)}"
    return describe(result)


def describe(value: Any) -> str:
    """A value in a few words, for an error."""
    if isinstance(value, np.ndarray | np.generic):
        return f"of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _shown(value: Any) -> str:
    return f"{value}" if is_number(value) else describe(value)


def _accepts_seed(env: Any) -> bool:
    """Whether every layer of an environment can be told a seed when it is reset."""
    signatures = [inspect.signature(layer.reset).parameters for layer in layers(env)]
    return all("seed" in names or any(p.kind is p.VAR_KEYWORD for p in names.values()) for names in signatures)
