"""What an environment that no family knows starts from: options that follow from its spaces and from a moment of play.

Pure: what was seen goes in, options and the reason of each come out. What the user typed, or an experiment began with,
is given, stays, and is what the others are fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from envs.api import EnvSpec, Seen

# Rows that one rollout of all environments brings: enough for a gradient that points somewhere, and few enough for
# several iterations within the first ten thousand frames.
_ROWS = 4096
_MOST_ROLLOUT_BYTES = 256 * 2**20  # of the observations of one rollout of all environments
_MEMORY_ROWS = 64  # gradients flow back through as many
_MANY_NUMBERS = 100  # in an observation: beyond, two layers of 64 are the bottleneck
_LARGE_IMAGE = 36 * 36  # pixels
_BYTE_PIXELS = 16.0  # an image whose pixels stay below holds symbols, not light
_FAST_STEP_S, _SLOW_STEP_S = 2e-4, 2e-3


class Choice(NamedTuple):
    """A value, and why, in a few words."""

    value: Any
    reason: str


def choose(spec: EnvSpec, seen: Seen, given: Mapping[str, Any], num_workers: int) -> dict[str, Choice]:
    """Options for an environment of which nothing is known but this.

    Args:
        spec: what it exchanges.
        seen: what random play told.
        given: option -> value that stays as it is; the others are fitted to them.
        num_workers: actor workers of the run.
    """
    choices = _network(spec, seen, given) | _sampling(spec, seen, given)
    values = {name: choice.value for name, choice in choices.items()} | dict(given)
    choices |= _data(spec, seen, values, given, num_workers) | _objective(spec)
    return {name: choice for name, choice in choices.items() if name not in given}


def _network(spec: EnvSpec, seen: Seen, given: Mapping[str, Any]) -> dict[str, Choice]:
    remembers = given.get("use_rnn", seen.needs_memory)
    choices = {"use_rnn": Choice(seen.needs_memory, "the environment asks" if seen.needs_memory else "nobody asks")}
    numbers = _numbers(spec)
    if numbers:
        choices["normalize_input"] = Choice(True, "vector observations")
    if _pixels(spec):
        scale = 255.0 if seen.largest_pixel > _BYTE_PIXELS else max(seen.largest_pixel, 1.0)
        width = 256 if _pixels(spec) > _LARGE_IMAGE else 128
        return choices | {
            "obs_scale": Choice(scale, "largest pixel seen"),
            "nonlinearity": Choice("relu", "image observations"),
            "hidden_size": Choice(width, "size of images"),
            "mlp_layers": Choice("64,64", "beside images"),
        }
    width = 64 if numbers <= _MANY_NUMBERS else 128
    return choices | {
        "mlp_layers": Choice(f"{width},{width}", f"{numbers} numbers seen"),
        "encoder_extra_fc_layers": Choice(0, "vector observations"),
        "hidden_size": Choice(width, f"{numbers} numbers seen"),
        "nonlinearity": Choice("tanh", "vector observations"),
        "actor_critic_share_weights": Choice(bool(remembers), "one memory" if remembers else "small network"),
    }


def _sampling(spec: EnvSpec, seen: Seen, given: Mapping[str, Any]) -> dict[str, Choice]:
    envs = 16 if seen.step_s < _FAST_STEP_S else 8 if seen.step_s < _SLOW_STEP_S else 4
    splits = given.get("worker_num_splits", 2)
    envs = max(1, envs // spec.agents_per_env // splits) * splits
    return {"num_envs_per_worker": Choice(envs, f"steps of {_time(seen.step_s)}")}


def _data(
    spec: EnvSpec, seen: Seen, values: Mapping[str, Any], given: Mapping[str, Any], num_workers: int
) -> dict[str, Choice]:
    """Rollout, chunks, minibatches: each has to be a multiple of another."""
    columns = num_workers * values["num_envs_per_worker"] * spec.agents_per_env // given.get("num_policies", 1)
    columns = max(1, columns)
    rollout, why = _rollout(spec, columns)
    if values["use_rnn"]:
        rollout = min(rollout, _MEMORY_ROWS)
    if "recurrence" in given and given["recurrence"] > 0:
        rollout = math.ceil(rollout / given["recurrence"]) * given["recurrence"]
    rollout = given.get("rollout", rollout)
    has_vtrace = given.get("with_vtrace", False)
    chunk = rollout if has_vtrace else rollout if values["use_rnn"] else 1
    chunk = rollout if given.get("recurrence", chunk) == -1 else given.get("recurrence", chunk)
    wanted = 512 if _pixels(spec) else 256
    unit = chunk if "num_batches_per_iteration" not in given else rollout
    batch = given.get("batch_size", max(1, min(wanted, columns * rollout) // unit) * unit)
    whole = rollout // math.gcd(batch, rollout)
    batches = max(1, columns * rollout // batch // whole) * whole
    return {
        "rollout": Choice(rollout, why),
        "recurrence": Choice(-1 if has_vtrace else chunk, "memory" if values["use_rnn"] else "shuffled single steps"),
        "with_vtrace": Choice(False, "several epochs"),
        "batch_size": Choice(batch, "small minibatches"),
        "num_batches_per_iteration": Choice(batches, "a rollout each"),
    }


def _rollout(spec: EnvSpec, columns: int) -> tuple[int, str]:
    row_bytes = sum(math.prod(leaf.shape) * _BYTES.get(leaf.dtype, 4) for leaf in spec.observations)
    longest = max(8, _power_of_two(_MOST_ROLLOUT_BYTES / (row_bytes * columns)))
    wanted = max(32, _power_of_two(_ROWS / columns))
    if longest < wanted:
        return longest, "size of observations"
    return wanted, f"{columns} agents at once"


def _objective(spec: EnvSpec) -> dict[str, Choice]:
    choices = {
        "learning_rate": Choice(3e-4, "unknown task"),
        "ppo_epochs": Choice(4, "unknown task"),
        "ppo_clip_ratio": Choice(0.2, "several epochs"),
        "ppo_clip_value": Choice(math.inf, "normalised returns"),
        "normalize_returns": Choice(True, "unknown scale"),
        "max_grad_norm": Choice(1.0, "unknown task"),
        "adam_eps": Choice(1e-5, "unknown task"),
    }
    if any(leaf.kind == "continuous" for leaf in spec.actions):
        choices["adaptive_stddev"] = Choice(False, "continuous actions")
    if all(leaf.kind == "continuous" for leaf in spec.actions):
        choices["exploration_loss_coeff"] = Choice(0.0, "continuous actions")
    else:
        choices["exploration_loss_coeff"] = Choice(0.01, "discrete actions")
    return choices


_BYTES = {"uint8": 1, "int8": 1, "bool": 1, "int16": 2, "uint16": 2, "float16": 2, "int64": 8, "float64": 8}


def _numbers(spec: EnvSpec) -> int:
    """Numbers that a network reads beside images; a category counts as many as it has values."""
    leaves = [leaf for leaf in spec.observations if leaf.kind in ("vector", "categorical")]
    return sum(math.prod(leaf.shape) * max(1, leaf.num_categories) for leaf in leaves)


def _pixels(spec: EnvSpec) -> int:
    """Of the largest image; 0 without any."""
    return max((math.prod(leaf.shape[1:]) for leaf in spec.observations if leaf.kind == "image"), default=0)


def _power_of_two(number: float) -> int:
    return 2 ** max(0, math.floor(math.log2(max(number, 1.0))))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.0f} ms"
