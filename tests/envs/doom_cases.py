"""Doom environments by name and options."""

from __future__ import annotations

from typing import Any

from appo.envs.api import EnvContext
from appo.envs.families.doom import FAMILY, DoomOptions


def make(name: str, render_mode: str | None = None, **options: Any) -> Any:
    """One environment of the family, with these options."""
    return FAMILY.make(name, DoomOptions(**options), EnvContext(render_mode=render_mode))
