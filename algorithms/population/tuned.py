"""Which options a population tunes: those whose declaration says how, and the weights of the environment's reward.

Both are values of one member, so that they are copied and mutated together; weights have names that begin with
`reward:`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from appo.algorithms.population.mutation import SCALE, TunedOption
from appo.utils.options import ConfigError, OptionRule

_REWARD = "reward:"
_LARGEST = 1e300  # an int of a JSON file may be larger than any float
ON_REQUEST = "gamma"  # decides what is worth how much, so objectives measured with two of them cannot be compared


class Changing(Protocol):
    """An option that may change while training goes on; what a learner tells of it."""

    @property
    def value(self) -> float:
        """That the run begins with."""

    @property
    def rule(self) -> OptionRule:
        """Bounds, and how it is mutated."""


def tuned_options(options: Mapping[str, Changing], *, with_gamma: bool) -> Iterator[TunedOption]:
    """Those of these, in their order, that are not off (0) and have a limit (no infinity).

    Args:
        options: by name.
        with_gamma: tune the discount as well.
    """
    for name, option in options.items():
        value, rule = option.value, option.rule
        if name == ON_REQUEST and not with_gamma:
            continue
        if math.isfinite(value) and (rule.mutate != SCALE or value != 0.0):
            least = -math.inf if rule.minimum is None else rule.minimum
            most = math.inf if rule.maximum is None else rule.maximum
            assert rule.mutate is not None
            yield TunedOption(name, rule.mutate, value, least, most)


def shaping_options(weights: Iterable[tuple[str, float]]) -> Iterator[TunedOption]:
    """The weights of a reward, by name and first value; one of 0 stays 0, and none changes its sign."""
    for name, value in weights:
        if value != 0.0:
            least, most = (0.0, math.inf) if value > 0.0 else (-math.inf, 0.0)
            yield TunedOption(_REWARD + name, SCALE, value, least, most)


def is_reward_weight(name: str) -> bool:
    """Environments are told this value, not a learner."""
    return name.startswith(_REWARD)


def learning_values(values: Mapping[str, float]) -> dict[str, float]:
    """Those that a learner is told."""
    return {name: value for name, value in values.items() if not is_reward_weight(name)}


def reward_weights(values: Mapping[str, float]) -> dict[str, float]:
    """Those that environments are told, by the names that they have among values."""
    return {name: value for name, value in values.items() if is_reward_weight(name)}


def shaping_values(values: Mapping[str, float]) -> dict[str, float]:
    """The same, by the environment's own names."""
    return {name.removeprefix(_REWARD): value for name, value in reward_weights(values).items()}


def require_numbers(values: Mapping[str, Any], where: str) -> None:
    """Refuse what no option can be set to.

    Raises:
        ConfigError: one is no number, or too large for any option.
    """
    for name, value in values.items():
        if type(value) not in (int, float) or abs(value) > _LARGEST:
            raise ConfigError(f"{where} sets {name}={value!r}; a number is needed")
