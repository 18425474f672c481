"""The terms of the PPO loss: pure functions from rows to a scalar.

Each is a mean over the valid rows, given by `weights` of `advantages.mean_weights`; over none it is 0 and has no
gradient. What stands on masked rows has no influence as long as it is finite.

Sources: Schulman et al., "Proximal policy optimization algorithms", 2017, arXiv:1707.06347, equations (7) and (8), with
a ratio range that is symmetric in log space; the clipped value loss follows its authors' published implementation.

Letters as in `batch`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from appo.algorithms.learning.advantages import masked_mean
from appo.algorithms.learning.protocols import Distribution
from appo.algorithms.learning.shapes import require_same_shape

# e^20 is far outside any trust region; without the bound one impossible action makes a whole batch infinite.
_LARGEST_LOG_RATIO = 20.0


def masked_log_ratio(log_prob: Tensor, behaviour_log_prob: Tensor, acted: Tensor) -> Tensor:
    """log pi/mu of the action taken, bounded; 0 with no gradient where nobody decided.

    Args:
        log_prob: [T, B] under the learner's weights.
        behaviour_log_prob: [T, B] under the weights that acted.
        acted: [T, B] bool, the row is a decision of this policy.

    Raises:
        ValueError: the shapes do not agree.
    """
    require_same_shape(log_prob=log_prob, behaviour_log_prob=behaviour_log_prob, acted=acted)
    log_ratio = (log_prob - behaviour_log_prob).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return torch.where(acted, log_ratio, 0.0)


def policy_loss(log_ratio: Tensor, advantages: Tensor, weights: Tensor, *, clip_range: tuple[float, float]) -> Tensor:
    """``-mean min(w A, clip(w, low, high) A)`` with ``w = exp(log_ratio)``.

    Args:
        log_ratio: [T, B] with gradient.
        advantages: [T, B] constants.
        weights: [T, B] of the mean.
        clip_range: low and high.

    Raises:
        ValueError: the shapes do not agree.
    """
    require_same_shape(log_ratio=log_ratio, advantages=advantages, weights=weights)
    low, high = clip_range
    ratio = log_ratio.exp()
    scaled = advantages * weights  # weights are not negative, so they may enter before the minimum
    return -torch.minimum(ratio * scaled, ratio.clamp(low, high) * scaled).sum()


def value_loss(
    values: Tensor, behaviour_values: Tensor, targets: Tensor, weights: Tensor, *, clip_value: float
) -> Tensor:
    """``mean max((v - target)^2, (mu_v + clip(v - mu_v, -c, c) - target)^2)``: the full square, without a half.

    Args:
        values: [T, B] v, with gradient.
        behaviour_values: [T, B] mu_v, what the critic said when the agent acted; in the same units.
        targets: [T, B] constants; in the same units.
        weights: [T, B] of the mean.
        clip_value: c.

    Raises:
        ValueError: the shapes do not agree.
    """
    require_same_shape(values=values, behaviour_values=behaviour_values, targets=targets, weights=weights)
    clipped = behaviour_values + (values - behaviour_values).clamp(-clip_value, clip_value)
    return masked_mean(torch.maximum((values - targets).square(), (clipped - targets).square()), weights)


def exploration_loss(kind: str, distribution: Distribution, parameters: Tensor, weights: Tensor) -> Tensor:
    """Smaller for a more random policy: ``-mean entropy``, or the mean symmetric KL divergence from uniform.

    Args:
        kind: "entropy" or "symmetric_kl".
        distribution: the formulas.
        parameters: [T, B, P] with gradient.
        weights: [T, B] of the mean.
    """
    if kind == "entropy":
        return -masked_mean(distribution.entropy(parameters), weights)
    if kind == "symmetric_kl":
        return masked_mean(distribution.symmetric_kl_to_uniform(parameters), weights)
    raise ValueError(f"exploration_loss={kind!r}; allowed: entropy, symmetric_kl")
