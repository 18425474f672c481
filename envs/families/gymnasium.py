"""Any environment that is registered with Gymnasium, as it stands: the family of ids that have none of their own."""

from __future__ import annotations

from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.factories import make_arguments
from appo.envs.registry import NoOptions


def make(name: str, options: NoOptions, context: EnvContext) -> Any:
    """Build the environment that Gymnasium knows by this id."""
    import gymnasium

    return gymnasium.make(name, disable_env_checker=True, **make_arguments(context))


def defaults(name: str) -> dict[str, Any]:
    """None: options are fitted to the environment (`appo.algorithms.fitted_defaults`)."""
    return {}


FAMILY = EnvFamily(make, NoOptions, defaults, takes_kwargs=True)
