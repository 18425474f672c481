"""The messages between a process of environments and its parent, and how a child answers questions about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from appo.envs.api import BatchEnv, EnvSpec, EnvStatistics
from appo.envs.faults import FAILURES
from appo.envs.vector.errors import Failure
from appo.envs.vector.statistics import checked_statistics
from appo.envs.wrappers import find_ability, layers, set_env_params


class Ready(NamedTuple):
    """Child: the environments are built."""

    spec: EnvSpec
    spaces: tuple[Any, Any]  # observation and action space of one agent
    steps_apart: bool  # each environment can be stepped without the others


class Shared(NamedTuple):
    """Parent: how the rows lie in the memory that it has handed over; comes before all its other messages."""

    spec: EnvSpec  # of the first environment: those of the child may have images in another order


class Infos(NamedTuple):
    """Child: what infos say of a step; sent before the step is done."""

    by_row: dict[int, dict[str, Any]]  # row among those of all processes -> info


class Failed(NamedTuple):
    """Child: an environment raised; sent before its step is done."""

    failure: Failure


class Fatal(NamedTuple):
    """Child: it ends, because an environment failed in a way that it does not recover from."""

    failure: Failure


class Counted(NamedTuple):
    """Child: a failure that it recovered from."""

    is_bad_data: bool
    cause: str


class Closed(NamedTuple):
    """Child: every environment is closed."""


class Close(NamedTuple):
    """Parent: close every environment and end."""


class Ask(NamedTuple):
    """Parent: a question, answered in the order of messages and between steps."""

    request: int
    what: str  # see `answer`
    indices: Sequence[int]  # environments, by place among those of the child
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """Child: what came of it."""

    request: int
    results: list[Any]  # one per environment, or a single one of all
    failure: Failure | None


def answer(ask: Ask, batch: BatchEnv, first: int) -> Answer:
    """Ask the environments of a batch, `first` the number of the first.

    `call`, `get_attr` and `set_attr` concern single environments, as `set_env_params` and `pop_stats` do; `batch` calls
    a method of the batch, by name, if there is one.
    """
    if ask.what == "batch":
        name, *arguments = ask.arguments
        try:
            method = getattr(batch, name, None)
            return Answer(ask.request, [None if method is None else method(*arguments)], None)
        except FAILURES as error:
            return Answer(ask.request, [], Failure.of(error, first, name))
    results: list[Any] = []
    if ask.what == "set_env_params" and hasattr(batch, "set_env_params"):
        try:
            for index in ask.indices:
                results.append(batch.set_env_params(index, *ask.arguments))
        except FAILURES as error:
            return Answer(ask.request, [], Failure.of(error, first + ask.indices[0], ask.what))
        return Answer(ask.request, results, None)
    envs = getattr(batch, "envs", None)
    for index in ask.indices:
        try:
            env = batch.env if envs is None else envs[index]  # type: ignore[attr-defined]  # one that is vectorised
            results.append(_ASKED[ask.what](env, *ask.arguments))
        except FAILURES as error:
            return Answer(ask.request, [], Failure.of(error, first + index, ask.what))
    return Answer(ask.request, results, None)


def prepare_reset_of_all(batch: Any, seeds: dict[int, int | None], options: dict[int, dict[str, Any] | None]) -> None:
    """Tell an environment that is vectorised how it is reset next, and forget that.

    Args:
        batch: all environments in one.
        seeds: by environment.
        options: the same; those of the first are those of all.
    """
    if seeds or options:
        batch.prepare_reset([seeds.get(env) for env in range(batch.num_envs)], options.get(0))
        seeds.clear()
        options.clear()


def _owner(env: Any, name: str) -> Any:
    """The outermost layer that has an attribute; where none has it, the environment itself."""
    innermost = env
    for layer in layers(env):
        innermost = layer
        if name in vars(layer) or hasattr(type(layer), name):
            return layer
    return innermost


def _call(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = getattr(_owner(env, name), name)
    return found(*args, **kwargs) if callable(found) else found


def _get_attr(env: Any, name: str) -> Any:
    return getattr(_owner(env, name), name)


def _set_attr(env: Any, name: str, value: Any) -> None:
    setattr(_owner(env, name), name, value)


def _pop_stats(env: Any) -> dict[str, tuple[Any, str]]:
    owner = find_ability(env, EnvStatistics)
    return {} if owner is None else checked_statistics(owner.pop_env_stats())


_ASKED: dict[str, Callable[..., Any]] = {
    "call": _call,
    "get_attr": _get_attr,
    "set_attr": _set_attr,
    "set_env_params": set_env_params,
    "pop_stats": _pop_stats,
}
