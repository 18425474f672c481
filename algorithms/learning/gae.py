"""Generalised advantage estimation, for data that is (nearly) on-policy.

Source: Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016,
arXiv:1506.02438, equations (11) and (16).

Letters:  T = rows of a trajectory,  B = trajectories.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from appo.algorithms.learning.recursion import discounted_suffix_sums
from appo.algorithms.learning.shapes import require_same_shape, require_shape


class GaeResult(NamedTuple):
    """Constants: no gradient flows through them."""

    value_targets: Tensor  # [T, B]
    advantages: Tensor  # [T, B]


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    discounts: Tensor,
    has_delta: Tensor,
    *,
    gae_lambda: float,
) -> GaeResult:
    """Advantages A_t and the lambda-returns ``A_t + V(x_t)``.

    With ``h_t`` 0 on rows that nothing is known to follow, else 1, and ``A_T = 0``::

        delta_t = h_t (r_t + discount_t V(x_{t+1}) - V(x_t))
        A_t     = delta_t + discount_t lambda A_{t+1}

    Args:
        rewards: [T, B] received after the action, scaled and clipped.
        values: [T, B] V(x_t) under the learner's weights, in units of reward.
        bootstrap_value: [B] V(x_T).
        discounts: [T, B] as in `masks`.
        has_delta: [T, B] h_t, as in `masks`.
        gae_lambda: 0: the one-step error, 1: the discounted return minus the value.

    Raises:
        ValueError: the shapes do not agree.
    """
    require_same_shape(values=values, rewards=rewards, discounts=discounts, has_delta=has_delta)
    require_shape("bootstrap_value", bootstrap_value, tuple(values.shape[1:]))
    next_values = torch.cat((values[1:], bootstrap_value.unsqueeze(0)))
    deltas = torch.addcmul(rewards - values, discounts, next_values).mul_(has_delta)
    advantages = discounted_suffix_sums(deltas, discounts * gae_lambda)
    return GaeResult(advantages + values, advantages)
