"""Environments whose optimum is known, and environments that misbehave on purpose: what the tests train on.

`synthetic_<kind>`: the tasks are described in `envs.simulators.synthetic_tasks`, each with its optimum; the faults and
several agents in `envs.simulators.synthetic_faults` and `synthetic_multi`. `synthetic_unreliable_cartpole` is CartPole
in the hands of a simulator that fails now and then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envs.api import EnvContext, EnvFamily
from envs.registry import unknown_name
from utils.options import option

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
BAD_DATA = ("nan_observation", "inf_observation", "nan_reward", "shape", "dtype")
_FAULTY = "crashing, hanging, exit, bad_data"


@dataclass(frozen=True)
class SyntheticOptions:
    """How the synthetic environments are built; each uses those that concern it."""

    synthetic_episode_length: int = option(20, "Steps in an episode", minimum=1)
    synthetic_size: int = option(4, "Choices of the discrete actions", minimum=2)
    synthetic_delay: int = option(5, "memory: blank steps between the cue and the question", minimum=0)
    synthetic_action_size: int = option(1, "continuous: numbers in an action", minimum=1)
    synthetic_image_size: int = option(40, "image, dict: height and width of the pictures", minimum=2)
    synthetic_num_agents: int = option(3, "multi: agents", minimum=1)
    synthetic_frames_per_step: int = option(1, "Frames that a step reports to have covered", minimum=1)
    synthetic_step_ms: float = option(1.0, "slow, uneven: how long a step takes, uneven: on average", minimum=0.0)
    synthetic_reset_ms: float = option(0.0, "slow, uneven: how long a reset takes", minimum=0.0)
    synthetic_slow_env: int = option(-1, "slow: the env_id of the one that takes --synthetic_slow_ms; -1: none")
    synthetic_slow_ms: float = option(20.0, "slow: how long a step of that one takes", minimum=0.0)
    synthetic_busy: bool = option(False, "slow, uneven: compute instead of sleeping, as a simulator does")
    synthetic_fault_probability: float = option(
        0.0, f"{_FAULTY}, unreliable_cartpole: chance of the fault in each step", minimum=0.0, maximum=1.0
    )
    synthetic_fault_step: int = option(
        -1, f"{_FAULTY}: the step, counted from 0 since it was built, of a certain fault; -1: none"
    )
    synthetic_fault_env: int = option(-1, f"{_FAULTY}: the only env_id to fail; -1: all")
    synthetic_fault_in: str = option(
        "step",
        f"{_FAULTY}: what the fault comes with; reset: in resets, with the chance of a step",
        choices=("step", "reset"),
    )
    synthetic_bad_data: str = option(
        "nan_observation", "bad_data: what is wrong in the step of the fault", choices=BAD_DATA
    )
    synthetic_stall_probability: float = option(
        0.0, "unreliable_cartpole: chance of a stall in each step", minimum=0.0, maximum=1.0
    )
    synthetic_stall_seconds: float = option(
        5.0,
        "hanging: how long the step of the fault takes; unreliable_cartpole: at most, 0.4 of it at least",
        minimum=0.0,
    )
    synthetic_exit_code: int = option(7, "exit: the code that the process ends with", minimum=0, maximum=255)


def make(name: str, options: SyntheticOptions, context: EnvContext) -> Any:
    """Build one environment of the kind that the name says."""
    kind = _kind(name)
    from envs.simulators import synthetic_faults, synthetic_multi, synthetic_tasks

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
        from envs.families import classic

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
