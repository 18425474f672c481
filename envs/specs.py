"""The spec of an environment: made from its layouts, told in words, and compared with the one that a run expects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from appo.envs.action_layout import ActionLayout, check_mask, mask_width
from appo.envs.api import (
    ACTION_MASK,
    ActionLeaf,
    DifferentSpecError,
    EnvContext,
    EnvSpec,
    ObservationLeaf,
    RewardShaping,
    ScriptedPlayers,
)
from appo.envs.observation_layout import ObservationLayout
from appo.envs.wrappers import find_ability, find_attribute
from appo.utils.options import ConfigError


def complete_spec(
    env: Any, layout: ObservationLayout, actions: ActionLayout, agents: Sequence[Any], mask_in_info: bool
) -> EnvSpec:
    """The spec of an environment, with the action mask that comes in its infos as one more observation."""
    mask = (ObservationLeaf(ACTION_MASK, (mask_width(actions.leaves),), "uint8", "mask"),) if mask_in_info else ()
    observations = layout.leaves + mask
    check_mask(observations, actions.leaves)
    shaping = find_ability(env, RewardShaping)
    weights = {} if shaping is None else shaping.get_reward_shaping()
    scripts = find_ability(env, ScriptedPlayers) if len(agents) > 1 else None
    return EnvSpec(
        observations,
        actions.leaves,
        max(1, len(agents)),
        reports_true_reward=bool(find_attribute(env, "true_reward_in_info")),
        needs_memory=bool(find_attribute(env, "needs_memory")),
        reward_shaping=tuple((name, float(weights[name])) for name in sorted(weights)),
        agents=tuple(str(agent) for agent in agents),
        scripted_players=() if scripts is None else script_names(scripts.scripted_players),
        channels_last=layout.channels_last(everywhere=bool(find_attribute(env, "images_channels_last"))),
    )


def script_names(declared: Any) -> tuple[str, ...]:
    """The names of an environment's scripts.

    Raises:
        ConfigError: they are no names, or one is taken.
    """
    names = (declared,) if isinstance(declared, str) else tuple(declared)
    for name in names:
        if not isinstance(name, str) or name == "random" or not name.isidentifier():
            raise ConfigError(
                f"scripted_players={declared!r}: {name!r} should be a word, and not random, which all have"
            )
    return names


def declares_info_mask(env: Any, layout: ObservationLayout, actions: ActionLayout) -> bool | None:
    """Whether infos hold action masks, as far as can be known without a reset; None: a reset must show it."""
    if not mask_width(actions.leaves) or _has_mask(layout):
        return False
    declared = find_attribute(env, "action_mask_in_info")
    return None if declared is None else bool(declared)


def mask_method(env: Any, layout: ObservationLayout, actions: ActionLayout) -> Callable[[], Any] | None:
    """The method `action_masks()` of the outermost layer of a single environment that has one, as sb3-contrib asks it.

    None: there is none, or the mask is an observation, or infos are declared to hold it.
    """
    if not mask_width(actions.leaves) or _has_mask(layout) or find_attribute(env, "action_mask_in_info"):
        return None
    found = find_attribute(env, "action_masks")
    return found if callable(found) else None


def _has_mask(layout: ObservationLayout) -> bool:
    return any(leaf.kind == "mask" for leaf in layout.leaves)


def require_spec(spec: EnvSpec, expected: EnvSpec, env_index: int, context: EnvContext) -> None:
    """Refuse an environment that differs from the others of its run.

    Raises:
        DifferentSpecError: names the environment and both specs.
    """
    if not exchange_the_same(spec, expected):
        raise DifferentSpecError(
            env_index,
            "make",
            f"its spaces differ from those of the environment that was looked at first: it has {in_words(spec)}; "
            f"expected {in_words(expected)}; all environments of a run must have the same spaces",
            context,
        )


def require_same_actions(space: Any, expected: Any, env_index: int, context: EnvContext) -> None:
    """Refuse an environment that is given its actions by the action space of another, and has a different one.

    Raises:
        DifferentSpecError: names the environment and both spaces; specs do not tell where a `Discrete` begins.
    """
    if space != expected:
        raise DifferentSpecError(
            env_index,
            "make",
            f"its action space is {space}; that of environment 0 is {expected}; all environments of a batch must have "
            "the same spaces",
            context,
        )


def exchange_the_same(spec: EnvSpec, other: EnvSpec) -> bool:
    """Two environments can be in one batch: they may differ in the first values of their reward's weights, and in how
    their images lie in memory."""
    return _comparable(spec) == _comparable(other)


def _comparable(spec: EnvSpec) -> EnvSpec:
    return spec._replace(reward_shaping=tuple((name, 0.0) for name, _ in spec.reward_shaping), channels_last=())


def in_words(spec: EnvSpec) -> str:
    """A spec on one line, with everything in which two specs can differ."""
    observations = ", ".join(_observation_in_words(leaf) for leaf in spec.observations)
    actions = ", ".join(_action_in_words(leaf) for leaf in spec.actions)
    agents = "1 agent" if spec.agents_per_env == 1 else f"{spec.agents_per_env} agents {' '.join(spec.agents)}"
    says = ", true_reward_in_info" * spec.reports_true_reward + ", needs_memory" * spec.needs_memory
    if spec.reward_shaping:
        says += ", reward weights " + " ".join(name for name, _ in spec.reward_shaping)
    if spec.scripted_players:
        says += ", scripts " + " ".join(spec.scripted_players)
    return f"[observations: {observations}; actions: {actions}; {agents}{says}]"


def difference_in_words(
    spec: EnvSpec, spaces: tuple[Any, Any], expected: EnvSpec, expected_spaces: tuple[Any, Any]
) -> str:
    """In what an environment differs from the one that is expected, on one line.

    Args:
        spec: its own.
        spaces: its observation and action space, of one agent.
        expected: the spec of the other.
        expected_spaces: the spaces of the other.
    """
    found: list[str] = []
    for kind, space, other in zip(("observation space", "action space"), spaces, expected_spaces, strict=True):
        parts, others = getattr(space, "spaces", None), getattr(other, "spaces", None)
        if isinstance(parts, dict) and isinstance(others, dict):
            names = [*parts, *(name for name in others if name not in parts)]
            pairs = [(f"{kind} {name!r}", parts.get(name), others.get(name)) for name in names]
        else:
            pairs = [(kind, space, other)]
        found += [f"{what}: {_one_line(one)} instead of {_one_line(two)}" for what, one, two in pairs if one != two]
    return "; ".join(found) or f"{in_words(spec)} instead of {in_words(expected)}"


def _one_line(space: Any) -> str:
    return "none" if space is None else " ".join(str(space).split())


def _observation_in_words(leaf: ObservationLeaf) -> str:
    categories = f" of {leaf.num_categories}" if leaf.num_categories else ""
    return f"{leaf.name} {leaf.kind}{categories} {leaf.shape} {leaf.dtype}"


def _action_in_words(leaf: ActionLeaf) -> str:
    if leaf.kind == "discrete":
        return f"one of {leaf.size}"
    return f"{leaf.size} numbers in {_bound(leaf.low)} to {_bound(leaf.high)}"


def _bound(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "(" + ", ".join(f"{value:g}" for value in values) + ")"
