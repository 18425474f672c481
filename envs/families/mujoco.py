"""MuJoCo: Gymnasium's continuous control tasks (HalfCheetah-v5, Hopper-v5 ...), as they are.

An episode of the walking robots is truncated after 1000 steps; one step counts as one frame, whatever the physics
does inside.
"""

from __future__ import annotations

import logging
from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.factories import make_arguments
from appo.envs.family_defaults import SEVERAL_EPOCHS
from appo.envs.registry import NoOptions

NAMES = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)


def make(name: str, options: NoOptions, context: EnvContext) -> Any:
    """Build one task by its Gymnasium id."""
    import gymnasium
    import mujoco

    mujoco.set_mju_user_warning(_log_warning)  # its own way is to append to MUJOCO_LOG.TXT where the user happens to be
    return gymnasium.make(name, disable_env_checker=True, **make_arguments(context))


def _log_warning(text: str) -> None:
    # Gymnasium's models use words that MuJoCo would rather not see: nothing a user could act on.
    logging.getLogger(__name__).log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)


def defaults(name: str) -> dict[str, Any]:
    """Values a MuJoCo run starts from: small networks, little data at a time, each used several times."""
    return SEVERAL_EPOCHS | {
        "encoder": "mlp",
        "mlp_layers": "64,64",
        "encoder_extra_fc_layers": 0,
        "hidden_size": 128,  # of the memory that --use_rnn=True adds
        "nonlinearity": "tanh",
        "use_rnn": False,
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "initial_stddev": 0.6,
        "normalize_input": True,
        "normalize_returns": True,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "lr_schedule": "linear_decay",
        "rollout": 64,
        "batch_size": 256,
        "num_batches_per_iteration": 8,
        "num_minibatches_to_accumulate": 8,
        "ppo_epochs": 8,
        "exploration_loss_coeff": 0.0,
        "num_envs_per_worker": 16,
    }


FAMILY = EnvFamily(make=make, config=NoOptions, defaults=defaults, names=NAMES, takes_kwargs=True)
