"""The distribution of an action with any number of parts, by hand: plain tensor maths, no object per call.

All discrete leaves are handled as one array of logits [..., L, A] whose shorter leaves are padded with forbidden
choices, so that no loop runs over leaves. The parts of an action are independent given the parameters: log
probabilities, entropies and divergences are sums over leaves and numbers.

A forbidden choice has the logit FORBIDDEN. Its probability is exactly 0 in float32, and because the constant is
finite every product with it is too: entropies, divergences and their gradients need no special case.

Shape letters:  W = numbers that store one action,  P = numbers that describe its distribution,  L = discrete leaves,
A = choices of the largest of them,  D = real numbers of all continuous leaves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from appo.algorithms.specs import ActionSpec

FORBIDDEN = -1e4  # far below any logit a network produces, and float32 still tells 1e-3 apart there
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class ActionDistribution(nn.Module):
    """Samples and scores actions [..., W] float32 from parameters [..., P]; has no weights of its own.

    Actions of continuous leaves are not clipped: the environment clips what it executes, the density stays that of
    what was sampled.
    """

    _logit_columns: Tensor  # [L * A] int64 into the parameters with one more column, which holds FORBIDDEN
    _mean_columns: Tensor  # [D] into the parameters
    _log_std_columns: Tensor  # [D]
    _discrete_columns: Tensor  # [L] into the action
    _continuous_columns: Tensor  # [D] into the action

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.spec = spec
        discrete = [leaf for leaf in spec.leaves if leaf.kind == "discrete"]
        self.num_discrete = len(discrete)
        self.num_choices = max((leaf.size for leaf in discrete), default=0)
        self.num_continuous = sum(leaf.size for leaf in spec.leaves if leaf.kind == "continuous")
        # Equal leaves in a row need no gathering: their logits are a view.
        self._is_regular = not self.num_continuous and all(leaf.size == self.num_choices for leaf in discrete)
        for name, columns in self._columns().items():
            self.register_buffer(name, torch.tensor(columns, dtype=torch.int64), persistent=False)

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """[..., P] -> random actions [..., W]; the generator lives on the parameters' device.

        With the same random numbers these are the actions of `sample_with_log_prob`.
        """
        parameters = parameters.detach()
        discrete = continuous = None
        if self.num_discrete:
            logits = self._logits(parameters)
            discrete = (logits - _exponential_logs(logits, generator)).argmax(-1)
        if self.num_continuous:
            mean, log_std = self._gaussian(parameters)
            continuous = torch.addcmul(mean, log_std.exp(), torch.empty_like(mean).normal_(generator=generator))
        return self._assemble(discrete, continuous)

    def sample_with_log_prob(
        self, parameters: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Random actions [..., W] and their `log_prob` [...], in one pass and without gradient."""
        parameters = parameters.detach()
        discrete = continuous = total = None
        if self.num_discrete:
            log_probs = self._log_probs(parameters)
            chosen = (log_probs - _exponential_logs(log_probs, generator)).argmax(-1, keepdim=True)
            discrete = chosen.squeeze(-1)
            total = _sum_over_leaves(log_probs.gather(-1, chosen).squeeze(-1))
        if self.num_continuous:
            mean, log_std = self._gaussian(parameters)
            noise = torch.empty_like(mean).normal_(generator=generator)
            continuous = torch.addcmul(mean, log_std.exp(), noise)
            total = _add(total, _log_density(noise, log_std))
        assert total is not None, "an action has at least one leaf"
        return self._assemble(discrete, continuous), total

    def mode(self, parameters: Tensor) -> Tensor:
        """[..., P] -> the most likely actions [..., W]."""
        parameters = parameters.detach()
        discrete = self._logits(parameters).argmax(-1) if self.num_discrete else None
        continuous = self._gaussian(parameters)[0] if self.num_continuous else None
        return self._assemble(discrete, continuous)

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """log p(action) of the joint action: [..., P], [..., W] -> [...].

        Raises:
            ValueError: the last dimensions are not P and W.
        """
        self._require_width("parameters", parameters, self.spec.num_parameters)
        self._require_width("actions", actions, self.spec.width)
        total: Tensor | None = None
        if self.num_discrete:
            chosen = self._discrete_actions(actions).long().unsqueeze(-1)
            total = _sum_over_leaves(self._log_probs(parameters).gather(-1, chosen).squeeze(-1))
        if self.num_continuous:
            mean, log_std = self._gaussian(parameters)
            deviation = (self._continuous_actions(actions) - mean) * torch.exp(-log_std)
            total = _add(total, _log_density(deviation, log_std))
        assert total is not None, "an action has at least one leaf"
        return total

    def entropy(self, parameters: Tensor) -> Tensor:
        """-E[log p]: [..., P] -> [...]; of the density where an action is continuous, so it may be negative."""
        self._require_width("parameters", parameters, self.spec.num_parameters)
        total = parameters.new_zeros(parameters.shape[:-1])
        if self.num_discrete:
            log_probs = self._log_probs(parameters)
            total = total - (log_probs.exp() * log_probs).sum((-2, -1))
        if self.num_continuous:
            _, log_std = self._gaussian(parameters)
            total = total + (log_std + (0.5 + _LOG_SQRT_2PI)).sum(-1)
        return total

    def kl(self, p_parameters: Tensor, q_parameters: Tensor) -> Tensor:
        """KL(p || q) = E_p[log p - log q]: [..., P], [..., P] -> [...]."""
        self._require_width("p_parameters", p_parameters, self.spec.num_parameters)
        self._require_width("q_parameters", q_parameters, self.spec.num_parameters)
        total = p_parameters.new_zeros(p_parameters.shape[:-1])
        if self.num_discrete:
            log_p, log_q = self._log_probs(p_parameters), self._log_probs(q_parameters)
            total = total + (log_p.exp() * (log_p - log_q)).sum((-2, -1))
        if self.num_continuous:
            p_mean, p_log_std = self._gaussian(p_parameters)
            q_mean, q_log_std = self._gaussian(q_parameters)
            square = (2.0 * (p_log_std - q_log_std)).exp() + ((p_mean - q_mean) * torch.exp(-q_log_std)).square()
            total = total + (q_log_std - p_log_std + 0.5 * (square - 1.0)).sum(-1)
        return total

    def symmetric_kl_to_uniform(self, parameters: Tensor) -> Tensor:
        """(KL(p || u) + KL(u || p)) / 2 to the policy that knows nothing: [..., P] -> [...].

        u is uniform over the allowed choices of a discrete leaf, and the unit Gaussian for each continuous number,
        whose policy units make [-1, 1] the action's range.
        """
        self._require_width("parameters", parameters, self.spec.num_parameters)
        total = parameters.new_zeros(parameters.shape[:-1])
        if self.num_discrete:
            log_probs = self._log_probs(parameters)
            allowed = self._logits(parameters) > 0.5 * FORBIDDEN
            uniform = allowed / allowed.sum(-1, keepdim=True)
            # log u cancels: both sums of (p - u) * log u are 0 where u is constant and p, u are 0 elsewhere.
            total = total + 0.5 * ((log_probs.exp() - uniform) * log_probs).sum((-2, -1))
        if self.num_continuous:
            mean, log_std = self._gaussian(parameters)
            variance, inverse = (2.0 * log_std).exp(), (-2.0 * log_std).exp()
            squares = variance + mean.square() + (1.0 + mean.square()) * inverse
            total = total + 0.25 * (squares - 2.0).sum(-1)
        return total

    def _columns(self) -> dict[str, list[int]]:
        columns: dict[str, list[int]] = {
            "_logit_columns": [],
            "_mean_columns": [],
            "_log_std_columns": [],
            "_discrete_columns": [],
            "_continuous_columns": [],
        }
        parameter = action = 0
        for leaf in self.spec.leaves:
            if leaf.kind == "discrete":
                padding = [self.spec.num_parameters] * (self.num_choices - leaf.size)
                columns["_logit_columns"] += [*range(parameter, parameter + leaf.size), *padding]
                columns["_discrete_columns"].append(action)
                parameter, action = parameter + leaf.size, action + 1
            else:
                columns["_mean_columns"] += range(parameter, parameter + leaf.size)
                columns["_log_std_columns"] += range(parameter + leaf.size, parameter + 2 * leaf.size)
                columns["_continuous_columns"] += range(action, action + leaf.size)
                parameter, action = parameter + 2 * leaf.size, action + leaf.size
        return columns

    def _logits(self, parameters: Tensor) -> Tensor:
        """[..., L, A]."""
        if not self._is_regular:
            forbidden = parameters.new_full((*parameters.shape[:-1], 1), FORBIDDEN)
            parameters = torch.cat((parameters, forbidden), -1).index_select(-1, self._logit_columns)
        return parameters.unflatten(-1, (self.num_discrete, self.num_choices))

    def _log_probs(self, parameters: Tensor) -> Tensor:
        return torch.log_softmax(self._logits(parameters), -1)

    def _gaussian(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log standard deviations, [..., D] each."""
        if len(self.spec.leaves) == 1:
            mean, log_std = parameters.chunk(2, -1)
            return mean, log_std
        return parameters.index_select(-1, self._mean_columns), parameters.index_select(-1, self._log_std_columns)

    def _discrete_actions(self, actions: Tensor) -> Tensor:
        return actions.index_select(-1, self._discrete_columns) if self.num_continuous else actions

    def _continuous_actions(self, actions: Tensor) -> Tensor:
        return actions.index_select(-1, self._continuous_columns) if self.num_discrete else actions

    def _assemble(self, discrete: Tensor | None, continuous: Tensor | None) -> Tensor:
        """[..., W] float32 from choices [..., L] and numbers [..., D], one of them at least."""
        if continuous is None:
            assert discrete is not None, "an action has at least one leaf"
            return discrete.float()
        if discrete is None:
            return continuous
        actions = continuous.new_empty((*continuous.shape[:-1], self.spec.width))
        actions.index_copy_(-1, self._continuous_columns, continuous)
        return actions.index_copy_(-1, self._discrete_columns, discrete.to(actions.dtype))

    @staticmethod
    def _require_width(name: str, tensor: Tensor, width: int) -> None:
        if tensor.shape[-1] != width:
            raise ValueError(f"{name} is {tuple(tensor.shape)}; the last dimension has {width} numbers")


def _exponential_logs(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """log E of exponential E: for the maximum of logits - log E, since -log E is Gumbel distributed (Gumbel-max).

    The floor bounds it by -69, so that no forbidden choice can win.
    """
    return torch.empty_like(like).exponential_(generator=generator).clamp_(min=1e-30).log_()


def _log_density(deviation: Tensor, log_std: Tensor) -> Tensor:
    """Of independent Gaussians: (x - mean) / std [..., D] and log std [..., D] -> [...]."""
    return (-0.5 * deviation.square() - log_std - _LOG_SQRT_2PI).sum(-1)


def _sum_over_leaves(x: Tensor) -> Tensor:
    """[..., L] -> [...]; the usual single leaf costs no reduction."""
    return x.squeeze(-1) if x.shape[-1] == 1 else x.sum(-1)


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part
