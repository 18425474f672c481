"""The backward linear recursion that return estimators have in common."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_suffix_sums(deltas: Tensor, decays: Tensor) -> Tensor:
    """Solve ``x_t = delta_t + decay_t * x_{t+1}`` with ``x_T = 0``, for all t at once.

    Spans of rows are joined to spans twice as long: after k rounds a row holds the sum over its next 2^k rows, so
    log2(T) rounds of two operations replace a loop over T. Rounding differs from the loop's in the last digits.

    Args:
        deltas: [T, B].
        decays: [T, B], not above about 2, so that products over a trajectory stay finite.

    Returns:
        [T, B].
    """
    sums, span, steps = deltas, 1, len(deltas)
    while span < steps:
        sums = torch.cat((torch.addcmul(sums[:-span], decays[:-span], sums[span:]), sums[-span:]))
        if 2 * span < steps:
            # The decay of a span that reaches past the end is never used again; its rows only keep the shape.
            decays = torch.cat((decays[:-span] * decays[span:], decays[-span:]))
        span *= 2
    return sums
