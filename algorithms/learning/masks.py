"""What the flags of a batch mean for learning; the one place that decides it.

Letters as in `batch`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from appo.algorithms.learning.shapes import require_shape


class Structure(NamedTuple):
    """How rows hang together. Nothing here carries a gradient."""

    valid: Tensor  # [T, B] bool, the row is a decision of this policy: it has a ratio and enters the losses
    discounts: Tensor  # [T, B] float, gamma where the same episode continues in row t+1, 0 where it does not
    has_delta: Tensor  # [T, B] float, 0: nothing that followed the row is known, so its target is V itself
    resets: Tensor  # [T+1, B], non-zero: the recurrent state is zero before the row


def trajectory_structure(
    is_first: Tensor, is_last: Tensor, active: Tensor, own: Tensor, terminated: Tensor, *, gamma: float
) -> Structure:
    """Derive masks, discounts and resets from the flags of a batch.

    * A terminated row is a decision with nothing after it: discount 0.
    * A truncated row is an ordinary decision, because the observation that followed it occupies the next row. That
      next row is `is_last`: no decision, discount 0, no delta. So the truncated row bootstraps with exactly the value
      of what the agent saw last.
    * A row whose successor begins an episode although nothing ended it (its environment failed and was built anew) is
      treated as the last: what would have followed is unknown.
    * An inactive row inside an episode is no decision, but rewards and values pass through it.
    * Another policy's row is no decision of this one. Policies change only where an episode begins, and by the
      rules above nothing flows across such a row, in either direction.

    Args:
        is_first: [T+1, B] uint8, the observation is the first of an episode.
        is_last: [T+1, B] uint8, the observation is the last of a truncated episode.
        active: [T+1, B] uint8, the agent acts.
        own: [T+1, B] bool, this policy plays.
        terminated: [T, B] uint8, the task ended the episode after the action.
        gamma: discount per step.

    Raises:
        ValueError: the shapes do not agree.
    """
    steps, columns = terminated.shape
    for name, flag in {"is_first": is_first, "is_last": is_last, "active": active, "own": own}.items():
        require_shape(name, flag, (steps + 1, columns))
    ended = terminated.bool()
    cut = is_last[:-1].bool() | (is_first[1:].bool() & ~ended)
    valid = active[:-1].bool() & own[:-1].bool() & ~cut
    dtype = torch.get_default_dtype()
    return Structure(valid, (~(cut | ended)).to(dtype) * gamma, (~cut).to(dtype), is_first)
