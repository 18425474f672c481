"""The weights of each policy's reward in the shared table; without locks, so one is old or new, never in between."""

from __future__ import annotations

from collections.abc import Mapping

from appo.algorithms.memory.layout import SharedArrays


def write_reward_weights(arrays: SharedArrays, policy: int, weights: Mapping[str, float]) -> None:
    """Let episodes of a policy that begin from now on have other weights; names that no environment has are ignored."""
    for place, (name, _) in enumerate(arrays.sizes.reward_shaping):
        if name in weights:
            arrays["reward_shaping"][policy, place] = weights[name]
