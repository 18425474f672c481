"""One forward pass over a minibatch: returns, advantages and every term of the loss.

Letters as in `minibatches`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from appo.algorithms.learning.advantages import masked_mean, mean_weights, normalized_advantages
from appo.algorithms.learning.auxiliary_loss import AuxiliaryInputs, AuxiliaryResult
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.gae import gae
from appo.algorithms.learning.minibatches import Estimates, Minibatch
from appo.algorithms.learning.ppo_loss import exploration_loss, masked_log_ratio, policy_loss, value_loss
from appo.algorithms.learning.protocols import Model
from appo.algorithms.learning.vtrace import vtrace


class AuxiliaryTerm(NamedTuple):
    """The auxiliary loss of a run, its options bound."""

    name: str
    compute: Callable[[AuxiliaryInputs], AuxiliaryResult]


class Objective(NamedTuple):
    """What a forward pass gave. Only `loss` carries a gradient."""

    loss: Tensor  # scalar
    terms: dict[str, Tensor]  # metric name -> scalar; the losses among them are weighted and sum to `loss`
    log_ratio: Tensor  # [R, M] 0 where nobody decided
    parameters: Tensor  # [R, M, P]
    values: Tensor  # [R, M] in units of reward
    estimates: Estimates  # advantages before normalisation
    weights: Tensor  # [R, M] 1/n on the n valid rows
    kl: Tensor | None  # [R, M] KL(behaviour || target) where the loss or the caller asked for it


def evaluate(
    model: Model,
    minibatch: Minibatch,
    config: LearningConfig,
    auxiliary: AuxiliaryTerm | None = None,
    *,
    with_kl: bool = False,
) -> Objective:
    """Run the model and build the loss.

    Args:
        model: its weights receive the gradient.
        minibatch: what to learn from; without estimates, they are made of this pass's own values.
        config: coefficients and clips.
        auxiliary: a further term.
        with_kl: compute `kl` even when the loss does not need it.
    """
    rows = len(minibatch.actions)
    output = model.unroll(minibatch.unrolled_observations, minibatch.state, minibatch.unrolled_is_first)
    parameters, values = output.parameters[:rows], output.values[:rows]
    log_ratio = masked_log_ratio(
        model.distribution.log_prob(parameters, minibatch.actions), minibatch.behaviour_log_prob, minibatch.acted
    )
    all_values = _denormalize(model, output.values.detach())
    estimates = _estimates(minibatch, log_ratio.detach(), all_values, config)
    weights = mean_weights(minibatch.valid)
    losses = _actor_critic_losses(model, minibatch, config, (parameters, values, log_ratio), estimates, weights)
    kl = None
    if with_kl or config.kl_loss_coeff > 0:
        with torch.set_grad_enabled(config.kl_loss_coeff > 0):
            kl = model.distribution.kl(minibatch.behaviour_parameters, parameters)
        if config.kl_loss_coeff > 0:
            losses["kl_loss"] = config.kl_loss_coeff * masked_mean(kl, weights)
    metrics: dict[str, Tensor] = {}
    if auxiliary is not None:
        result = auxiliary.compute(AuxiliaryInputs(minibatch, parameters, values, model.distribution))
        if result.loss.ndim:
            raise ValueError(f"a loss should be a scalar, a mean over rows; it has the shape {list(result.loss.shape)}")
        losses[f"aux_{auxiliary.name}"] = result.loss
        metrics = {f"aux_{auxiliary.name}_{key}": value for key, value in result.metrics.items()}
    return Objective(
        loss=torch.stack(tuple(losses.values())).sum(),
        terms=metrics | {name: loss.detach() for name, loss in losses.items()},
        log_ratio=log_ratio.detach(),
        parameters=parameters.detach(),
        values=all_values[:rows],
        estimates=estimates,
        weights=weights,
        kl=None if kl is None else kl.detach(),
    )


@torch.no_grad()
def collected_returns(data: Minibatch) -> Tensor:
    """[T, B] discounted rewards from each row to the end of its episode or trajectory, without the critic."""
    nothing = torch.zeros_like(data.rewards)
    return gae(data.rewards, nothing, nothing[0], data.discounts, data.has_delta, gae_lambda=1.0).value_targets


@torch.no_grad()
def estimate_ahead(model: Model, data: Minibatch, config: LearningConfig) -> Estimates:
    """GAE of a whole iteration under the weights it begins with, before any gradient step changes them."""
    output = model.unroll(data.unrolled_observations, data.state, data.unrolled_is_first)
    return _gae_estimates(data, _denormalize(model, output.values), config)


def _estimates(minibatch: Minibatch, log_ratio: Tensor, values: Tensor, config: LearningConfig) -> Estimates:
    if minibatch.estimates is not None:
        return minibatch.estimates
    if not config.with_vtrace:
        return _gae_estimates(minibatch, values, config)
    result = vtrace(
        log_ratio,
        minibatch.rewards,
        values[:-1],
        values[-1],
        minibatch.discounts,
        minibatch.has_delta,
        rho_max=config.vtrace_rho,
        c_max=config.vtrace_c,
    )
    return Estimates(result.value_targets, result.advantages)


def _gae_estimates(minibatch: Minibatch, values: Tensor, config: LearningConfig) -> Estimates:
    result = gae(
        minibatch.rewards,
        values[:-1],
        values[-1],
        minibatch.discounts,
        minibatch.has_delta,
        gae_lambda=config.gae_lambda,
    )
    return Estimates(result.value_targets, result.advantages)


def _actor_critic_losses(
    model: Model,
    minibatch: Minibatch,
    config: LearningConfig,
    forward: tuple[Tensor, Tensor, Tensor],
    estimates: Estimates,
    weights: Tensor,
) -> dict[str, Tensor]:
    parameters, values, log_ratio = forward
    least_spread = None
    if config.advantage_noise > 0:
        least_spread = config.advantage_noise * masked_mean(estimates.value_targets, weights).abs()
    advantages = normalized_advantages(estimates.advantages, minibatch.valid, weights, least_spread)
    targets, behaviour_values = estimates.value_targets, minibatch.behaviour_value
    if model.returns_normalizer is not None:
        targets = model.returns_normalizer.normalize(targets)
        behaviour_values = model.returns_normalizer.normalize(behaviour_values)
    losses = {
        "policy_loss": policy_loss(log_ratio, advantages, weights, clip_range=config.clip_range),
        "value_loss": config.value_loss_coeff
        * value_loss(values, behaviour_values, targets, weights, clip_value=config.ppo_clip_value),
    }
    if config.exploration_loss_coeff > 0:
        exploration = exploration_loss(config.exploration_loss, model.distribution, parameters, weights)
        losses["exploration_loss"] = config.exploration_loss_coeff * exploration
    return losses


def _denormalize(model: Model, values: Tensor) -> Tensor:
    return values if model.returns_normalizer is None else model.returns_normalizer.denormalize(values)
