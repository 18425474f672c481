"""An environment in whose place another one can be put, or that a function changes, while a sampler uses it.

It is the outermost layer of an environment, and looks like whatever is inside. What took the place of the environment
that was built is a parameter (`REPLACEMENT`), and so it is put in the place of one that is built anew after a failure,
in this process and in another.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from appo.envs.api import ACTION_MASK, EnvContext, EnvParameters
from appo.envs.factories import call_factory
from appo.envs.faults import FAILURES
from appo.envs.registry import ResolvedEnv, resolve
from appo.envs.wrappers import find_ability, find_attribute, layers, set_env_params

REPLACEMENT = "replacement"  # name of the parameter

log = logging.getLogger(__name__)


class Replacement(NamedTuple):
    """What took the place of an environment. Pickles with all that it takes, lambdas included."""

    number: int  # of the newest change, counted from 1 for each environment
    changes: tuple[Callable[[Any], Any], ...]  # one after the other, from the environment that was built on
    params: Mapping[str, Any]  # set since

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return _unpickle, (sys.path[:], cloudpickle.dumps(tuple(self)))


def _unpickle(import_path: list[str], pickled: bytes) -> Replacement:
    import cloudpickle

    sys.path.extend(folder for folder in import_path if folder not in sys.path)
    return Replacement(*cloudpickle.loads(pickled))


class ReplaceableEnv:
    """Everything but what is defined here is that of the environment inside, a Gymnasium or a PettingZoo one."""

    def __init__(self, env: Any) -> None:
        """Around an environment."""
        self.env = env
        self._number = 0  # of the change that put this environment here; 0: it is the one that was built
        self._gives_mask: bool | None = None
        self._told: dict[str, Any] = {}  # parameters
        self._replacement: Replacement | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # it is being copied: nothing is inside yet
            raise AttributeError(name)
        found = getattr(self.env, name)
        if not callable(found):
            return found
        # Adapters keep methods, and the environment inside changes.
        return lambda *arguments, **named: getattr(self.env, name)(*arguments, **named)

    def __str__(self) -> str:
        return str(self.env)

    def reset(self, **arguments: Any) -> Any:
        """That of the environment inside."""
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        """That of the environment inside."""
        return self.env.step(action)

    @property
    def action_masks(self) -> Callable[[], Any]:
        """The method that tells which actions are allowed, of any layer inside that has one."""
        if find_attribute(self.env, "action_masks") is None:
            raise AttributeError("action_masks")
        return lambda: find_attribute(self.env, "action_masks")()

    @property
    def action_mask_in_info(self) -> bool:
        """Infos hold action masks, see `appo.envs.adapters`. It is found out here, and not with an early reset that the
        adapter keeps: that would be the beginning of an episode of another environment after a change."""
        declared = find_attribute(self.env, "action_mask_in_info")
        if declared is not None:
            return bool(declared)
        if self._gives_mask is None:
            _, info = self.env.reset()
            infos = info.values() if hasattr(self.env, "possible_agents") else [info]
            self._gives_mask = any(ACTION_MASK in each for each in infos)
        return self._gives_mask

    def change_env(self, number: int, change: Callable[[Any], Any]) -> tuple[bool, bool]:
        """Let a function change the environment inside, or give another one, which takes its place; it is to be reset.

        Args:
            number: of the change, so that it is not made again where it has been.
            change: the environment -> another one, or None. The old one is closed, unless it is a layer of the new one.

        Returns:
            Another one has taken its place; and the old one is a layer of it.

        Raises:
            ValueError: the new one has other spaces; the old one stays.
        """
        old, other = self.env, change(self.env)
        if other is None or other is old:
            return False, False
        is_shared = not {id(layer) for layer in layers(old)}.isdisjoint(id(layer) for layer in layers(other))
        seen, expected = _outside(other), _outside(old)
        if different := [name for name in expected if seen[name] != expected[name]]:
            if not is_shared:
                _close(other)
            told = ", ".join(f"{name} {seen[name]} instead of {expected[name]}" for name in different)
            raise ValueError(f"a new environment differs from the one whose place it is to take: {told}")
        self.env, self._number = other, number
        if not is_shared:
            _close(old)
            self._set_known(self._told)
        return True, is_shared

    def get_env_params(self) -> dict[str, Any]:
        """See `EnvParameters`; what took the place of the environment that was built is one of them."""
        owner = find_ability(self.env, EnvParameters)
        return ({} if owner is None else owner.get_env_params()) | {REPLACEMENT: self._replacement}

    def set_env_params(self, params: dict[str, Any]) -> None:
        """See `EnvParameters`. A new environment is told what the old one was told, as far as it has such parameters.

        Raises:
            KeyError: the environment that took the place has no such parameter.
        """
        told = dict(params)
        replacement = told.pop(REPLACEMENT, None)
        if replacement is not None and replacement.number != self._number:
            for change in replacement.changes:
                self.change_env(replacement.number, change)
        self._set_known(told)
        if replacement is not None:
            if replacement.params:
                set_env_params(self.env, dict(replacement.params))
            told |= replacement.params
            self._replacement = replacement
        self._told |= told

    def _set_known(self, params: Mapping[str, Any]) -> None:
        owner = find_ability(self.env, EnvParameters)
        known = {} if owner is None else owner.get_env_params()
        if meant := {name: value for name, value in params.items() if name in known}:
            owner.set_env_params(meant)


class ReplaceableFactory:
    """A factory of environments that can be replaced; has the parameters of the factory inside."""

    def __init__(self, factory: Callable[..., Any]) -> None:
        """Around a factory."""
        self.factory = factory
        self.__signature__ = inspect.signature(factory)
        self.__name__ = getattr(factory, "__name__", "factory")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """An environment; a `VectorEnv` is left as it is."""
        from gymnasium.vector import VectorEnv

        env = self.factory(*arguments, **named)
        return env if isinstance(env, VectorEnv) else ReplaceableEnv(env)


@dataclass(frozen=True)
class BuiltEnv:
    """A change: an environment that is built, whatever the old one was."""

    env: ResolvedEnv | Callable[..., Any]
    options: Any  # of the family of a named environment; None: its defaults
    context: EnvContext

    def __call__(self, old: Any) -> Any:
        """The new environment."""
        del old
        if not isinstance(self.env, ResolvedEnv):
            return call_factory(self.env, self.context, getattr(self.env, "__name__", "factory"))
        family, context = self.env.family, self.context._replace(env_name=self.env.name)
        options = self.options if isinstance(self.options, family.config) else family.config()
        return family.make(self.env.name, options, context)


def replaceable(env: Any) -> Any:
    """What `make_vec_env` takes, of environments that can be replaced: a name, a factory, or a list of factories.

    Raises:
        ConfigError: the name is unknown.
    """
    if isinstance(env, list | tuple) and not isinstance(env, ResolvedEnv):
        return [replaceable(each) if callable(each) else each for each in env]
    if isinstance(env, str | ResolvedEnv):
        resolved = resolve(env) if isinstance(env, str) else env
        return resolved._replace(family=resolved.family._replace(make=ReplaceableFactory(resolved.family.make)))
    return ReplaceableFactory(env) if callable(env) else env


def _outside(env: Any) -> dict[str, Any]:
    """What others see of an environment, and do not look at again."""
    seen = {name: getattr(env, name, None) for name in ("possible_agents", "observation_space", "action_space")}
    if seen["possible_agents"] is not None:
        for name in ("observation_space", "action_space"):
            seen[name] = [getattr(env, name)(agent) for agent in seen["possible_agents"]]
    return seen | {"action_masks()": callable(find_attribute(env, "action_masks"))}


def _close(env: Any) -> None:
    try:
        env.close()
    except FAILURES as error:
        log.warning("an environment that was replaced could not be closed: %s", error)
