"""`make_vec_env`: environments of one kind, stepped apart, in this process or in several."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from appo.envs.api import BatchEnv, EnvContext, UnsupportedSpaceError
from appo.envs.factories import call_factory, declared_config
from appo.envs.faults import Restarts
from appo.envs.registry import ResolvedEnv, factory_family, resolve, vectorised
from appo.envs.vector.env_process import ChildFaults
from appo.envs.vector.env_processes import EnvProcesses
from appo.envs.vector.errors import VecEnvError
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
        backend: "serial": in this process, one after the other; "subproc": in processes; "native": one VectorEnv, in
            this process: the factory's, or the vectorised form that Gymnasium knows for a name.
        num_workers: processes, each of which steps its share of the environments in turn; None: one per core, and none
            without an environment.
        batch_size: how many environments `recv` waits for; None: 1, and all with the backends that do not run ahead.
        start_method: of processes. "fork" is the fastest, and unsafe where this process has threads.
        reset_timeout: seconds in which an environment has to be built or reset.
        step_timeout: seconds for a step, and the reset after it where it ends an episode; environments of one process
            take turns. None: no limit. For backend="subproc".
        restarts: what happens when an environment raises, or its process ends. "raise": an error tells; "restart": the
            environment begins anew, its rows say KIND_RESTARTED, and the others are not touched.
        seed: of all random numbers; `reset(seed=...)` sets another one. None: drawn by the environments.
        options: of the family of a named environment, an instance of its `config`; None: its defaults. A vectorised
            form of Gymnasium's has none.
        copy: results belong to the caller. False: see `StepBatch`.
        first_env: number of the first environment, where several of these are parts of one run.

    Raises:
        ConfigError: the name is unknown, a number does not fit, or a factory cannot be called here or travel.
        UnsupportedSpaceError: a space that has no layout.
        EnvWorkerError, EnvWorkerDied, EnvTimeout: environments could not be built.
    """
    resolved, number, factories = _source(env, num_envs, first_env)
    _check_arguments(restarts, reset_timeout, step_timeout, seed)
    _check_backend(backend, num_workers, step_timeout)
    if batch_size is not None and not 1 <= batch_size <= number:
        raise ConfigError(
            f"batch_size={batch_size} of {number} environments; nearest: {min(max(1, batch_size), number)}"
        )
    if backend == "native" and isinstance(env, str):
        resolved = _vectorised(resolved, options)
    child_faults: ChildFaults | None = None
    if restarts.on == "restart":
        child_faults = ChildFaults(MOST_IN_A_ROW, drops_bad_data=True, restarts=restarts)
    contexts = [
        EnvContext(vector_index=index, env_id=first_env + index, num_envs=number, seed=seed) for index in range(number)
    ]
    if backend != "subproc":
        local = LocalEnvs.make(resolved, options, contexts, child_faults)
        if backend == "native" and local.steps_apart:
            local.close()
            raise ConfigError("backend='native' needs a factory that returns a VectorEnv; nearest: backend='serial'")
        return VecEnv(local, contexts, batch_size or number, 0, copy=copy)
    settings = ProcessSettings(
        num_workers=min(number, core_count()) if num_workers is None else num_workers,
        start_method=start_method,
        reset_timeout_s=reset_timeout,
        step_timeout_s=step_timeout,
        restarts=restarts,
        child_faults=child_faults,
        keeps_final=True,
        remedy="with restarts=Restarts('restart') of appo.envs.faults it would be started again",
    )
    contexts = _with_workers(contexts, settings.num_workers)
    processes = _in_processes(resolved, options, contexts, settings, factories)
    return VecEnv(processes, contexts, batch_size or 1, settings.num_workers, copy=copy)


def _in_processes(
    env: ResolvedEnv, options: Any, contexts: list[EnvContext], settings: ProcessSettings, factories: Sequence[Any]
) -> EnvProcesses:
    """Start processes with environments.

    Args:
        factories: of every environment, or of all; empty: `env` itself has to travel.

    Raises:
        ConfigError: names the factory that cannot travel.
        UnsupportedSpaceError, VecEnvError: environments could not be built.
    """
    try:
        return EnvProcesses(env, options, contexts, settings)
    except (VecEnvError, ConfigError, UnsupportedSpaceError):
        raise
    except Exception as error:  # pickling calls methods of the user's objects, which raise whatever they like
        _refuse_what_cannot_travel(factories or [env], settings.start_method, error)
        raise


def _check_backend(backend: Any, num_workers: Any, step_timeout: Any) -> None:
    """Refuse an unknown backend, and what the chosen one cannot do.

    Raises:
        ConfigError: names the argument.
    """
    if backend not in ("serial", "subproc", "native"):
        raise ConfigError(f"backend={backend!r} is unknown; there are serial, subproc, native")
    for name, value in (("num_workers", num_workers), ("step_timeout", step_timeout)):
        if backend != "subproc" and value is not None:
            raise ConfigError(f"{name}={value!r} is for backend='subproc'; backend={backend!r} runs in this process")


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


