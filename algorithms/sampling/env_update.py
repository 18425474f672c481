"""Changes of the environments of a sampler: what an update says, and how it reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from appo.envs.api import EnvContext
from appo.envs.registry import ResolvedEnv, resolve
from appo.envs.replaceable import REPLACEMENT, BuiltEnv, Replacement
from appo.envs.vector.process_handle import spread
from appo.envs.vector.vec_env import VecEnv
from appo.utils.options import ConfigError


@dataclass(frozen=True)
class EnvUpdate:
    """What happens to an environment, in this order; each of them may be left out.

    Where the environment is restarted after a failure, parameters are set again, and what took its place does so again:
    a function that gave another one is called with the one that was built. Attributes, calls, and what functions did
    without giving another one, are lost.
    """

    env: Any = None
    """A new environment takes its place, and it is closed: a name as in --env, or a factory, called with the fields of
    `EnvContext` that it has parameters for. It has the same spaces, and is told those of the parameters that were set
    which it has, too."""
    change: Callable[[Any], Any] | None = None
    """A function of the environment, called where it runs, may change it, or return another one to take its place."""
    params: Mapping[str, Any] | None = None
    """Values of some of its parameters (`appo.envs.api.EnvParameters`)."""
    attributes: Mapping[str, Any] | None = None
    """Values by name."""
    calls: Sequence[tuple[Any, ...]] = ()
    """(method, *arguments)."""

    @property
    def needs_reset(self) -> bool:
        """No episode that is under way can go on."""
        return self.env is not None or self.change is not None

    def check(self) -> None:
        """Refuse what cannot be done to any environment.

        Raises:
            TypeError: the new one is no name and no factory, `change` is no function, parameters or attributes are no
                dict, or calls no sequence of tuples.
            ConfigError: its name is unknown.
        """
        if isinstance(self.env, str):
            resolve(self.env)
        elif self.env is not None and not isinstance(self.env, ResolvedEnv) and not callable(self.env):
            raise TypeError(f"{self.env!r} is no new environment: a name or a factory is needed")
        if self.change is not None and not callable(self.change):
            raise TypeError(f"change={self.change!r} is no function of an environment")
        for what, values in (("params", self.params), ("attributes", self.attributes)):
            if values is not None and not isinstance(values, Mapping):
                raise TypeError(
                    f"{what}={values!r} is no dict of name -> value; to change each environment in its way, give "
                    "update_envs a list with an EnvUpdate or None for each"
                )
        if not isinstance(self.calls, list | tuple) or not all(
            isinstance(call, list | tuple) and call and isinstance(call[0], str) for call in self.calls
        ):
            raise TypeError(f"calls={self.calls!r} is no list of (method, *arguments)")


class EnvChanges:
    """Brings updates to environments, and knows which of them are no longer those that were built."""

    def __init__(self, env: VecEnv, seed: int, options: Any, *, is_replaceable: bool) -> None:
        """Of environments that are as they were built.

        Args:
            env: the environments.
            seed: of the run, from which those of new environments follow.
            options: of the family of a named environment; None: its defaults.
            is_replaceable: they were built by `appo.envs.replaceable`.
        """
        self._env, self._seed, self._options, self._is_replaceable = env, seed, options, is_replaceable
        self._numbers = [0] * env.num_envs  # of changes
        self._replaced: dict[int, Replacement] = {}
        self.seeds: dict[int, int] = {}
        """By environment, of the next reset of those that are new."""

    def checked(self, update: EnvUpdate | list[EnvUpdate | None] | None) -> list[EnvUpdate | None]:
        """One update for each environment, or None.

        Raises:
            ValueError: a list of another length.
            TypeError: one is no `EnvUpdate`, or see `EnvUpdate.check`.
            ConfigError: these environments cannot be replaced.
        """
        number = self._env.num_envs
        updates = update if isinstance(update, list) else [update] * number
        if len(updates) != number:
            raise ValueError(f"{len(updates)} updates for {number} environments")
        for each in updates:
            if each is None:
                continue
            if not isinstance(each, EnvUpdate):
                raise TypeError(f"{each!r} is no EnvUpdate")
            each.check()
            if each.needs_reset and not (self._is_replaceable and self._env.steps_apart):
                raise ConfigError(
                    "new environments, and functions of environments, need SamplerRecipe(..., replaceable=True), and "
                    "no VectorEnv"
                )
        return updates

    def apply(self, env_id: int, update: EnvUpdate) -> None:
        """Update one environment, of which nothing is under way where the update `needs_reset`."""
        if update.env is not None:
            named = resolve(update.env) if isinstance(update.env, str) else update.env
            self._change(env_id, BuiltEnv(named, self._options, self._context(env_id)))
        if update.change is not None:
            self._change(env_id, update.change)
        if update.params:
            self._set_params(env_id, dict(update.params))
        for name, value in (update.attributes or {}).items():
            self._env.set_attr(name, [value], [env_id])
        for name, *arguments in update.calls:
            self._env.call(name, *arguments, env_ids=[env_id])

    def _change(self, env_id: int, change: Callable[[Any], Any]) -> None:
        self._numbers[env_id] += 1
        number = self._numbers[env_id]
        is_replaced, is_around = self._env.call("change_env", number, change, env_ids=[env_id])[0]
        if not is_replaced:
            return
        sequence = np.random.SeedSequence([self._seed, env_id, number], spawn_key=(1,))
        self.seeds[env_id] = int(sequence.generate_state(1)[0]) % 2**31  # several simulators take no more than 31 bits
        before = self._replaced.get(env_id, Replacement(0, (), {}))
        known = self._env.call("get_env_params", env_ids=[env_id])[0]
        params = {name: value for name, value in before.params.items() if name in known}
        changes = (*before.changes, change) if is_around else (change,)
        self._replaced[env_id] = Replacement(number, changes, params)
        self._env.set_env_params({REPLACEMENT: self._replaced[env_id]}, [env_id])

    def _set_params(self, env_id: int, params: dict[str, Any]) -> None:
        if (replaced := self._replaced.get(env_id)) is None:
            self._env.set_env_params(params, [env_id])
            return
        # With what took the place: one that is built anew may not know them before.
        told = replaced._replace(params={**replaced.params, **params})
        self._env.set_env_params({REPLACEMENT: told}, [env_id])
        self._replaced[env_id] = told

    def _context(self, env_id: int) -> EnvContext:
        worker, first = 0, 0
        if self._env.num_workers:
            shares = spread(self._env.num_envs, self._env.num_workers)
            worker, first = next((worker, share.start) for worker, share in enumerate(shares) if env_id in share)
        return EnvContext(worker, env_id - first, env_id, self._env.num_envs, self._seed)
