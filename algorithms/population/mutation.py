"""Options that a population tunes, and how one is mutated.

Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846, section 4.1.1: perturb
by a factor. That the factor is drawn, and that an option may return to its first value, is Sample Factory's (2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

SCALE, ONE_MINUS = "scale", "one_minus"


class TunedOption(NamedTuple):
    """An option of a population."""

    name: str
    rule: str  # what is scaled: the value, or its distance from 1
    default: float  # what the run began with
    minimum: float
    maximum: float


class Mutation(NamedTuple):
    """How far and how often options are mutated."""

    rate: float  # probability that an option changes
    reset_rate: float  # probability that one that changes returns to its default
    smallest: float  # factor, at least 1
    largest: float


def mutated(
    values: Mapping[str, float], options: Iterable[TunedOption], how: Mutation, rng: np.random.Generator
) -> dict[str, float]:
    """These values with some of them changed; those without an option here stay as they are.

    Args:
        values: by name; an option that has none has its default.
        options: which may change.
        how: how far and how often.
        rng: its numbers are drawn in the order of `options`, whatever changes.
    """
    changed = dict(values)
    for option in options:
        changes, resets, divides = rng.random(3) < (how.rate, how.reset_rate, 0.5)
        factor = rng.uniform(how.smallest, how.largest)
        if changes:
            value = changed.get(option.name, option.default)
            changed[option.name] = (
                option.default if resets else perturbed(value, option, 1 / factor if divides else factor)
            )
    return changed


def perturbed(value: float, option: TunedOption, factor: float) -> float:
    """One value, moved by a factor and kept within its bounds."""
    moved = value * factor if option.rule == SCALE else 1.0 - (1.0 - value) * factor
    return float(min(max(moved, option.minimum), option.maximum))
