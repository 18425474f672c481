"""`make_vec_env`: environments of one kind, stepped apart, in this process or in several."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from appo.envs.api import BatchEnv, EnvContext
from appo.envs.factories import call_factory
from appo.envs.faults import Restarts
from appo.envs.registry import ResolvedEnv, factory_family, resolve
from appo.envs.vector.env_process import ChildFaults
from appo.envs.vector.env_processes import EnvProcesses
from appo.envs.vector.local_envs import LocalEnvs
from appo.envs.vector.process_handle import MOST_IN_A_ROW, ProcessSettings, spread
from appo.envs.vector.vec_env import VecEnv
from appo.utils.options import ConfigError
from appo.utils.processes import core_count


def make_vec_env(
    env: str | ResolvedEnv | Callable[..., Any] | Sequence[Callable[..., Any]],
    num_envs: int | None = None,
    *,
    backend: Literal["serial", "subproc", "native"] = "serial",
    num_workers: int | None = None,
    batch_size: int | None = None,
    start_method: Literal["fork", "spawn", "forkserver"] = "forkserver",
    reset_timeout: float = 120.0,
    step_timeout: float | None = None,
    restarts: Restarts = Restarts(),  # noqa: B008 - immutable
    seed: int | None = None,
    options: Any = None,
    copy: bool = True,
    first_env: int = 0,
) -> VecEnv:
    """Make a `VecEnv`.

    An environment's episodes follow from the seed and its number alone: they are the same with every backend, any
    number of processes, and whatever the order in which results are received.

    Args:
        env: a name as in --env, or a factory, which is called with the fields of `EnvContext` that it has parameters
            for (a single parameter of another name gets the whole context); or a list of factories, one for each
            environment. Lambdas and closures travel to other processes.
        num_envs: how many; None: as many as factories.
        backend: "serial": in this process, one after the other; "subproc": in processes; "native": one VectorEnv of
            the factory's, in this process.
        num_workers: processes, each of which steps its share of the environments in turn; None: one per core, and none
            without an environment.
        batch_size: how many environments `recv` waits for; None: 1, and all with the backends that do not run ahead.
        start_method: of processes. "fork" is the fastest, and unsafe where this process has threads.
        reset_timeout: seconds in which an environment has to be built or reset.
        step_timeout: seconds for a step, and the reset after it where it ends an episode; environments of one process
            take turns. None: no limit.
        restarts: what happens when an environment raises, or its process ends. "raise": an error tells; "restart": the
            environment begins anew, its rows say KIND_RESTARTED, and the others are not touched.
        seed: of all random numbers; `reset(seed=...)` sets another one. None: drawn by the environments.
        options: of the family of a named environment, an instance of its `config`; None: its defaults.
        copy: results belong to the caller. False: see `StepBatch`.
        first_env: number of the first environment, where several of these are parts of one run.

    Raises:
        ConfigError: the name is unknown, or a number does not fit.
        UnsupportedSpaceError: a space that has no layout.
        EnvWorkerError, EnvWorkerDied, EnvTimeout: environments could not be built.
    """
    resolved, number = _source(env, num_envs, first_env)
    if backend not in ("serial", "subproc", "native"):
        raise ConfigError(f"backend={backend!r} is unknown; there are serial, subproc, native")
    if backend != "subproc" and num_workers is not None:
        raise ConfigError(
            f"num_workers={num_workers} is for backend='subproc'; backend={backend!r} runs in this process"
        )
    if batch_size is not None and not 1 <= batch_size <= number:
        raise ConfigError(
            f"batch_size={batch_size} of {number} environments; nearest: {min(max(1, batch_size), number)}"
        )
    _check_arguments(restarts, reset_timeout, step_timeout, seed)
    child_faults: ChildFaults | None = None
    if restarts.on == "restart":
        child_faults = ChildFaults(MOST_IN_A_ROW, drops_bad_data=True, restarts=restarts)
    workers = 0
    if backend == "subproc":
        workers = min(number, core_count()) if num_workers is None else num_workers
    contexts = [
        EnvContext(vector_index=index, env_id=first_env + index, num_envs=number, seed=seed) for index in range(number)
    ]
    if backend != "subproc":
        local = LocalEnvs.make(resolved, options, contexts, child_faults)
        if backend == "native" and local.steps_apart:
            local.close()
            raise ConfigError("backend='native' needs a factory that returns a VectorEnv; nearest: backend='serial'")
        return VecEnv(local, contexts, batch_size or number, 0, copy=copy)
    contexts = _with_workers(contexts, workers)
    settings = ProcessSettings(
        num_workers=workers,
        start_method=start_method,
        reset_timeout_s=reset_timeout,
        step_timeout_s=step_timeout,
        restarts=restarts,
        child_faults=child_faults,
        keeps_final=True,
    )
    processes = EnvProcesses(resolved, options, contexts, settings)
    return VecEnv(processes, contexts, batch_size or 1, workers, copy=copy)


def _check_arguments(restarts: Any, reset_timeout: Any, step_timeout: Any, seed: Any) -> None:
    """Refuse what can have no meaning.

    Raises:
        ConfigError: names the argument.
    """
    if not isinstance(restarts, Restarts):
        raise ConfigError(f"restarts={restarts!r} has to be such as Restarts('restart', max_lifetime=10)")
    restarts.check()
    for name, seconds in (("reset_timeout", reset_timeout), ("step_timeout", step_timeout)):
        if seconds is not None and (not isinstance(seconds, int | float | np.number) or not seconds > 0):
            raise ConfigError(f"{name}={seconds!r} has to be a time above 0, in seconds; step_timeout=None: no limit")
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise ConfigError(f"seed={seed!r} has to be a whole number of at least 0, or None")


def vec_env_of(batch: BatchEnv) -> VecEnv:
    """A `VecEnv` over a batch that is built, which it closes; a failure is raised as the batch raises it."""
    contexts = [EnvContext(env_id=index, num_envs=batch.num_envs) for index in range(batch.num_envs)]
    return VecEnv(LocalEnvs(batch), contexts, batch.num_envs, 0)


def _with_workers(contexts: list[EnvContext], workers: int) -> list[EnvContext]:
    if not 1 <= workers <= len(contexts):
        return contexts  # refused where processes are made
    return [
        contexts[index]._replace(worker_index=worker, vector_index=index - envs.start)
        for worker, envs in enumerate(spread(len(contexts), workers))
        for index in envs
    ]


def _source(env: Any, num_envs: int | None, first_env: int) -> tuple[ResolvedEnv, int]:
    if isinstance(env, Sequence) and not isinstance(env, str | ResolvedEnv):
        if num_envs not in (None, len(env)) or not env:
            raise ConfigError(f"{len(env)} factories for {num_envs} environments")
        for factory in env:
            if not callable(factory):
                raise ConfigError(f"{factory!r} in a list of environments is no factory; names stand alone")
        return _resolved(_OneOf(tuple(_FromContext(factory) for factory in env), first_env)), len(env)
    if not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}: a whole number of at least 1 is needed")
    if isinstance(env, str):
        return resolve(env), int(num_envs)
    _require_factory(env)
    return (env if isinstance(env, ResolvedEnv) else _resolved(_FromContext(env))), int(num_envs)


def _require_factory(env: Any) -> None:
    if not callable(env) and not isinstance(env, ResolvedEnv):
        raise ConfigError(f"{env!r} is no environment: a name, a factory, or a list of factories is needed")


def _resolved(factory: Callable[..., Any]) -> ResolvedEnv:
    return ResolvedEnv(factory_family("factory", factory), "factory", "factory")


@dataclass(frozen=True)
class _FromContext:
    """A factory that is called as `call_factory` does, or with the whole context as its only argument."""

    factory: Callable[..., Any]

    def __call__(self, context: EnvContext) -> Any:
        named = [
            parameter
            for parameter in inspect.signature(self.factory).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        required = [parameter.name for parameter in named if parameter.default is parameter.empty]
        known = {*EnvContext._fields, "env_config", "context"}
        if len(required) == 1 and required[0] not in known:
            return self.factory(context)
        return call_factory(self.factory, context, getattr(self.factory, "__name__", "factory"))


@dataclass(frozen=True)
class _OneOf:
    """Each environment has a factory of its own."""

    factories: tuple[_FromContext, ...]
    first_env: int

    def __call__(self, context: EnvContext) -> Any:
        return self.factories[context.env_id - self.first_env](context)
