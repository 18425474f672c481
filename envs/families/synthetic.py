"""Environments whose optimum is known, and environments that misbehave on purpose: what the tests train on.

`synthetic_<kind>`: the tasks are described in `simulators.synthetic_tasks`, each with its optimum; the faults and
several agents in `simulators.synthetic_faults` and `synthetic_multi`. `synthetic_unreliable_cartpole` is CartPole
with a simulator that fails now and then.
"""

from __future__ import annotations

from typing import Any

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.registry import unknown_name
from appo.envs.synthetic_options import SyntheticOptions

_PREFIX = "synthetic_"
KINDS = (
    "identity",
    "bandit",
    "memory",
    "masked",
    "masked_info",
    "truncation",
    "tuple",
    "dict",
    "image",
    "continuous",
    "shaped",
    "lock",
    "slow",
    "uneven",
    "crashing",
    "hanging",
    "exit",
    "bad_data",
    "unreliable_cartpole",
    "multi",
)
NAMES = tuple(_PREFIX + kind for kind in KINDS)


def make(name: str, options: SyntheticOptions, context: EnvContext) -> Any:
    """Build one environment of the kind that the name says."""
    kind = _kind(name)
    from appo.envs.simulators import synthetic_faults, synthetic_multi, synthetic_tasks

    classes: dict[str, Any] = {
        "identity": synthetic_tasks.Identity,
        "bandit": synthetic_tasks.Bandit,
        "memory": synthetic_tasks.Memory,
        "masked": synthetic_tasks.Masked,
        "masked_info": synthetic_tasks.MaskedInInfo,
        "truncation": synthetic_tasks.Truncation,
        "tuple": synthetic_tasks.MixedTuple,
        "dict": synthetic_tasks.NestedDict,
        "image": synthetic_tasks.Image,
        "continuous": synthetic_tasks.Continuous,
        "shaped": synthetic_tasks.Shaped,
        "lock": synthetic_tasks.Lock,
        "slow": synthetic_faults.Slow,
        "uneven": synthetic_faults.Uneven,
        "crashing": synthetic_faults.Crashing,
        "hanging": synthetic_faults.Hanging,
        "exit": synthetic_faults.Exit,
        "bad_data": synthetic_faults.BadData,
        "unreliable_cartpole": synthetic_faults.unreliable_cartpole,
        "multi": synthetic_multi.MultiIdentity,
    }
    return classes[kind](options, context)


def defaults(name: str) -> dict[str, Any]:
    """A small network, many environments, short rollouts; memory and a convolution only where the task needs them."""
    kind = _kind(name)
    if kind == "unreliable_cartpole":
        from appo.envs.families import classic

        faults = {"synthetic_fault_probability": 1e-3, "synthetic_stall_probability": 5e-4}
        return classic.defaults("CartPole-v1") | faults
    values: dict[str, Any] = {
        "encoder": "mlp",
        "mlp_layers": "64,64",
        "encoder_extra_fc_layers": 0,
        "nonlinearity": "tanh",
        "use_rnn": False,
        "num_envs_per_worker": 16,
        "rollout": 16,
        "batch_size": 256,
        "num_batches_per_iteration": 2,
        "ppo_epochs": 4,
        "with_vtrace": False,
        "ppo_clip_ratio": 0.2,
        "learning_rate": 2e-3,
        "gamma": 0.5,  # most tasks answer an action at once
    }
    if kind == "memory":
        # At 2e-3 one run in ten stayed at three of four cues.
        return values | {"use_rnn": True, "hidden_size": 64, "gamma": 0.99, "learning_rate": 1e-3}
    if kind in ("image", "dict"):
        return values | {"encoder": "conv_simple", "encoder_extra_fc_layers": 1, "hidden_size": 128, "obs_scale": 255.0}
    if kind == "lock":
        return values | {"gamma": 0.99, "learning_rate": 1e-3, "exploration_loss_coeff": 0.05}
    if kind == "truncation":
        return values | {"gamma": 0.9}
    if kind == "continuous":
        return values | {"adaptive_stddev": False, "initial_stddev": 0.15, "learning_rate": 5e-3}
    if kind == "tuple":
        return values | {"adaptive_stddev": False, "initial_stddev": 0.4, "learning_rate": 3e-3}
    return values


def _kind(name: str) -> str:
    kind = name.removeprefix(_PREFIX)
    if kind not in KINDS:
        raise unknown_name(name, NAMES)
    return kind


FAMILY = EnvFamily(make, SyntheticOptions, defaults, NAMES)
