"""What the functions and classes that build environments are called with, and the options that they declare."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from appo.envs.api import EnvContext
from appo.utils.options import ConfigError

_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_OPTIONS = "options"  # the parameter that receives what a factory's `config` declares


def declared_config(factory: Any, name: str) -> type | None:
    """The options that a factory adds to the command line: its attribute `config`, a dataclass as of `EnvFamily`.

    None: it has none, or one that is something else, as an attribute of that name may be.

    Raises:
        ConfigError: some of its fields are no options, or the factory cannot be told them.
    """
    config = getattr(factory, "config", None)
    if not isinstance(config, type) or not dataclasses.is_dataclass(config):
        return None
    strangers = [field.name for field in dataclasses.fields(config) if "rule" not in field.metadata]
    if len(strangers) == len(dataclasses.fields(config)):
        return None
    if strangers:
        raise ConfigError(
            f"--env={name}: {config.__name__}.{strangers[0]} is no option; declare it as {strangers[0]}: <type> = "
            "option(<default>, <help>), from appo.utils.options"
        )
    if _OPTIONS not in inspect.signature(factory).parameters:
        raise ConfigError(
            f"--env={name} declares options and has no parameter to receive them; add one that is called {_OPTIONS}: "
            f"an instance of {config.__name__}"
        )
    return config


def call_factory(factory: Callable[..., Any], context: EnvContext, name: str, options: Any = None) -> Any:
    """Call a factory with those of these that it has parameters for, by their names.

    Every field of `EnvContext` but `env_kwargs`; `env_config`, a dict of these fields; `context`, the `EnvContext`
    itself; `options`, where its `config` declares some. What --env_kwargs names is given besides. `**kwargs` names
    nothing, and is usually handed on to a constructor: it gets --env_kwargs, and how to render, when it is watched.

    Args:
        factory: the function or class.
        context: which environment of the run it is.
        name: of the environment, for errors.
        options: an instance of the factory's `config`; None: its defaults.

    Raises:
        ConfigError: it requires something else.
    """
    fields, kwargs = context._asdict(), dict(context.env_kwargs or {})
    del fields["env_kwargs"]
    offered = {**fields, "env_config": fields, "context": context}
    if (config := declared_config(factory, name)) is not None:
        offered[_OPTIONS] = config() if options is None else options
        if _OPTIONS in kwargs:
            raise ConfigError(f"env_kwargs: {_OPTIONS} of --env={name} are typed one by one, see --help --env={name}")
    parameters = inspect.signature(factory).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind not in _UNNAMED]
    required = [parameter.name for parameter in named if parameter.default is parameter.empty]
    unknown = [parameter for parameter in required if parameter not in {**offered, **kwargs}]
    if unknown:
        raise ConfigError(
            f"the factory of --env={name} requires {', '.join(unknown)}; it can ask for {', '.join(offered)}; "
            f"parameters of its own are given by --env_kwargs.{unknown[0]}=..."
        )
    given = {parameter.name: offered[parameter.name] for parameter in named if parameter.name in offered}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        given |= render_arguments(context)
    elif strangers := sorted(kwargs.keys() - {parameter.name for parameter in named}):
        own = [parameter.name for parameter in named if parameter.name not in offered]
        raise ConfigError(
            f"env_kwargs: the factory of --env={name} has no parameter {', '.join(strangers)}"
            + (f"; it has {', '.join(own)}" if own else "")
            + _nearest(strangers[0], own)
        )
    return factory(**(given | kwargs))


def make_arguments(context: EnvContext) -> dict[str, Any]:
    """What `gymnasium.make` is told: --env_kwargs, and how to render when it is watched, as not every one renders."""
    return render_arguments(context) | dict(context.env_kwargs or {})


def render_arguments(context: EnvContext) -> dict[str, Any]:
    """How to render; nothing when it is not watched."""
    return {} if context.render_mode is None else {"render_mode": context.render_mode}


def refusal_of_argument(error: TypeError, kwargs: dict[str, Any], name: str) -> ConfigError | None:
    """What to say where a constructor does not know one of --env_kwargs; None: the error is about something else.

    Args:
        error: that the constructor raised.
        kwargs: that it was given.
        name: of the environment.
    """
    found = _UNEXPECTED.search(str(error))
    if found is None or found[1] not in kwargs:
        return None
    known = sorted(_constructor_parameters(name))
    has = f"; it has {', '.join(known)}" if known else ""
    return ConfigError(f"env_kwargs: --env={name} has no argument {found[1]}{has}{_nearest(found[1], known)}")


def _constructor_parameters(name: str) -> set[str]:
    """Of the class that Gymnasium knows by this id, and of its bases where it hands arguments on; empty: not known."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    if spec is None or spec.entry_point is None:
        return set()
    point = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point
    bases = creator.__mro__[:-1] if isinstance(creator, type) else ()
    functions = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)] or [creator]
    parameters = [each for function in functions for each in inspect.signature(function).parameters.values()]
    return {each.name for each in parameters if each.kind not in _UNNAMED} - {"self", "render_mode"}


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
