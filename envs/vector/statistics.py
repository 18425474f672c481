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


def put_together(told: Iterable[Mapping[str, tuple[Any, str]]]) -> dict[str, Aggregate]:
    """Put together what environments told, in the order in which they did; what is not a number is left out.

    Raises:
        ValueError: a rule is unknown, or one name has two.
    """
    values: dict[str, list[float]] = {}
    rules: dict[str, str] = {}
    for each in told:
        for name, (value, how) in each.items():
            if how not in _RULES:
                raise ValueError(f"{name!r} is put together by {how!r}; it can be {', '.join(_RULES)}")
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