def _vectorised(env: ResolvedEnv, options: Any) -> ResolvedEnv:
    """A named environment as --env_backend=native has it.

    Raises:
        ConfigError: Gymnasium knows no vectorised form, or it was given options.
    """
    if options is not None and ":" not in env.name:
        raise ConfigError(f"options={options!r} are for single environments; backend='native' has none for {env.name}")
    return vectorised(env, "backend")


def _refuse_what_cannot_travel(factories: Sequence[Any], start_method: str, error: Exception) -> None:
    """Say which factory cannot be sent to another process, if one of them cannot.

    Args:
        factories: of every environment, or a single one for all.
        start_method: with "fork", nothing is sent.
        error: that starting the processes raised.

    Raises:
        ConfigError: names the factory.
    """
    if start_method == "fork":
        return
    import cloudpickle

    for number, factory in enumerate(factories):
        try:
            cloudpickle.dumps(factory)
        except Exception as reason:
            which = f"factory {number} of the list" if len(factories) > 1 else "the factory"
            why = " ".join(str(reason).split())
            raise ConfigError(
                f"{which} cannot be sent to another process ({why}): make the object that it holds inside of it, or "
                "use start_method='fork' or backend='serial', which send nothing"
            ) from error


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


def _source(env: Any, num_envs: int | None, first_env: int) -> tuple[ResolvedEnv, int, list[Any]]:
    """What is built, how many, and the user's factories: none of a name, one for all, or one for each."""
    if isinstance(env, Sequence) and not isinstance(env, str | ResolvedEnv):
        if not env:
            raise ConfigError("the list of factories is empty: one for each environment is needed")
        if num_envs not in (None, len(env)):
            raise ConfigError(f"{len(env)} factories for num_envs={num_envs}; nearest: num_envs={len(env)}")
        for factory in env:
            if not callable(factory):
                raise ConfigError(f"{factory!r} in a list of environments is no factory; names stand alone")
        called = tuple(_FromContext(factory, f"factory {number} of the list") for number, factory in enumerate(env))
        return _resolved(_OneOf(called, first_env)), len(env), list(env)
    if not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}: a whole number of at least 1 is needed")
    if isinstance(env, str):
        return resolve(env), int(num_envs), []
    _require_factory(env)
    if isinstance(env, ResolvedEnv):
        return env, int(num_envs), []
    return _resolved(_FromContext(env, "the factory")), int(num_envs), [env]


def _require_factory(env: Any) -> None:
    if not callable(env) and not isinstance(env, ResolvedEnv):
        raise ConfigError(f"{env!r} is no environment: a name, a factory, or a list of factories is needed")


def _resolved(factory: Callable[..., Any]) -> ResolvedEnv:
    return ResolvedEnv(factory_family("factory", factory), "factory", "factory")


# What `call_factory` gives to parameters of these names.
_OFFERED = (*(name for name in EnvContext._fields if name != "env_kwargs"), "env_config", "context")


@dataclass(frozen=True)
class _FromContext:
    """A factory that is called as `call_factory` does, or with the whole context as its only argument."""

    factory: Callable[..., Any]
    name: str  # for errors

    def __post_init__(self) -> None:
        """Refuse it before anything is started.

        Raises:
            ConfigError: it requires parameters that it cannot be given, or nobody can tell which.
        """
        try:
            required = self._required()
        except ValueError as error:
            raise ConfigError(f"{self.name} does not tell its parameters: wrap it in a function of your own") from error
        unknown = [name for name in required if name not in _OFFERED]
        if unknown and len(required) > 1 and declared_config(self.factory, self.name) is None:
            raise ConfigError(
                f"{self.name} requires {', '.join(unknown)}; it can ask for {', '.join(_OFFERED)}; its own "
                f"parameters are bound before: functools.partial(factory, {unknown[0]}=...)"
            )

    def __call__(self, context: EnvContext) -> Any:
        required = self._required()
        if len(required) == 1 and required[0] not in _OFFERED:
            return self.factory(context)
        return call_factory(self.factory, context, getattr(self.factory, "__name__", "factory"))

    def _required(self) -> list[str]:
        """Parameters without a default."""
        return [
            parameter.name
            for parameter in inspect.signature(self.factory).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.default is parameter.empty
        ]


@dataclass(frozen=True)
class _OneOf:
    """Each environment has a factory of its own."""

    factories: tuple[_FromContext, ...]
    first_env: int

    def __call__(self, context: EnvContext) -> Any:
        return self.factories[context.env_id - self.first_env](context)
