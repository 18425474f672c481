"""From the name in `--env` to environments: which family it belongs to, and how a batch of them is built.

A name is, in this order:

* `my_package.my_module:make_env`: a factory of the user's, imported from the folder the program was started in;
* `<prefix>_<rest>`: the family of `envs/families/<prefix>.py`, imported now and not before, or one that was registered;
* an id that Gymnasium knows: the family its entry point suggests, else the general family `gymnasium`.

A family registered in one process is unknown to another. `ResolvedEnv` pickles with all that it takes to build the
environment elsewhere, lambdas included: hand it over, not the name, and `make_batch_env` works in any child. (The form
with ":" and the families of this folder work by name everywhere.) Python's table of modules is the only state: to
register a family is to provide the module `appo.envs.families.<prefix>`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import appo.envs.families
from appo.envs.api import BatchEnv, EnvContext, EnvError, EnvFamily, EnvSpec, UnsupportedSpaceError
from appo.envs.factories import call_factory, declared_config, make_arguments
from appo.envs.faults import FAILURES, FaultPolicy, close_quietly
from appo.envs.near_names import known_ids, near, why_not_made
from appo.envs.own_code import import_own, is_of_own_code, told
from appo.utils.options import ConfigError

_FAMILIES = "appo.envs.families"
_GENERAL = "gymnasium"  # the family of every id that has none of its own

# Ids that Gymnasium knows only once their package was imported, which is their family's business.
_FAMILY_BY_ID_START = (("ALE/", "atari"), ("MiniGrid-", "minigrid"), ("BabyAI-", "minigrid"))
_FAMILY_BY_ENTRY_POINT = (
    ("gymnasium.envs.classic_control", "classic"),
    ("gymnasium.envs.box2d", "box2d"),
    ("gymnasium.envs.mujoco", "mujoco"),
    ("minigrid.", "minigrid"),
    ("ale_py.", "atari"),
)
_PACKAGE_OF_MODULE = types.MappingProxyType(
    {"ale_py": "ale-py", "Box2D": "box2d", "cv2": "opencv-python-headless", "pygame": "pygame-ce"}
    | {name: name for name in ("gymnasium", "minigrid", "mpe2", "mujoco", "pettingzoo", "vizdoom")}
)


@dataclass(frozen=True)
class NoOptions:
    """The options of a family that adds none."""


class ResolvedEnv(NamedTuple):
    """An environment's name and the family that builds it. Pickles for any other process of this program."""

    family: EnvFamily
    family_name: str
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle  # takes lambdas and classes of the main module along by value

        return _unpickle, (sys.path[:], self.family_name, self.name, cloudpickle.dumps(tuple(self.family)))


def _unpickle(import_path: list[str], family_name: str, name: str, pickled_family: bytes) -> ResolvedEnv:
    import cloudpickle

    sys.path.extend(folder for folder in import_path if folder not in sys.path)
    family = EnvFamily(*cloudpickle.loads(pickled_family))
    if ":" not in name and _load(family_name) is None:
        register_env_family(family_name, family)
    return ResolvedEnv(family, family_name, name)


def register_env_family(prefix: str, family: EnvFamily) -> None:
    """Make `--env=<prefix>` and `--env=<prefix>_<anything>` known to this process; a later call replaces the family.

    Raises:
        ConfigError: the prefix is empty, holds one of "./:" or belongs to a family of this folder.
    """
    if not prefix or set("./:") & set(prefix):
        raise ConfigError(f"cannot register the environment prefix {prefix!r}; leave out dots, slashes and colons")
    if prefix in _families_here():
        raise ConfigError(f"cannot register the environment prefix {prefix!r}: envs/families/{prefix}.py has it")
    module = types.ModuleType(f"{_FAMILIES}.{prefix}")
    module.FAMILY = family  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module


