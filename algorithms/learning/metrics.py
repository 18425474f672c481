"""The `train/` statistics of an iteration.

Everything is computed on the learner's device and fetched with a single wait. Means, spreads and losses describe the
last minibatch; the extremes of the ratio cover all minibatches; `batch_metrics` the whole batch. Masked rows count
nowhere. Losses, means, spreads and extremes of nothing but masked rows, as after a policy has become another one, are
NaN, which `to_floats` leaves out.

Letters as in `minibatches`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from appo.algorithms.learning.advantages import masked_mean
from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.minibatches import Minibatch
from appo.algorithms.learning.objective import Objective
from appo.algorithms.learning.protocols import Distribution
from appo.algorithms.specs import ActionSpec


class ContinuousColumns:
    """Where the means and log standard deviations of continuous actions stand among P parameters."""

    def __init__(self, spec: ActionSpec | None) -> None:
        """None: nothing is known of the actions, so nothing is reported."""
        self.means: list[int] = []
        self.log_stddevs: list[int] = []
        start = 0
        for leaf in spec.leaves if spec is not None else ():
            if leaf.kind == "continuous":
                self.means += range(start, start + leaf.size)
                self.log_stddevs += range(start + leaf.size, start + 2 * leaf.size)
            start += leaf.size if leaf.kind == "discrete" else 2 * leaf.size


@torch.no_grad()
def batch_metrics(batch: Batch, data: Minibatch, policy_version: int) -> dict[str, Tensor]:
    """Lag, ownership and masks of a whole batch.

    Args:
        batch: for the versions and owners of its rows.
        data: the same rows with their masks.
        policy_version: of the weights that the iteration begins with.
    """
    lag = (policy_version - batch.policy_version).float()
    lowest, highest = _masked_range(lag, data.acted, nothing=0.0)
    return {
        "version_diff_min": lowest,
        "version_diff_avg": (lag * data.acted).sum() / data.acted.sum().clamp(min=1),
        "version_diff_max": highest,
        "same_policy_fraction": batch.own[:-1].float().mean(),
        "valids_fraction": data.valid.float().mean(),
        "discarded_rollouts": (data.acted & ~data.valid).any(dim=0).sum(),
    }


@torch.no_grad()
def minibatch_metrics(
    objective: Objective,
    minibatch: Minibatch,
    config: LearningConfig,
    distribution: Distribution,
    columns: ContinuousColumns,
) -> dict[str, Tensor]:
    """Losses and the policy's change on one minibatch; NaN without a valid row.

    `objective` must hold the KL divergence.
    """
    assert objective.kl is not None, "ask `evaluate` for the KL divergence of a minibatch that is reported"
    low, high = config.clip_range
    ratio = objective.log_ratio.exp()
    value_delta = (objective.values - minibatch.behaviour_value).abs()
    rows = {
        "entropy": distribution.entropy(objective.parameters),
        "value": objective.values,
        "value_delta": value_delta,
        "kl_divergence": objective.kl,
        "ratio_mean": ratio,
        "fraction_clipped": ((ratio < low) | (ratio > high)).to(ratio.dtype),
    } | _continuous_rows(objective.parameters, columns)
    means = (torch.stack(tuple(rows.values())) * objective.weights).sum(dim=(1, 2))
    advantages = objective.estimates.advantages
    adv_min, adv_max = _masked_range(advantages, minibatch.valid, nothing=0.0)
    centred = advantages - masked_mean(advantages, objective.weights)
    metrics = (
        objective.terms
        | dict(zip(rows, means.unbind(), strict=True))
        | {
            "loss": objective.loss.detach(),
            "adv_min": adv_min,
            "adv_max": adv_max,
            "adv_std": masked_mean(centred.square(), objective.weights).sqrt(),
            "value_delta_max": _masked_range(value_delta, minibatch.valid, nothing=0.0)[1],
            "kl_divergence_max": _masked_range(objective.kl, minibatch.valid, nothing=0.0)[1],
        }
    )
    nan_if_none = torch.where(minibatch.valid.any(), 0.0, math.nan)
    return {name: value + nan_if_none for name, value in metrics.items()}


@torch.no_grad()
def ratio_range(log_ratios: list[Tensor], valids: list[Tensor]) -> dict[str, Tensor]:
    """Smallest and largest pi/mu over all minibatches of an iteration, given as [R, M] each."""
    lowest, highest = _masked_range(torch.stack(log_ratios), torch.stack(valids), nothing=math.nan)
    return {"ratio_min": lowest.exp(), "ratio_max": highest.exp()}


def adam_metrics(second_moments: list[Tensor]) -> dict[str, Tensor]:
    """The largest entry of Adam's second moments; a jump announces a blow-up."""
    return {"adam_max_second_moment": torch.stack([moment.amax() for moment in second_moments]).amax()}


def to_floats(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Fetch all scalars at once; those that are not finite are left out."""
    values: Iterable[float] = torch.stack([value.float() for value in metrics.values()]).tolist()
    return {name: value for name, value in zip(metrics, values, strict=True) if math.isfinite(value)}


def _masked_range(x: Tensor, valid: Tensor, *, nothing: float) -> tuple[Tensor, Tensor]:
    is_any = valid.any()
    lowest, highest = torch.where(valid, x, math.inf).amin(), torch.where(valid, x, -math.inf).amax()
    return torch.where(is_any, lowest, nothing), torch.where(is_any, highest, nothing)


def _continuous_rows(parameters: Tensor, columns: ContinuousColumns) -> dict[str, Tensor]:
    if not columns.means:
        return {}
    return {
        "action_mean": parameters[..., columns.means].mean(dim=-1),
        "action_stddev": parameters[..., columns.log_stddevs].exp().mean(dim=-1),
    }
