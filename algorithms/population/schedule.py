"""The file of `--schedule_file`: options over the frames of a policy, as `tools.population --replay` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.population.tuned import learning_values, require_numbers
from appo.utils.options import ConfigError


class ScheduleStep(NamedTuple):
    """Options from some frame on."""

    env_frames: int
    values: dict[str, float]


def read_schedule(path: str, check: Callable[[dict[str, float]], Any]) -> list[ScheduleStep]:
    """Every step, in the order of frames.

    Args:
        path: of the file.
        check: raises ConfigError for values that cannot be in force.

    Raises:
        ConfigError: the file cannot be read, or holds what cannot be in force.
    """
    try:
        told = json.loads(Path(path).expanduser().read_text())
        if not isinstance(told, list) or not told:
            raise ValueError("it holds none")
        steps = [ScheduleStep(_frames(entry["env_frames"]), dict(entry["values"])) for entry in told]
    except OSError as error:
        raise ConfigError(f"schedule_file={path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"schedule_file={path} has to hold a list of objects such as "
            f'{{"env_frames": 0, "values": {{"learning_rate": 1e-4}}}}: {_in_words(error)}'
        ) from error
    for step in steps:
        require_numbers(step.values, f"schedule_file={path}")
        try:
            check(learning_values(step.values))
        except ConfigError as error:
            raise ConfigError(f"schedule_file={path}, env_frames={step.env_frames}: {error}") from error
    return sorted(steps, key=lambda step: step.env_frames)


def values_at(steps: Sequence[ScheduleStep], env_frames: int) -> dict[str, float]:
    """Values of all steps that have begun; of two that set the same option, the later one's."""
    values: dict[str, float] = {}
    for step in steps:
        if step.env_frames <= env_frames:
            values |= step.values
    return values


def _in_words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"an object has no {error.args[0]!r}"
    return str(error)


def _frames(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"env_frames={value!r} is not a number of frames")
    return value
