"""Defaults for an environment without family defaults: chosen by its spaces and by a moment of random play.

Pure: a spec and a profile go in, options come out, each with its reason. Options that are already set, because they
were typed or the experiment began with them, stay as they are, and the others are chosen to be compatible with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from appo.envs.api import EnvProfile, EnvSpec

# Agent steps that one rollout of all environments brings. PPO's clipping bounds what one iteration may change, so that
# more and smaller iterations lead further within the same frames, as long as their gradients point somewhere.
_STEPS, _IMAGE_STEPS = 2048, 1024
_MORE_STEPS = 4096  # where the usual number holds too few ends of episodes to learn from
_FEW_ENDS = 100  # fewer ends of episodes in the usual number of steps do not tell which pay more
_BATCH = 256
_MOST_ROLLOUT_BYTES = 256 * 2**20  # of the observations of one rollout of all environments
_MEMORY_STEPS = 64  # gradients flow back through as many
# Where nothing but the end of an episode is rewarded, a rollout holds whole episodes as long as that is no longer.
_LONGEST_EPISODE_ROLLOUT = 256
# The usual lambda carries credit over 20 steps; from episodes of this length on, that is too little for such rewards.
_LATE_STEPS, _MOST_LAMBDA = 50, 0.99
# At the usual 0.99, a policy that still acts at random values a small reward nearby above a large one far away, and
# learns to walk away from the large one first.
_END_GAMMA = 0.999
# Random play that takes so many steps to an end seldom finds it.
_RARE_END_STEPS = 200
_MANY_NUMBERS = 100  # in an observation: beyond, two layers of 64 are the bottleneck
_LARGE_IMAGE = 36 * 36  # pixels
_BYTE_PIXELS = 16.0  # an image whose pixels stay below holds symbols, not light
_FAST_STEP_S, _SLOW_STEP_S = 2e-4, 2e-3
# Data are learned from one iteration after they were collected, three with --num_minibatches_to_accumulate=-1. Older
# data are masked.
_ITERATIONS_OF_LAG = 4


class Choice(NamedTuple):
    """A value, and why, in a few words."""

    value: Any
    reason: str


def choose(
    spec: EnvSpec, profile: EnvProfile, given: Mapping[str, Any], *, num_workers: int, usual_policy_lag: int
) -> dict[str, Choice]:
    """Choose options for an environment without family defaults.

    Args:
        spec: what it exchanges.
        profile: what random play measured.
        given: option -> value of those already set.
        num_workers: actor workers of the run.
        usual_policy_lag: `max_policy_lag` where nothing asks for more.
    """
    known = {"num_workers": num_workers, "usual_policy_lag": usual_policy_lag}
    choices: dict[str, Choice] = {}
    for part in (_network, _sampling, _objective, _data):
        values = {name: choice.value for name, choice in choices.items()} | dict(given)
        choices |= part(spec, profile, values | known)
    return {name: choice for name, choice in choices.items() if name not in given}


def _network(spec: EnvSpec, profile: EnvProfile, given: Mapping[str, Any]) -> dict[str, Choice]:
    remembers = given.get("use_rnn", spec.needs_memory)
    asked = "needs_memory is declared" if spec.needs_memory else "needs_memory is not declared"
    choices = {"use_rnn": Choice(spec.needs_memory, asked)}
    numbers = _numbers(spec)
    if numbers:
        choices["normalize_input"] = Choice(True, "vector observations")
    if given.get("critic_sees_time"):
        choices["actor_critic_share_weights"] = Choice(False, "critic sees time")
    if _pixels(spec):
        width = 256 if _pixels(spec) > _LARGE_IMAGE else 128
        return choices | {
            "obs_scale": _obs_scale(spec, profile),
            "nonlinearity": Choice("relu", "image observations"),
            "hidden_size": Choice(width, "size of images"),
            "mlp_layers": Choice("64,64", "beside images"),
        }
    width, why = 64 if numbers <= _MANY_NUMBERS else 128, f"{numbers} inputs"
    if remembers:
        width, why = 128, "memory"
    usual = Choice(True, "one recurrent core for both") if remembers else Choice(False, "small network")
    sharing = choices.setdefault("actor_critic_share_weights", usual)
    shares = given.get("actor_critic_share_weights", sharing.value)
    return choices | {
        "critic_sees_time": Choice(not shares, "critic shares the network" if shares else "critic has its own network"),
        "mlp_layers": Choice(str(width) if remembers else f"{width},{width}", why),
        "encoder_extra_fc_layers": Choice(0, "vector observations"),
        "hidden_size": Choice(width, why),
        "nonlinearity": Choice(*_nonlinearity(spec)),
    }


def _nonlinearity(spec: EnvSpec) -> tuple[str, str]:
    is_categorical = all(leaf.kind in ("categorical", "mask") for leaf in spec.observations)
    return ("relu", "only categories") if is_categorical else ("tanh", "vector observations")


def _obs_scale(spec: EnvSpec, profile: EnvProfile) -> Choice:
    if profile.largest_pixel is None:
        return Choice(255.0, "type of pixels")
    return Choice(255.0 if profile.largest_pixel > _BYTE_PIXELS else max(profile.largest_pixel, 1.0), "largest pixel")


def _sampling(spec: EnvSpec, profile: EnvProfile, given: Mapping[str, Any]) -> dict[str, Choice]:
    if "num_envs_per_worker" in given:
        splits = math.gcd(2, given["num_envs_per_worker"])
        return {"worker_num_splits": Choice(splits, "number of environments")}
    splits = given.get("worker_num_splits", 2)
    if profile.step_s is None:
        envs, why = 8, "steps not measured"
    else:
        envs = 16 if profile.step_s < _FAST_STEP_S else 8 if profile.step_s < _SLOW_STEP_S else 4
        why = f"steps of {_time(profile.step_s)}"
    envs = max(1, envs // spec.agents_per_env // splits) * splits
    return {"num_envs_per_worker": Choice(envs, why)}


def _data(spec: EnvSpec, profile: EnvProfile, values: Mapping[str, Any]) -> dict[str, Choice]:
    """Rollout, chunks and minibatches: each has to be a multiple of another."""
    columns = values["num_workers"] * values["num_envs_per_worker"] * spec.agents_per_env
    columns_of_policy = max(1, columns // values.get("num_policies", 1))
    remembers, has_vtrace = values["use_rnn"], values.get("with_vtrace", False)
    is_synchronous = not values.get("async_rl", True)
    rollout, why = _rollout(spec, profile, columns, columns_of_policy)
    if remembers and rollout > _MEMORY_STEPS:
        rollout, why = _MEMORY_STEPS, "memory"
    wanted, most = rollout, columns_of_policy if is_synchronous else None
    rollout = values.get("rollout") or _compatible_rollout(wanted, values, most)
    why = why if rollout == wanted else "fits what is set"
    chunk = values.get("recurrence", 0)
    if chunk < 1:  # -1 is the whole rollout, and what is not allowed is refused afterwards
        batch = values.get("batch_size", rollout)
        chunk = rollout if has_vtrace or "recurrence" in values else math.gcd(rollout, batch) if remembers else 1
    unit, most_steps = chunk, columns_of_policy * rollout
    if "num_batches_per_iteration" in values:
        # Together they have to be whole rollouts; synchronous training takes no more than one of every agent.
        of_iteration = max(1, values["num_batches_per_iteration"])
        unit = math.lcm(chunk, rollout // math.gcd(rollout, of_iteration))
        most_steps //= of_iteration if is_synchronous else 1
    batch = values.get("batch_size", max(1, min(_BATCH, most_steps) // unit) * unit)
    whole = rollout // math.gcd(batch, rollout)
    batches = max(1, columns_of_policy * rollout // batch // whole) * whole
    choices = {
        "rollout": Choice(rollout, why),
        "recurrence": _recurrence(chunk, remembers=remembers, has_vtrace=has_vtrace),
        "with_vtrace": Choice(False, "several epochs"),
        "batch_size": Choice(batch, "small minibatches"),
        "num_batches_per_iteration": Choice(batches, "one rollout together"),
    }
    if remembers:
        choices["rnn_chrono_init"] = Choice(rollout, "length of the rollout")
    batches = values.get("num_batches_per_iteration", batches)
    # The clipped ratio compares with the weights that acted: the older these, the less several epochs can learn.
    choices["num_minibatches_to_accumulate"] = Choice(batches, "one iteration under way")
    lag = _ITERATIONS_OF_LAG * values["ppo_epochs"] * batches
    if lag > values["usual_policy_lag"]:
        choices["max_policy_lag"] = Choice(lag, "many optimizer steps")
    return choices


def _rollout(spec: EnvSpec, profile: EnvProfile, columns: int, columns_of_policy: int) -> tuple[int, str]:
    row_bytes = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in spec.observations)
    longest = max(8, _power_of_two(_MOST_ROLLOUT_BYTES / (row_bytes * columns)))
    steps, why = _IMAGE_STEPS if _pixels(spec) else _STEPS, f"{columns_of_policy} agents at once"
    if _searches_end(spec, profile):
        steps, why = _MORE_STEPS, "rare ends"
    elif _has_few_ends(spec, profile):
        steps, why = _MORE_STEPS, "few ends"
    wanted = max(32, _power_of_two(steps / columns_of_policy))
    if _pays_late(profile) and profile.episode_steps is not None and not _pixels(spec):
        # At least twice the length of an episode: most episodes lie in one rollout as a whole.
        episodes = 2 * _power_of_two(2.0 * profile.episode_steps - 1.0)
        if wanted < episodes <= _LONGEST_EPISODE_ROLLOUT:
            wanted, why = episodes, "whole episodes"
    return (longest, "size of observations") if longest < wanted else (wanted, why)


def _compatible_rollout(wanted: int, given: Mapping[str, Any], most: int | None) -> int:
    """The length nearest to the wanted one that what is given allows.

    Args:
        wanted: steps.
        given: options that are set; the rollout is not.
        most: rollouts that an iteration may take; None: any number.
    """
    has_vtrace, batch = given.get("with_vtrace", False), given.get("batch_size")
    recurrence = given.get("recurrence", -1 if has_vtrace or given["use_rnn"] else 1)
    if has_vtrace and recurrence > 0:
        return recurrence  # V-trace takes whole rollouts
    unit = max(1, recurrence)
    if batch is None or batch < 1:
        return math.ceil(wanted / unit) * unit

    def fits(length: int) -> bool:
        batches = given.get("num_batches_per_iteration", length // math.gcd(batch, length))
        rollouts, rest = divmod(batch * batches, length)
        is_whole = recurrence > 0 or batch % length == 0
        return is_whole and not rest and (most is None or rollouts <= most)

    allowed = filter(fits, range(unit, 4 * wanted + 1, unit))
    return min(allowed, key=lambda length: abs(math.log(length / wanted)), default=wanted)


def _recurrence(chunk: int, *, remembers: bool, has_vtrace: bool) -> Choice:
    if has_vtrace:
        return Choice(-1, "V-trace")
    return Choice(chunk, "memory" if remembers else "shuffled single steps")


def _objective(spec: EnvSpec, profile: EnvProfile, given: Mapping[str, Any]) -> dict[str, Choice]:
    is_continuous = any(leaf.kind == "continuous" for leaf in spec.actions)
    rate = Choice(5e-4, "large images") if _pixels(spec) > _LARGE_IMAGE else Choice(1e-3, "small network")
    choices = {
        "learning_rate": rate,
        "ppo_epochs": Choice(8, "continuous actions") if is_continuous else Choice(4, "discrete actions"),
        "ppo_clip_ratio": Choice(0.2, "several epochs"),
        "normalize_returns": Choice(True, "unknown scale"),
        "advantage_noise": Choice(0.02, "suits most tasks"),
        "max_grad_norm": Choice(1.0, "suits most tasks"),
        "adam_eps": Choice(1e-5, "suits most tasks"),
    }
    if given.get("normalize_returns", True):
        choices["ppo_clip_value"] = Choice(math.inf, "normalised returns")
    if is_continuous:
        choices["adaptive_stddev"] = Choice(False, "continuous actions")
        choices["initial_stddev"] = Choice(0.6, "continuous actions")
    if all(leaf.kind == "continuous" for leaf in spec.actions):
        choices["exploration_loss_coeff"] = Choice(0.0, "continuous actions")
    elif _searches_end(spec, profile):
        choices["exploration_loss_coeff"] = Choice(0.03, "rare ends")
    else:
        choices["exploration_loss_coeff"] = Choice(0.01, "discrete actions")
    if _pays_ends(profile):
        choices["gamma"] = Choice(_END_GAMMA, "only ends are rewarded")
    if _pays_late(profile):
        choices["gae_lambda"] = Choice(_late_lambda(profile), "only ends are rewarded")
    return choices


def _pays_ends(profile: EnvProfile) -> bool:
    """Ends of episodes were seen, and no reward before them; perhaps none at all."""
    return profile.rewards_end_only and profile.episode_steps is not None


def _has_few_ends(spec: EnvSpec, profile: EnvProfile) -> bool:
    """Most ends pay more than 0, nothing else does, and the usual iteration has too few to tell which pay more.

    Where random play seldom earns anything, there is little to compare: FrozenLake8x8 learns from smaller iterations.
    """
    is_paid = 2 * profile.num_gains > profile.num_episodes * spec.agents_per_env
    is_few = _FEW_ENDS * (profile.episode_steps or 0.0) > _STEPS
    return _pays_ends(profile) and is_paid and is_few and not _pixels(spec)


def _pays_late(profile: EnvProfile) -> bool:
    """Nothing but the end of an episode is rewarded, and that comes late."""
    least = profile.num_steps if profile.episode_steps is None else profile.episode_steps
    return profile.rewards_end_only and least >= _LATE_STEPS


def _searches_end(spec: EnvSpec, profile: EnvProfile) -> bool:
    """All that can be won is an end of the costs, random play seldom finds it, and no time limit was seen.

    A policy that avoids the larger costs before it has found the end walks in circles for ever, each step of which
    costs the same: nothing but entropy leads it out.
    """
    is_discrete = any(leaf.kind == "discrete" for leaf in spec.actions) and not _pixels(spec)
    is_rare = profile.num_steps / max(1, profile.num_episodes) >= _RARE_END_STEPS
    return is_discrete and profile.rewards_only_cost and is_rare and not profile.has_time_limit


def _late_lambda(profile: EnvProfile) -> float:
    """What carries credit from the end of an episode to its start."""
    if profile.episode_steps is None:
        return _MOST_LAMBDA
    return round(min(1.0 - 1.0 / profile.episode_steps, _MOST_LAMBDA), 3)


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
