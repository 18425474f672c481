"""Box2D: Gymnasium's LunarLander, BipedalWalker and CarRacing, as they are. One step is one frame."""

from __future__ import annotations

import warnings
from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.factories import make_arguments
from appo.envs.registry import NoOptions

NAMES = (
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "BipedalWalkerHardcore-v3",
    "CarRacing-v3",
)


def make(name: str, options: NoOptions, context: EnvContext) -> Any:
    """Build one task by its Gymnasium id."""
    import gymnasium

    with warnings.catch_warnings():
        # Its bindings warn of themselves while they load, and crash the process if that warning is made an error.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        import Box2D  # noqa: F401

        return gymnasium.make(name, disable_env_checker=True, **make_arguments(context))


def defaults(name: str) -> dict[str, Any]:
    """Values a Box2D run starts from."""
    values: dict[str, Any] = {
        "use_rnn": False,
        "with_vtrace": False,
        "rollout": 64,
        "batch_size": 256,
        "num_batches_per_iteration": 8,
        "num_minibatches_to_accumulate": 8,
        "ppo_epochs": 4,
        "ppo_clip_ratio": 0.2,
        "ppo_clip_value": 1000.0,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "learning_rate": 7e-4,
        "exploration_loss_coeff": 0.0,
        "max_grad_norm": 0.5,
        "normalize_returns": True,
        "adaptive_stddev": False,
        "num_envs_per_worker": 8,
    }
    if name.startswith("CarRacing"):
        return values | {"encoder": "conv_nature", "nonlinearity": "relu", "obs_scale": 255.0}
    values |= {"encoder": "mlp", "mlp_layers": "64,64", "encoder_extra_fc_layers": 0, "nonlinearity": "tanh"}
    values |= {"normalize_input": True, "hidden_size": 128}  # of the memory that --use_rnn=True adds
    if name.startswith("LunarLander"):
        # Landing pays after hundreds of steps: a shorter horizon prefers to hover.
        values |= {"gamma": 0.999, "gae_lambda": 0.98, "exploration_loss_coeff": 0.01}
    return values


FAMILY = EnvFamily(make=make, config=NoOptions, defaults=defaults, names=NAMES, takes_kwargs=True)
