"""Action smoothness: successive observations should not lead to very different policies.

Steadier actions matter where jitter wears a motor or breaks transfer to a real machine.

Source: Mysore et al., "Regularizing action policies for smooth control", 2021, arXiv:2012.06644, the temporal term,
with a KL divergence as the distance so that it applies to every kind of action.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from appo.algorithms.learning.advantages import masked_mean, mean_weights
from appo.algorithms.learning.auxiliary_loss import AuxiliaryInputs, AuxiliaryLoss, AuxiliaryResult
from appo.utils.options import option

# Two rows whose action masks differ are as far apart as the constant that stands for "forbidden", which is of no
# interest here; policies over the same choices never come near this.
_DIFFERENT_CHOICES = 1e3


@dataclass(frozen=True)
class ActionSmoothnessConfig:
    """How strongly successive policies are pulled together."""

    action_smoothness_coeff: float = option(
        0.01,
        "Weight of the action smoothness loss. Higher gives calmer and slower reactions",
        minimum=0.0,
        mutate="scale",
    )


def action_smoothness(inputs: AuxiliaryInputs, config: ActionSmoothnessConfig) -> AuxiliaryResult:
    """``coeff * mean KL(pi(.|x_t) || pi(.|x_{t+1}))`` over neighbouring decisions of one episode.

    Raises:
        ValueError: the minibatch has single rows, which have no neighbours.
    """
    batch = inputs.minibatch
    if len(batch.valid) < 2:
        raise ValueError("auxiliary_loss=action_smoothness compares neighbouring rows; set --recurrence=-1")
    now, following = inputs.parameters[:-1], inputs.parameters[1:]
    distance = inputs.distribution.kl(now, following)
    is_same_episode = batch.is_first[1:] == 0
    is_pair = batch.valid[:-1] & batch.valid[1:] & is_same_episode & (distance.detach() < _DIFFERENT_CHOICES)
    distance = torch.where(is_pair, distance, 0.0)
    mean = masked_mean(distance, mean_weights(is_pair))
    return AuxiliaryResult(config.action_smoothness_coeff * mean, {"distance": mean.detach()})


LOSS = AuxiliaryLoss(config=ActionSmoothnessConfig, compute=action_smoothness)