def register_env(name: str, factory: Callable[..., Any]) -> None:
    """Make `--env=<name>` known to this process.

    Args:
        name: what to type.
        factory: gives an environment; called with those fields of `EnvContext` that it names, see `call_factory`. Its
            attribute `config`, if it has one, declares options.
    """
    register_env_family(name, factory_family(name, factory))


def resolve(name: str) -> ResolvedEnv:
    """Find the family of an environment by its name.

    Raises:
        ConfigError: the name is unknown, or of a version that cannot be made; the message has those that can.
    """
    if not name:
        raise ConfigError("--env is required, for example --env=CartPole-v1 or --env=doom_basic")
    if ":" in name:
        return ResolvedEnv(_import_factory(name), name.partition(":")[0], name)
    for prefix in _prefixes(name):
        family = _load(prefix)
        if family is not None:
            return ResolvedEnv(family, prefix, name)
    family_name = _family_of_id(name)
    family = _load(family_name) if family_name else None
    if family_name is None or family is None:
        raise unknown_name(name, _known_names())
    return ResolvedEnv(family, family_name, name)


def vectorised(env: ResolvedEnv, option: str = "--env_backend") -> ResolvedEnv:
    """An environment as the one vectorised environment that Gymnasium knows for its id; see --env_backend=native.

    A factory of the user's decides itself what it builds, and stays as it is.

    Args:
        env: the environment.
        option: that asks for this form, for errors.

    Raises:
        ConfigError: there is no such form, or its package is not installed.
    """
    if ":" in env.name:
        return env
    import gymnasium

    try:
        _register(env.family)
    except ImportError as error:
        raise ConfigError(f"--env={env.name} needs {_missing_package(error) or error}") from error
    spec = gymnasium.registry.get(env.name)
    if spec is None or spec.vector_entry_point is None:
        known = [name for name, each in gymnasium.registry.items() if each.vector_entry_point is not None]
        known.sort(key=lambda name: ("/" in name, name))  # Gymnasium's own first, whatever else was imported
        raise ConfigError(
            f"{option}=native: {env.name} has no vectorised form that Gymnasium knows by that name, as "
            f"{', '.join(known[:4])} have; nearest: {option}=serial"
        )
    make = partial(_make_vectorised, env.family.registers)
    return env._replace(family=env.family._replace(make=make, takes_kwargs=True))


def _make_vectorised(registers: str, name: str, options: Any, context: EnvContext) -> Any:
    import gymnasium

    del options  # of wrappers around a single one
    if registers:  # in a process that may not have built a single one
        importlib.import_module(registers)
    return gymnasium.make_vec(
        name, context.vector_size, vectorization_mode="vector_entry_point", **make_arguments(context)
    )


def make_batch_env(
    env: str | ResolvedEnv,
    family_options: Any,
    contexts: Sequence[EnvContext],
    faults: FaultPolicy | None = None,
    spec: EnvSpec | None = None,
) -> BatchEnv:
    """Build one environment per context, to be reset, stepped and closed together.

    Args:
        env: the name, or what `resolve` found for it.
        family_options: an instance of the family's `config`; None: its defaults.
        contexts: which of all environments of the run these are. `vector_size` and `env_name` are set here.
        faults: decides about environments that fail later; None: every failure is raised.
        spec: what every one of them must exchange; None: what the first of them does.

    Raises:
        ConfigError: the name is unknown, or a package is not installed.
        UnsupportedSpaceError: a space that cannot be trained on.
        EnvError: an environment could not be built, or differs from `spec`; with its index and the cause.
    """
    resolved = resolve(env) if isinstance(env, str) else env
    options = resolved.family.config() if family_options is None else family_options
    contexts = [context._replace(vector_size=len(contexts), env_name=resolved.name) for context in contexts]
    built: list[Any] = []

    def build(context: EnvContext) -> Any:
        return resolved.family.make(resolved.name, options, context)

    try:
        for context in contexts:
            built.append(build(context))
            if faults is not None:
                faults.beat()
            if _is_vector_env(built[0]):
                break
        return _adapt(built, contexts, faults, build, spec)
    except FAILURES as error:
        close_quietly(built)
        missing = _missing_package(error)
        if missing is not None:
            raise ConfigError(f"--env={resolved.name} needs {missing}") from error
        if isinstance(error, ConfigError | EnvError | UnsupportedSpaceError):
            raise
        if _is_unregistered(error):
            raise unknown_name(resolved.name, _known_names()) from error
        place = min(len(built), len(contexts) - 1)
        raise EnvError(place, "make", f"{type(error).__name__}: {error}", contexts[place]) from error


