"""What the learner needs of a model, stated without importing one.

Letters:  T' = rows of an unroll,  N = trajectories or chunks side by side,  H, W, P as in `batch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor, nn


class UnrollOutput(Protocol):
    """What a model says about each row."""

    @property
    def parameters(self) -> Tensor:
        """[T', N, P] of the action distribution, action masks already inside."""

    @property
    def values(self) -> Tensor:
        """[T', N] in normalised units when the model has a returns normaliser, else in units of reward."""


class Distribution(Protocol):
    """Formulas of the action distribution; every result has the leading shape of its arguments."""

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Log-probability of the joint action [..., W] under [..., P]."""

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy in nats."""

    def kl(self, p_parameters: Tensor, q_parameters: Tensor) -> Tensor:
        """KL(p || q) in nats."""

    def symmetric_kl_to_uniform(self, parameters: Tensor) -> Tensor:
        """Mean of both KL divergences between the policy and the least committed one."""


class ReturnsNormalizer(Protocol):
    """Units in which values are learned."""

    @property
    def is_new(self) -> bool:
        """They are still those of the rewards: no returns have been seen."""

    def normalize(self, x: Tensor) -> Tensor:
        """From units of reward to the critic's units."""

    def denormalize(self, x: Tensor) -> Tensor:
        """From the critic's units to units of reward."""


class Model(Protocol):
    """An actor-critic that can be trained."""

    @property
    def distribution(self) -> Distribution:
        """The formulas for `UnrollOutput.parameters`."""

    @property
    def returns_normalizer(self) -> ReturnsNormalizer | None:
        """None: values are in units of reward."""

    def unroll(self, observations: dict[str, Tensor], state: Tensor, is_first: Tensor) -> UnrollOutput:
        """Run [T', N, ...] observations from the state [N, H]; the state is zero before each `is_first` row."""

    def update_observation_normalizer(self, observations: dict[str, Tensor], mask: Tensor) -> None:
        """Take in the observations [T', N, ...] whose mask [T', N] is set, if they are normalised at all."""

    def update_returns_normalizer(self, returns: Tensor, mask: Tensor) -> None:
        """Take in the value targets [T, B] whose mask is set, if normalised; values stay, but for the first time."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimizer changes."""
