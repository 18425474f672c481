"""The last layers: features to the parameters of an action distribution, and to a value.

Shape letters:  F = features,  P = numbers that describe an action distribution,  M = entries of an action mask.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from appo.algorithms.models.action_distributions import FORBIDDEN
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.layers import head
from appo.algorithms.specs import ActionSpec

LOG_STD_RANGE = (-5.0, 2.0)  # deviations from 0.007 to 7.4, where the action's range is [-1, 1]
_MIDDLE = 0.5 * (LOG_STD_RANGE[0] + LOG_STD_RANGE[1])
_HALF = 0.5 * (LOG_STD_RANGE[1] - LOG_STD_RANGE[0])
_ACTOR_GAIN = 0.01  # a nearly uniform first policy, whatever the features
_CRITIC_GAIN = 1.0


def bounded_log_std(raw: Tensor) -> Tensor:
    """Any number -> a log standard deviation within LOG_STD_RANGE; smooth, so that no gradient is cut off."""
    return _MIDDLE + _HALF * torch.tanh((raw - _MIDDLE) / _HALF)


def raw_log_std(stddev: float) -> float:
    """The inverse of `bounded_log_std` at log(stddev)."""
    return _MIDDLE + _HALF * math.atanh((math.log(stddev) - _MIDDLE) / _HALF)


class PolicyHead(nn.Module):
    """Features [..., F], and a mask [..., M] where there is one -> parameters [..., P].

    The choices that a mask forbids get the logit FORBIDDEN here, so acting and learning use the same
    parameters. A mask that allows no choice of a leaf, as in the rows of agents that do not act, allows all.
    """

    _order: Tensor  # [P] int64: where each parameter stands among the layer's outputs and then the learned log stds
    _is_log_std: Tensor  # [P] bool
    _logit_columns: Tensor  # [M] int64 into the parameters
    _leaf_of_logit: Tensor  # [M] int64

    def __init__(self, inputs: int, spec: ActionSpec, config: ModelConfig) -> None:
        super().__init__()
        kinds, leaf_of_logit = _column_kinds(spec)
        is_log_std = torch.tensor([kind == "log_std" for kind in kinds])
        is_learned = is_log_std & (not config.adaptive_stddev)
        self.layer = head(inputs, int((~is_learned).sum()), _ACTOR_GAIN, config)
        raw = raw_log_std(config.initial_stddev)
        self.layer.bias.data[is_log_std[~is_learned]] = raw
        num_learned = int(is_learned.sum())
        self.learned_log_std = nn.Parameter(torch.full((num_learned,), raw)) if num_learned else None
        self._has_log_stds = bool(is_log_std.any())
        self._num_leaves = max(leaf_of_logit, default=-1) + 1
        # Stable: the layer's outputs keep their order and come first, the learned ones follow.
        self.register_buffer("_order", is_learned.to(torch.uint8).argsort(stable=True).argsort(), persistent=False)
        self.register_buffer("_is_log_std", is_log_std, persistent=False)
        logits = [column for column, kind in enumerate(kinds) if kind == "logit"]
        self.register_buffer("_logit_columns", torch.tensor(logits, dtype=torch.int64), persistent=False)
        self.register_buffer("_leaf_of_logit", torch.tensor(leaf_of_logit, dtype=torch.int64), persistent=False)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """[..., F], [..., M] or None -> [..., P] float32."""
        return self.finish(self.layer(features).float(), mask)

    def finish(self, parameters: Tensor, mask: Tensor | None) -> Tensor:
        """What `layer` gave, and a mask -> [..., P]."""
        if self.learned_log_std is not None:
            learned = self.learned_log_std.expand(*parameters.shape[:-1], -1)
            parameters = torch.cat((parameters, learned), -1).index_select(-1, self._order)
        if self._has_log_stds:
            parameters = torch.where(self._is_log_std, bounded_log_std(parameters), parameters)
        if mask is not None:
            parameters = parameters.masked_fill(self._forbidden(mask), FORBIDDEN)
        return parameters

    def _forbidden(self, mask: Tensor) -> Tensor:
        """[..., M] -> [..., P] bool."""
        allowed = mask != 0
        num_allowed = torch.zeros((*mask.shape[:-1], self._num_leaves), device=mask.device)
        num_allowed.index_add_(-1, self._leaf_of_logit, allowed.float())
        forbidden = ~allowed & (num_allowed > 0).index_select(-1, self._leaf_of_logit)
        if not self._has_log_stds:
            return forbidden  # every parameter is a logit
        everywhere = torch.zeros((*mask.shape[:-1], len(self._order)), dtype=torch.bool, device=mask.device)
        return everywhere.index_copy_(-1, self._logit_columns, forbidden)


class ValueHead(nn.Module):
    """Features [..., F] -> values [...]."""

    def __init__(self, inputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.layer = head(inputs, 1, _CRITIC_GAIN, config)

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] -> [...] float32."""
        return self.layer(features).float().squeeze(-1)


class JoinedHeads(NamedTuple):
    """Policy and value head that read the same features, as one layer: one product instead of two.

    When learning, the gradients of the features are then one small product too, instead of two and their sum, which are
    as large as a layer's output.
    """

    policy: PolicyHead
    weight: Tensor  # [outputs of the policy's layer + 1, F]
    bias: Tensor

    @classmethod
    def of(cls, policy: PolicyHead, value_weight: Tensor, value_bias: Tensor) -> JoinedHeads:
        """For weights as they are now; of the value [1, F] and [1]."""
        weight = torch.cat((policy.layer.weight, value_weight))
        return cls(policy, weight, torch.cat((policy.layer.bias, value_bias)))

    def __call__(self, features: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """[..., F], [..., M] or None -> parameters [..., P] and values [...], float32."""
        both = nn.functional.linear(features, self.weight, self.bias).float()
        return self.policy.finish(both[..., :-1], mask), both[..., -1]


def _column_kinds(spec: ActionSpec) -> tuple[list[str], list[int]]:
    """What each of the P parameters is, and for each logit the number of its discrete leaf."""
    kinds: list[str] = []
    leaf_of_logit: list[int] = []
    num_discrete = 0
    for leaf in spec.leaves:
        if leaf.kind == "discrete":
            kinds += ["logit"] * leaf.size
            leaf_of_logit += [num_discrete] * leaf.size
            num_discrete += 1
        else:
            kinds += ["mean"] * leaf.size + ["log_std"] * leaf.size
    return kinds, leaf_of_logit
