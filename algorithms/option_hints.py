"""What to type instead of an option that there is not: a word of another program, of another family, or an argument."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from appo.algorithms.familiar_words import FOR_ANY_ENV, HINTS
from appo.utils.options import nearest_names, options_of

_ARGUMENT = "an argument of the environment is typed --env_kwargs.{name}=..."
_ARGUMENT_COPIER = "EzPickle"  # a base of many environments, whose constructor receives copies of arguments only


def hint_of(name: str, env: str, takes_kwargs: bool) -> str:
    """What to type instead of an option that this command line does not have; empty where nothing is known of it."""
    from appo.envs.registry import families

    if takes_kwargs and name in (_arguments_of(env) or ()):
        return _ARGUMENT.format(name=name)
    if name in HINTS:
        return HINTS[name]
    owners = [f"--env={prefix}_..." for prefix, family in families().items() if _has_option(family.config, name)]
    if owners:
        instead = f"; for any environment there is {FOR_ANY_ENV[name]}" if name in FOR_ANY_ENV else ""
        return f"it is an option of {' and '.join(owners)}{instead}"
    return ""


def last_hint_of(name: str, env: str, takes_kwargs: bool) -> str:
    """The same where no option has a similar name: it may be an argument of the environment."""
    if not takes_kwargs:
        return f"--help --env={env} lists all options" if env else "--help lists all options"
    arguments = _arguments_of(env)
    if arguments is None:
        return _ARGUMENT.format(name=name)
    nearest = [f"--env_kwargs.{each}" for each in nearest_names(name, arguments)]
    return (
        f"did you mean {' or '.join(nearest)}?"
        if nearest
        else f"{env} has no such argument, and --help lists all options"
    )


@functools.cache  # a module of the user's that cannot be imported is not asked again
def _arguments_of(env: str) -> set[str] | None:
    """What --env_kwargs may name; None where only building the environment would tell.

    Every constructor that takes `**kwargs` is expected to hand them on to that of its base.
    """
    from appo.envs.faults import FAILURES  # imported late: --help is quick without it

    try:
        creator = _creator_of(env)
        bases = creator.__mro__[:-1] if isinstance(creator, type) else ()
        own = [
            vars(base)["__init__"] for base in bases if "__init__" in vars(base) and base.__name__ != _ARGUMENT_COPIER
        ]
        found = {"max_episode_steps"} if ":" not in env else set()  # gymnasium.make takes it
        for function in own or [creator]:
            parameters = inspect.signature(function).parameters.values()
            found |= {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
            if not any(each.kind is each.VAR_KEYWORD for each in parameters):
                return found - {"self"}
    except FAILURES:  # of somebody else's code, and told better where it is needed
        return None
    return None


def _creator_of(env: str) -> Any:
    """The class or function that an environment is built by."""
    module, colon, attribute = env.partition(":")
    if colon:
        from appo.envs.own_code import import_own

        return getattr(import_own(module), attribute)
    import gymnasium

    point = gymnasium.registry[env].entry_point
    return gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point


def _has_option(config_type: type, name: str) -> bool:
    return any(field.name == name for field, _ in options_of(config_type))
