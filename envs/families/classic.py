"""Gymnasium's classic control tasks, and CartPole without its velocities, which cannot be played without memory.

Returns to expect: CartPole-v1 500, MountainCar-v0 about -100, MountainCarContinuous-v0 about 95, Acrobot-v1 about -75,
Pendulum-v1 about -150.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.factories import make_arguments
from appo.envs.family_defaults import SEVERAL_EPOCHS
from appo.envs.registry import unknown_name
from appo.utils.options import ConfigError, option

NO_VELOCITY = "classic_cartpole_no_velocity"
NAMES = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1", NO_VELOCITY)
POSITION_AND_ANGLE = (0, 2)  # of CartPole's observation


@dataclass(frozen=True)
class ClassicOptions:
    """How classic control tasks are built."""

    classic_vectorized: bool = option(
        False,
        "Step all environments of a batch in one numpy call. Several times faster with many environments, but each "
        "episode spends one step more on starting anew. CartPole only",
    )


def make(name: str, options: ClassicOptions, context: EnvContext) -> Any:
    """Build one task, or with `classic_vectorized` a `VectorEnv` of them."""
    import gymnasium

    _check_name(name)
    env_id = "CartPole-v1" if name == NO_VELOCITY else name
    if options.classic_vectorized:
        if name == NO_VELOCITY or gymnasium.spec(env_id).vector_entry_point is None:
            raise ConfigError(f"--classic_vectorized=True is not possible with --env={name}; it is with CartPole-v1")
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        return gymnasium.make_vec(env_id, context.vector_size, mode, **make_arguments(context))
    env = gymnasium.make(env_id, disable_env_checker=True, **make_arguments(context))
    if name == NO_VELOCITY:
        from appo.envs.wrappers import SelectObservation

        return SelectObservation(env, POSITION_AND_ANGLE)
    return env


def defaults(name: str) -> dict[str, Any]:
    """Close to what is fitted to unknown environments of such spaces, but learned from whole trajectories.

    Stated here, it does not depend on a measured time.
    """
    _check_name(name)
    values: dict[str, Any] = {
        "encoder": "mlp",
        "mlp_layers": "64,64",
        "encoder_extra_fc_layers": 0,
        "hidden_size": 128,  # of the memory that --use_rnn=True adds
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "use_rnn": False,
        "normalize_input": True,
        "normalize_returns": True,
        "num_envs_per_worker": 16,
        "rollout": 64,
        "batch_size": 256,
        "num_batches_per_iteration": 8,
        "num_minibatches_to_accumulate": 8,
        **SEVERAL_EPOCHS,
    }
    if name == NO_VELOCITY:
        memory = {"use_rnn": True, "rnn_chrono_init": 64, "actor_critic_share_weights": True}
        return values | memory | {"mlp_layers": "128"}
    if name in ("Pendulum-v1", "MountainCarContinuous-v0"):
        deviation = {"adaptive_stddev": False, "initial_stddev": 0.6, "exploration_loss_coeff": 0.0}
        return values | deviation | {"ppo_epochs": 8}
    return values


def _check_name(name: str) -> None:
    """Refuse a name of this prefix that is no task; ids were found by Gymnasium already."""
    if name.startswith("classic") and name != NO_VELOCITY:
        raise unknown_name(name, NAMES)


FAMILY = EnvFamily(make, ClassicOptions, defaults, NAMES, takes_kwargs=True)
