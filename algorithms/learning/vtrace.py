"""V-trace: value targets and advantages from trajectories that an older policy produced.

The behaviour policy mu is the one that acted, the target policy pi the one the learner holds now; optimizer steps
lie between them.

Source: Espeholt et al., "IMPALA", 2018, arXiv:1802.01561, section 4.1, equation (1) and remark 1.

Letters:  T = rows of a trajectory,  B = trajectories.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from appo.algorithms.learning.recursion import discounted_suffix_sums
from appo.algorithms.learning.shapes import require_same_shape, require_shape


class VtraceResult(NamedTuple):
    """Constants: no gradient flows through them."""

    value_targets: Tensor  # [T, B]
    advantages: Tensor  # [T, B]


@torch.no_grad()
def vtrace(
    log_ratio: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    discounts: Tensor,
    has_delta: Tensor,
    *,
    rho_max: float,
    c_max: float,
) -> VtraceResult:
    """V-trace targets v_t and advantages A_t.

    With ``w_t = pi(a_t|x_t) / mu(a_t|x_t)``, ``rho_t = h_t min(rho_max, w_t)``, ``c_t = min(c_max, w_t)``::

        delta_t = rho_t (r_t + discount_t V(x_{t+1}) - V(x_t))
        v_t     = V(x_t) + delta_t + discount_t c_t (v_{t+1} - V(x_{t+1}))
        A_t     = rho_t (r_t + discount_t v_{t+1} - V(x_t))

    and ``v_T = V(x_T)``. ``h_t`` is 0 on rows that nothing is known to follow, else 1.

    Args:
        log_ratio: [T, B] log w_t of the joint action; 0 where nobody decided.
        rewards: [T, B] received after the action, scaled and clipped.
        values: [T, B] V(x_t) under the learner's weights, in units of reward.
        bootstrap_value: [B] V(x_T).
        discounts: [T, B] as in `masks`.
        has_delta: [T, B] h_t, as in `masks`.
        rho_max: cap of rho; decides which policy's value is learned.
        c_max: cap of c; decides how far a surprise travels back, not where learning converges.

    Raises:
        ValueError: the shapes do not agree.
    """
    require_same_shape(values=values, log_ratio=log_ratio, rewards=rewards, discounts=discounts, has_delta=has_delta)
    require_shape("bootstrap_value", bootstrap_value, tuple(values.shape[1:]))
    ratio = log_ratio.exp()
    rho = ratio.clamp(max=rho_max).mul_(has_delta)
    end = bootstrap_value.unsqueeze(0)
    surplus = rewards - values  # the part of delta_t and A_t that no later row changes
    next_values = torch.cat((values[1:], end))
    excess = discounted_suffix_sums(
        torch.addcmul(surplus, discounts, next_values).mul_(rho), ratio.clamp_(max=c_max).mul_(discounts)
    )  # v_t - V(x_t)
    targets = values + excess
    next_targets = torch.cat((targets[1:], end))
    return VtraceResult(targets, torch.addcmul(surplus, discounts, next_targets).mul_(rho))
