"""What environments count and measure, put together over steps and environments by a rule that each name carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Aggregate(NamedTuple):
    """All values of one name."""

    how: str
    value: float  # NaN where there was no number; of a histogram the mean
    numbers: int  # of numbers that were put together
    values: NDArray[np.float64]  # of a histogram; else empty


_RULES: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": lambda values: float(values.mean()),
    "last": lambda values: float(values[-1]),
    "sum": lambda values: float(values.sum()),
    "min": lambda values: float(values.min()),
    "max": lambda values: float(values.max()),
    "histogram": lambda values: float(values.mean()),
}
_FORM = f"(value, how), where how is one of {', '.join(_RULES)}"


def checked_statistics(told: Any) -> dict[str, tuple[NDArray[np.float64], str]]:
    """What one environment told, as `put_together` takes it: name -> numbers of any shape, and how.

    Raises:
        TypeError: it has another form.
        ValueError: a rule is unknown, or a value is no number.
    """
    if not isinstance(told, Mapping):
        raise TypeError(f"pop_env_stats gave {told!r}; expected a dict of name -> {_FORM}")
    found = {}
    for name, entry in told.items():
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise TypeError(f"pop_env_stats gave {name!r}: {entry!r}; expected {_FORM}")
        value, how = entry
        if not isinstance(how, str) or how not in _RULES:
            raise ValueError(f"{name!r} is put together by {how!r}; it can be {', '.join(_RULES)}")
        try:
            found[name] = np.asarray(value, np.float64), how
        except (TypeError, ValueError):
            raise ValueError(
                f"pop_env_stats gave {name!r}: {value!r}, which is no number and no list of them"
            ) from None
    return found


def put_together(told: Iterable[Mapping[str, tuple[Any, str]]]) -> dict[str, Aggregate]:
    """Put together what environments told, each as `checked_statistics` gives it, in their order; NaN is left out.

    Raises:
        ValueError: one name has two rules.
    """
    values: dict[str, list[float]] = {}
    rules: dict[str, str] = {}
    for each in told:
        for name, (value, how) in each.items():
            if rules.setdefault(name, how) != how:
                raise ValueError(f"{name!r} is put together by {how!r} and by {rules[name]!r}")
            told_now = np.asarray(value, np.float64).ravel().tolist()
            values.setdefault(name, []).extend(number for number in told_now if not math.isnan(number))
    found = {}
    for name, how in rules.items():
        numbers = np.asarray(values[name], np.float64)
        kept = numbers if how == "histogram" else np.empty(0)
        found[name] = Aggregate(how, _RULES[how](numbers) if len(numbers) else math.nan, len(numbers), kept)
    return found
