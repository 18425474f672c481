"""What a checkpoint keeps of the driver, and whether a run can resume from one that was read back.

The driver's statistics write it and take it up. A learner checks it before it goes on from a checkpoint, so that one
with an unusable run state is passed over like a damaged file. It holds plain values::

    env_frames      of this policy, over all runs
    train_seconds   over all runs
    episodes        finished: how many; returns, true_returns, lengths: of the newest; extra: the same by name;
                    reports_true_reward: true_returns are the environment's own

and whatever else a run keeps for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# As many digits as a checkpoint's name has for frames.
MOST_COUNTED = 10**15 - 1
_MOST_SECONDS = 1e11
_ADDED_LATER = ("reports_true_reward",)  # older checkpoints lack these


class Spent(NamedTuple):
    """What earlier starts of an experiment have spent of its budget."""

    env_frames: int = 0
    train_seconds: float = 0.0

    def with_policy(self, state: Mapping[str, Any]) -> Spent:
        """Policies add up in frames; they have trained side by side."""
        seconds = max(self.train_seconds, float(state["train_seconds"]))
        return Spent(self.env_frames + int(state["env_frames"]), seconds)


def why_unusable(state: Any) -> str:
    """Why a run cannot go on from this run state, in words; empty when it can."""
    return _misfit("run_state", state, _RUN_STATE)


def _misfit(where: str, value: Any, fields: Mapping[str, Any]) -> str:
    if not isinstance(value, dict):
        return f"{where} is {_told(value)}"
    for name, expected in fields.items():
        if name not in value and name in _ADDED_LATER:
            continue
        if name not in value:
            return f"{where} holds no {name!r}"
        if isinstance(expected, Mapping):
            if found := _misfit(f"{where}[{name!r}]", value[name], expected):
                return found
        elif not expected(value[name]):
            return f"{where}[{name!r}] is {_told(value[name])}"
    return ""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_COUNTED


def _is_duration(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST_SECONDS


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(entry) is float or (type(entry) is int and abs(entry) <= MOST_COUNTED) for entry in value
    )


def _are_named_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(type(name) is str and _are_numbers(value[name]) for name in value)


_RUN_STATE: dict[str, Callable[[Any], bool] | dict[str, Callable[[Any], bool]]] = {
    "env_frames": _is_count,
    "train_seconds": _is_duration,
    "episodes": {
        "finished": _is_count,
        "returns": _are_numbers,
        "true_returns": _are_numbers,
        "reports_true_reward": lambda value: isinstance(value, bool),
        "lengths": _are_numbers,
        "extra": _are_named_numbers,
    },
}


def _told(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        text = f"a {type(value).__name__} too large to tell"
    return text if len(text) <= 60 else f"{text[:60]}..."
