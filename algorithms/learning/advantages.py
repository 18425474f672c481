"""Means over valid rows, and advantages put on one scale."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_weights(valid: Tensor) -> Tensor:
    """1/n on each of n valid rows and 0 elsewhere; 0 everywhere when no row is valid.

    Computed once per minibatch, it makes every mean one product and one sum.

    Args:
        valid: [T, B] bool.
    """
    return valid / valid.sum().clamp(min=1)


def masked_mean(x: Tensor, weights: Tensor) -> Tensor:
    """Mean over the valid rows; 0 with zero gradient when there are none.

    Args:
        x: [T, B], finite also on masked rows.
        weights: [T, B] as made by `mean_weights`.
    """
    return (x * weights).sum()


@torch.no_grad()
def normalized_advantages(
    advantages: Tensor, valid: Tensor, weights: Tensor, least_spread: Tensor | None = None
) -> Tensor:
    """Shift and scale to mean 0 and standard deviation 1 over the valid rows; 0 on the others.

    With `least_spread`::

        A' = (A - mean(A)) / max(std(A), least_spread)

    A spread that is only the rounding error of the mean is not blown up: equal advantages become 0, and so does a
    single one.

    Args:
        advantages: [T, B], finite also on masked rows.
        valid: [T, B] bool.
        weights: [T, B] as made by `mean_weights` of `valid`.
        least_spread: scalar, not negative; lower bound of the divisor, in units of reward.
    """
    mean = masked_mean(advantages, weights)
    centred = (advantages - mean) * valid
    spread = masked_mean(centred.square(), weights).sqrt()
    # float32 carries a relative error of 1e-7; sums over a batch lose another digit or two.
    is_spread = spread > 1e-5 * mean.abs()
    if least_spread is not None:
        spread = torch.maximum(spread, least_spread)
    return centred * is_spread / spread.clamp(min=1e-30)
