"""Declaring an option once: a dataclass field that carries its help, range and mutation rule.

From this one declaration come the flag, its help, the checks, the entry in `config.json` and the reference page.
Nothing here knows which options exist.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Refusal(Exception):
    """What cannot be run. The message says what would work.

    Args:
        message: what is wrong, and what would work.
        when_training: the rest of the sentence, for who trains: what would work as well.
    """

    retryable = False  # another try would end the same way

    def __init__(self, message: str = "", when_training: str = "") -> None:
        super().__init__(message + when_training)
        self.message = message  # for who only reads what was trained


class ConfigError(Refusal, ValueError):
    """What a user typed, or a file holds, that cannot be run."""


MUTATIONS = ("scale", "one_minus")
_ABOUT_AS_NEAR = 0.1  # difference of similarities, which are between 0 and 1


class OptionRule(NamedTuple):
    """What an option's declaration says beyond its name, type and default."""

    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    mutate: str | None = None  # how population-based training perturbs it: None, "scale" or "one_minus"
    aliases: tuple[str, ...] = ()  # further flag names
    may_be_infinite: bool = False


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    mutate: str | None = None,
    aliases: tuple[str, ...] = (),
    may_be_infinite: bool = False,
) -> Any:
    """A dataclass field that is also a command-line option.

    Args:
        default: The value when no layer sets it.
        help: What changes when the value changes.
        minimum: Smallest allowed number, inclusive.
        maximum: Largest allowed number, inclusive.
        choices: The allowed words; empty allows any.
        mutate: How population-based training perturbs the value, one of `MUTATIONS`; None leaves it alone.
        aliases: Further names of the flag.
        may_be_infinite: A float may be infinity, which means "no limit"; the help has to say so.

    Raises:
        ValueError: there is no such mutation.
    """
    if mutate not in (None, *MUTATIONS):
        raise ValueError(f"mutate={mutate!r}; known: {', '.join(MUTATIONS)}")
    rule = OptionRule(help, minimum, maximum, choices, mutate, aliases, may_be_infinite)
    return dataclasses.field(default=default, metadata={"rule": rule})


def options_of(config_type: type) -> Iterator[tuple[dataclasses.Field[Any], OptionRule]]:
    """Every option that a config dataclass declares, in its order."""
    for field in dataclasses.fields(config_type):
        yield field, field.metadata["rule"]


def check_value(name: str, value: Any, rule: OptionRule, layer: str) -> None:
    """Refuse a value outside its declared range.

    Raises:
        ConfigError: `command line sets hidden_size=0; allowed: at least 1`.
    """
    if rule.choices and value not in rule.choices:
        raise ConfigError(f"{layer} sets {name}={value!r}; allowed: {', '.join(rule.choices)}")
    for bound, is_outside in ((rule.minimum, _below), (rule.maximum, _above)):
        if bound is not None and value is not None and is_outside(value, bound):
            raise ConfigError(f"{layer} sets {name}={value}; allowed: {limits(rule)}")


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """At most two known names that may have been meant; the second only if it is about as near."""
    close = difflib.get_close_matches(name, list(known), n=2)
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in close]
    return [each for each, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - _ABOUT_AS_NEAR]


def to_text(value: Any) -> str:
    """A value as a user would type it."""
    if isinstance(value, tuple):
        return ",".join(to_text(entry) for entry in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        short = f"{value:g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
        return short if float(short) == value else str(value)
    return str(value)


def limits(rule: OptionRule) -> str:
    """The allowed values in words; empty when anything goes."""
    if rule.choices:
        return "one of " + ", ".join(rule.choices)
    low = "" if rule.minimum is None else f"at least {to_text(rule.minimum)}"
    high = "" if rule.maximum is None else f"at most {to_text(rule.maximum)}"
    return ", ".join(filter(None, (low, high, "or inf" if rule.may_be_infinite else "")))


def _below(value: float, bound: float) -> bool:
    return not value >= bound  # also true of NaN


def _above(value: float, bound: float) -> bool:
    return not value <= bound
