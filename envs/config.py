"""The option that belongs to every environment; the others are declared by its family."""

from __future__ import annotations

from dataclasses import dataclass

from appo.utils.options import option


@dataclass(frozen=True)
class EnvConfig:
    """Which environment is trained on."""

    env: str = option(
        "",
        "The environment: a name of a family (doom_basic, atari_breakout, synthetic_identity), a registered Gymnasium "
        "id (CartPole-v1), or my_package.my_module:make_env for a factory of your own, found from the current folder. "
        "Required. The name decides which further options exist and what they start from",
    )