def probe(env: str | ResolvedEnv, family_options: Any = None) -> EnvSpec:
    """What a batch of these environments will exchange: build one, look, close it."""
    batch = make_batch_env(env, family_options, [EnvContext(seed=0)])
    close_quietly([batch])
    return batch.spec


def unknown_name(name: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name."""
    close = near(name, known)
    suggestion = f"did you mean {', '.join(close)}?" if close else "no known name is similar."
    if Path(f"{name}.py").is_file():
        suggestion = f"{name}.py lies here: type --env={name}:<its class or function>."
    elif name.endswith(".py") and Path(name).is_file():
        suggestion = f"for a file type --env={name.removesuffix('.py')}:<its class or function>."
    return ConfigError(
        f"unknown environment --env={name}; {suggestion} An environment of your own is known as "
        f"my_package.my_module:make_env, or after appo.envs.registry.register_env(name, factory)"
    )


@dataclass(frozen=True)
class _FromFactory:
    """`EnvFamily.make` of an environment that a single factory builds."""

    factory: Callable[..., Any]

    def __call__(self, name: str, options: Any, context: EnvContext) -> Any:
        return call_factory(self.factory, context, name, options)


@dataclass(frozen=True)
class _FromImport:
    """`EnvFamily.make` of the form module:attribute. Pickles by name: another process imports for itself."""

    folder: str

    def __call__(self, name: str, options: Any, context: EnvContext) -> Any:
        return call_factory(_imported(name, self.folder), context, name, options)


def _no_defaults(name: str) -> dict[str, Any]:
    return {}


def factory_family(name: str, factory: Callable[..., Any]) -> EnvFamily:
    """The family of one environment that a factory builds."""
    config = declared_config(factory, name) or NoOptions
    return EnvFamily(_FromFactory(factory), config, _no_defaults, (name,), takes_kwargs=True)


def _import_factory(name: str) -> EnvFamily:
    folder = str(Path.cwd())
    factory = _imported(name, folder)  # what is wrong with it is said before any process starts
    config = declared_config(factory, name) or NoOptions
    return EnvFamily(_FromImport(folder), config, _no_defaults, (name,), takes_kwargs=True)


def _imported(name: str, folder: str) -> Callable[..., Any]:
    """The factory of `module:attribute`, or of `module:Id-v0` for an id that the module registers with Gymnasium."""
    module_name, _, attribute = name.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        path = Path(folder, module_name).with_suffix("")
        place = path.parent if path.with_suffix(".py").is_file() else f"the folder of {path.name}.py"
        raise ConfigError(
            f"--env={name}: {module_name!r} is a file, not the name of a module; start from {place} with "
            f"--env={path.name}:{attribute}"
        )
    try:
        module = import_own(module_name, Path(folder))
    except FAILURES as error:
        reason = told(error)
        here = [path.stem for path in Path(folder).glob("*.py")] if isinstance(error, ModuleNotFoundError) else []
        close = difflib.get_close_matches(module_name, here, n=1)
        suggestion = f"; did you mean {close[0]}:{attribute}?" if close and close[0] != module_name else ""
        raise ConfigError(f"--env={name}: cannot import {module_name!r} from {folder}: {reason}{suggestion}") from error
    factory = getattr(module, attribute, None)
    if callable(factory):
        return factory
    import gymnasium

    if attribute in gymnasium.registry:
        return lambda **arguments: gymnasium.make(attribute, **arguments)
    factories = [each for each in dir(module) if callable(getattr(module, each)) and not each.startswith("_")]
    close = difflib.get_close_matches(attribute, factories, n=1)
    suggestion = f"; did you mean {module_name}:{close[0]}?" if close else ""
    raise ConfigError(f"--env={name}: {module_name!r} has no function or class {attribute!r}{suggestion}")


def _prefixes(name: str) -> list[str]:
    """`a_b_c` -> a_b_c, a_b, a: the longest registered one wins."""
    words = name.split("_")
    return ["_".join(words[:count]) for count in range(len(words), 0, -1)]


def _families_here() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(appo.envs.families.__path__)]


def families() -> dict[str, EnvFamily]:
    """Those that are part of this program, by prefix; none of their simulators is imported."""
    found = {name: _load(name) for name in sorted(_families_here())}
    return {name: family for name, family in found.items() if family is not None}


def _load(prefix: str) -> EnvFamily | None:
    module = sys.modules.get(f"{_FAMILIES}.{prefix}")
    if module is None and prefix in _families_here():
        module = importlib.import_module(f"{_FAMILIES}.{prefix}")
    return getattr(module, "FAMILY", None)


def _family_of_id(name: str) -> str | None:
    for start, family_name in _FAMILY_BY_ID_START:
        if name.startswith(start):
            return family_name
    import gymnasium

    spec = gymnasium.registry.get(name)
    if spec is None:
        return None
    if reason := why_not_made(name):
        raise ConfigError(f"--env={name}: {reason}")
    entry_point = spec.entry_point if isinstance(spec.entry_point, str) else ""
    return next((family for start, family in _FAMILY_BY_ENTRY_POINT if entry_point.startswith(start)), _GENERAL)


def _known_names() -> list[str]:
    """Of every family, and what Gymnasium knows once those packages are imported that families name for that."""
    registered = [name.removeprefix(f"{_FAMILIES}.") for name in sys.modules if name.startswith(f"{_FAMILIES}.")]
    families = [family for prefix in {*registered, *_families_here()} if (family := _load(prefix)) is not None]
    for family in families:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            _register(family)
    return [*known_ids(), *(name for family in families for name in family.names)]


def _register(family: EnvFamily) -> None:
    if family.registers:
        importlib.import_module(family.registers)


def _is_vector_env(env: Any) -> bool:
    from gymnasium.vector import VectorEnv

    return isinstance(env, VectorEnv)


def _adapt(
    built: list[Any],
    contexts: list[EnvContext],
    faults: FaultPolicy | None,
    build: Callable[[EnvContext], Any],
    spec: EnvSpec | None,
) -> BatchEnv:
    from appo.envs.vector.native import VectorEnvAdapter
    from appo.envs.vector.serial import SerialVecEnv

    if _is_vector_env(built[0]):
        return VectorEnvAdapter(built[0], contexts, faults, build, spec)
    return SerialVecEnv(built, contexts, faults, build, spec)


def _is_unregistered(error: BaseException) -> bool:
    """Gymnasium knows no environment of a name."""
    import gymnasium

    return isinstance(error, gymnasium.error.UnregisteredEnv)


def _missing_package(error: BaseException) -> str | None:
    """What to install, when that is what the error means."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        if module not in _PACKAGE_OF_MODULE and is_of_own_code(error):
            return None  # it may be a file that is missing; what is not found there is told with its place
        package = _PACKAGE_OF_MODULE.get(module, module)
        return f"{module}, which is not installed: pip install {package}"
    if type(error).__name__ == "DependencyNotInstalled":  # Gymnasium's own; its text has the pip line
        return f"a package that is not installed: {error}"
    return None
