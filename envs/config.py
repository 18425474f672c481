"""The options that belong to every environment; the others are declared by its family."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from appo.utils.options import ConfigError, option


@dataclass(frozen=True)
class EnvConfig:
    """Which environment is trained on, and what is put around it."""

    env: str = option(
        "",
        "The environment: a name of a family (doom_basic, atari_breakout, synthetic_identity), a registered Gymnasium "
        "id (CartPole-v1), or my_package.my_module:make_env for a factory of your own, found from the current folder. "
        "Required. The name decides which further options exist and what they start from",
    )
    env_kwargs: str = option(
        "",
        "Arguments for the environment's constructor, or for your own factory, as JSON: '{\"is_slippery\": false}'; or "
        "one at a time: --env_kwargs.is_slippery=False. What is typed replaces all that a resumed run had",
    )
    wrap_action_repeat: int = option(1, "Steps for which each action holds; rewards are added", minimum=1)
    wrap_time_limit: int = option(0, "Steps after which an episode is truncated. 0: as the environment says", minimum=0)
    wrap_grey: bool = option(False, "Colour images become grey")
    wrap_resize: str = option("", "Images become this large: 84, or height and width: 72x128. Empty: as they are")
    wrap_clip: float = option(0.0, "Numbers of observations are cut to [-c, c]. 0: as they are", minimum=0.0)
    wrap_scale: bool = option(False, "Numbers of observations are scaled from their bounds to [-1, 1]")
    wrap_stack: int = option(1, "The last so many observations are seen together", minimum=1, maximum=64)

    @property
    def kwargs(self) -> dict[str, Any]:
        """`env_kwargs` as a dict.

        Raises:
            ConfigError: it is no JSON object.
        """
        if not self.env_kwargs:
            return {}
        try:
            found = json.loads(self.env_kwargs)
        except ValueError as error:
            raise ConfigError(f"env_kwargs={self.env_kwargs} is no JSON: {error}; for example {_EXAMPLE}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"env_kwargs={self.env_kwargs} is no JSON object; for example {_EXAMPLE}")
        if decided := sorted(found.keys() & DECIDED):
            raise ConfigError(f"env_kwargs: {', '.join(decided)} is decided by the run itself; leave it out")
        return found

    @property
    def resize(self) -> tuple[int, int]:
        """Height and width of `wrap_resize`.

        Raises:
            ConfigError: it is no size.
        """
        found = re.fullmatch(r"(\d+)(?:x(\d+))?", self.wrap_resize)
        if found is None or not 1 <= int(found[1]) <= _LARGEST or not 1 <= int(found[2] or found[1]) <= _LARGEST:
            raise ConfigError(
                f"wrap_resize={self.wrap_resize!r} is no size of 1 to {_LARGEST}; for example --wrap_resize=84 or "
                "--wrap_resize=72x128"
            )
        return int(found[1]), int(found[2] or found[1])

    def check_combinations(self) -> None:
        """Refuse what cannot be understood.

        Raises:
            ConfigError: with an example that can.
        """
        _ = self.kwargs
        if self.wrap_resize:
            _ = self.resize


_EXAMPLE = "--env_kwargs='{\"is_slippery\": false}'"
_LARGEST = 4096
# By the run itself: the fields of `EnvContext`, and what families tell Gymnasium.
DECIDED = frozenset(
    {
        *("worker_index", "vector_index", "env_id", "num_envs", "seed", "attempt", "render_mode", "vector_size"),
        *("env_name", "env_kwargs", "env_config", "context", "disable_env_checker"),
    }
)
