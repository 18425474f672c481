"""PettingZoo: several agents in one environment (pettingzoo_classic_rps_v2, pettingzoo_mpe2_simple_spread_v3 ...).

`pettingzoo_<group>_<module>` is PettingZoo's module `pettingzoo.<group>.<module>`; those of the group mpe2 come from
the package of that name. Parallel environments are taken as they are. In games whose agents take turns, all but the one
whose turn it is are inactive. Agents whose vectors or choices differ in number are padded (`padded_agents`).
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.registry import NoOptions, unknown_name
from appo.utils.options import ConfigError

_PREFIX = "pettingzoo_"
_MPE2 = "mpe2"
GROUPS = ("classic", "sisl", "butterfly", _MPE2)
_OTHER_GROUPS = ("atari", "magent", "mpe")
_VERSIONED = re.compile(r"\w+_v\d+")
NAMES = (
    "pettingzoo_classic_rps_v2",
    "pettingzoo_classic_tictactoe_v3",
    "pettingzoo_classic_connect_four_v3",
    "pettingzoo_sisl_multiwalker_v9",
    "pettingzoo_sisl_pursuit_v5",
    "pettingzoo_butterfly_cooperative_pong_v6",
    "pettingzoo_butterfly_pistonball_v6",
    "pettingzoo_mpe2_simple_v3",
    "pettingzoo_mpe2_simple_spread_v3",
    "pettingzoo_mpe2_simple_reference_v3",
    "pettingzoo_mpe2_simple_tag_v3",
    "pettingzoo_mpe2_simple_speaker_listener_v4",
)


def make(name: str, options: NoOptions, context: EnvContext) -> Any:
    """Build one environment by its name.

    Raises:
        ConfigError: there is no such environment, or it needs what is not installed.
    """
    from appo.envs.simulators.padded_agents import PaddedAgents, can_be_padded, differ
    from appo.envs.simulators.pettingzoo_turns import InTurns

    try:
        with _without_deprecations():
            module, kwargs = _module(name), context.env_kwargs or {}
            if hasattr(module, "parallel_env"):
                env = module.parallel_env(render_mode=context.render_mode, **kwargs)
            else:
                env = InTurns(module.env(render_mode=context.render_mode, **kwargs))
            return PaddedAgents(env) if differ(env) and can_be_padded(env) else env
    except ModuleNotFoundError:
        raise  # the registry says what to install
    except ImportError as error:  # the environment's own, whose text says what to install
        raise ConfigError(f"--env={name} cannot be imported: {' '.join(str(error).split())}") from error


def defaults(name: str) -> dict[str, Any]:
    """None: options are fitted to the environment."""
    del name
    return {}


def _module(name: str) -> ModuleType:
    group, _, rest = name.removeprefix(_PREFIX).partition("_")
    if group not in GROUPS or not rest:
        if rest and group in _OTHER_GROUPS:
            raise ConfigError(
                f"--env={name}: the group {group} of PettingZoo is not supported; these are: {', '.join(GROUPS)}"
            )
        raise unknown_name(name, NAMES)
    package = _MPE2 if group == _MPE2 else f"pettingzoo.{group}"
    module = f"{package}.{rest}"
    if not _VERSIONED.fullmatch(rest):  # a package of helpers may have such a name
        raise unknown_name(name, _installed(group, package) or NAMES)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise unknown_name(name, _installed(group, package) or NAMES) from error
        raise


def _installed(group: str, package: str) -> list[str]:
    """Names of all environments of a group."""
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    return [f"{_PREFIX}{group}_{module.name}" for module in modules if _VERSIONED.fullmatch(module.name)]


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """PettingZoo warns of modules that are imported by their names instead of by its registry."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


FAMILY = EnvFamily(make=make, config=NoOptions, defaults=defaults, names=NAMES, takes_kwargs=True)
