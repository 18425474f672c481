"""The gradient of a minibatch: forward pass, loss and backward pass, step by step or played from a recording.

Letters as in `minibatches`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from appo.algorithms.learning.advantages import masked_mean
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.minibatches import Chosen, Minibatch, minibatch_of
from appo.algorithms.learning.objective import AuxiliaryTerm, Objective, evaluate
from appo.algorithms.learning.protocols import Model
from appo.algorithms.recording import CannotBeRecordedError, Recording

log = logging.getLogger(__name__)
OnPart = Callable[[str], None]


class Gradient(NamedTuple):
    """What came of a minibatch; the gradient itself lies in the weights."""

    minibatch: Minibatch
    objective: Objective
    norm: Tensor  # scalar, over all weights
    numbers: Tensor  # [3] loss, norm, and the mean KL divergence or NaN: to be fetched with one wait


class _Recorded(NamedTuple):
    config: LearningConfig
    auxiliary: AuxiliaryTerm | None
    gradient: Recording[tuple[Gradient, list[Tensor | None]]]  # with the gradient of each weight


class Gradients:
    """Computes the gradients of one minibatch after the other."""

    def __init__(
        self, model: Model, weights: Sequence[nn.Parameter], device: torch.device, *, is_recorded: bool
    ) -> None:
        """Of these weights, on a device; from recordings if the device can play them."""
        self._model, self._weights, self._device = model, weights, device
        self._is_recorded = is_recorded
        self._recorded: _Recorded | None = None
        self._data: Minibatch | None = None
        self._width = 0  # columns of a minibatch
        self._chosen: Tensor | None = None  # [M] the columns that a recording reads; None: all

    def begin(self, data: Minibatch, count: int) -> None:
        """Take all columns of an iteration, which will be cut into `count` minibatches."""
        if not self._is_recorded:
            self._data = data
            return
        there, given = self._data.tensors() if self._data else [], data.tensors()
        width = len(data.columns) // count
        if list(map(_make, there)) != list(map(_make, given)) or self._width != width:
            self._recorded, self._width = None, width
            self._data = data.copy()
            self._chosen = None if count == 1 else data.columns[:width].clone()
        else:
            torch._foreach_copy_(there, given)

    def compute(
        self,
        chosen: Chosen,
        config: LearningConfig,
        auxiliary: AuxiliaryTerm | None,
        *,
        with_kl: bool,
        on_part: Callable[[str], None],
    ) -> Gradient:
        """Put the gradient of some columns into the weights, which have none.

        Args:
            chosen: the columns.
            config: coefficients and clips.
            auxiliary: a further term of the loss.
            with_kl: compute the KL divergence even where the loss does not need it.
            on_part: called with "loss" when that is done, before the backward pass.

        Returns:
            What the next call may overwrite.
        """
        data = self._data
        assert data is not None, "an iteration begins with `begin`"
        if self._is_recorded:
            try:
                return self._play(data, chosen, config, auxiliary, on_part)
            except CannotBeRecordedError as error:
                log.warning("gradients are handed to the GPU step by step, which is slower: %s", error)
                self._is_recorded = False
        return self._compute(minibatch_of(data, chosen), config, auxiliary, with_kl=with_kl, on_part=on_part)

    def kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """What a gradient came with, to be read after the next one."""
        return [tensor.clone() for tensor in tensors] if self._is_recorded else tensors

    def _play(
        self,
        data: Minibatch,
        chosen: Chosen,
        config: LearningConfig,
        auxiliary: AuxiliaryTerm | None,
        on_part: Callable[[str], None],
    ) -> Gradient:
        if self._chosen is not None and chosen is not None:
            self._chosen.copy_(torch.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen)
        if self._recorded is None or (self._recorded.config, self._recorded.auxiliary) != (config, auxiliary):
            self._recorded = None  # its memory first
            work = partial(self._anew, data, config, auxiliary)
            self._recorded = _Recorded(config, auxiliary, Recording(work, self._device))
        gradient, of_weights = self._recorded.gradient.play()
        for weight, of_weight in zip(self._weights, of_weights, strict=True):
            weight.grad = of_weight
        on_part("loss")
        return gradient

    def _anew(
        self, data: Minibatch, config: LearningConfig, auxiliary: AuxiliaryTerm | None
    ) -> tuple[Gradient, list[Tensor | None]]:
        """What is recorded."""
        for weight in self._weights:
            weight.grad = None
        minibatch = minibatch_of(data, self._chosen)
        gradient = self._compute(minibatch, config, auxiliary, with_kl=True, on_part=lambda part: None)
        return gradient, [weight.grad for weight in self._weights]

    def _compute(
        self,
        minibatch: Minibatch,
        config: LearningConfig,
        auxiliary: AuxiliaryTerm | None,
        *,
        with_kl: bool,
        on_part: Callable[[str], None],
    ) -> Gradient:
        objective = evaluate(self._model, minibatch, config, auxiliary, with_kl=with_kl)
        on_part("loss")
        objective.loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([weight.grad for weight in self._weights if weight.grad is not None])
        kl = norm.new_tensor(math.nan) if objective.kl is None else masked_mean(objective.kl, objective.weights)
        return Gradient(minibatch, objective, norm, torch.stack((objective.loss.detach(), norm, kl)))


def _make(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
