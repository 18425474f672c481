"""The gradient of a minibatch: forward pass, loss and backward pass, computed eagerly or as a CUDA graph.

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

from appo.algorithms.cuda_graphs import CannotBeCapturedError, CapturedGraph
from appo.algorithms.learning.advantages import masked_mean
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.minibatches import Chosen, Minibatch, minibatch_of
from appo.algorithms.learning.objective import AuxiliaryTerm, Objective, evaluate
from appo.algorithms.learning.protocols import Model

log = logging.getLogger(__name__)
OnPart = Callable[[str], None]


class Gradient(NamedTuple):
    """What came of a minibatch; the gradient itself lies in the weights."""

    minibatch: Minibatch
    objective: Objective
    norm: Tensor  # scalar, over all weights
    numbers: Tensor  # [3] loss, norm, and the mean KL divergence or NaN: to be fetched with one wait


class _Captured(NamedTuple):
    config: LearningConfig
    auxiliary: AuxiliaryTerm | None
    graph: CapturedGraph[tuple[Gradient, list[Tensor | None]]]  # with the gradient of each weight


class Gradients:
    """Computes the gradients of one minibatch after the other."""

    def __init__(
        self, model: Model, weights: Sequence[nn.Parameter], device: torch.device, *, uses_cuda_graphs: bool
    ) -> None:
        """Of these weights, on a device; with graphs if that is a GPU."""
        self._model, self._weights, self._device = model, weights, device
        self._uses_cuda_graphs = uses_cuda_graphs
        self._captured: _Captured | None = None
        # What a graph reads: all columns of an iteration, and the numbers of those of a minibatch.
        self._data: Minibatch | None = None
        self._chosen: Tensor | None = None  # [M]; None: all

    def begin(self, data: Minibatch, count: int) -> Minibatch:
        """Prepare for all columns of an iteration, which will be cut into `count` minibatches.

        Returns:
            What `compute` is to be given: the data, or where graphs read it.
        """
        if not self._uses_cuda_graphs:
            return data
        width = len(data.columns) // count
        chosen = None if count == 1 else data.columns[:width]
        if self._data is None or _layout(self._data, self._chosen) != _layout(data, chosen):
            self._captured, self._data = None, None  # their memory first
            self._data = data.copy()
            self._chosen = None if chosen is None else chosen.clone()
        else:
            torch._foreach_copy_(self._data.tensors(), data.tensors())
        return self._data

    def compute(
        self,
        data: Minibatch,
        chosen: Chosen,
        config: LearningConfig,
        auxiliary: AuxiliaryTerm | None,
        *,
        with_kl: bool,
        on_part: OnPart,
    ) -> Gradient:
        """Put the gradient of some columns into the weights, which have none.

        Args:
            data: all columns, as `begin` gave them.
            chosen: which of them.
            config: coefficients and clips.
            auxiliary: a further term of the loss.
            with_kl: compute the KL divergence even where the loss does not need it; a graph always does.
            on_part: called with "loss" when that is done, before the backward pass.

        Returns:
            What the next call may overwrite, see `kept`.

        Raises:
            CaptureFailedError: see there.
        """
        if self._uses_cuda_graphs:
            try:
                return self._replay(data, chosen, config, auxiliary, on_part)
            except CannotBeCapturedError as error:
                # Its text alone: whoever keeps the record would keep the graph of the pass that failed.
                log.warning("%s: gradients are computed without CUDA graphs, as by --cuda_graphs=False", str(error))
                self._uses_cuda_graphs, self._captured, self._data = False, None, None
                self.forget()
        return self._compute(minibatch_of(data, chosen), config, auxiliary, with_kl=with_kl, on_part=on_part)

    def forget(self) -> None:
        """Free every gradient."""
        for weight in self._weights:
            weight.grad = None

    def kept(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """What of a gradient is to be read after the next one: copies where that will be overwritten."""
        return [tensor.clone() for tensor in tensors] if self._uses_cuda_graphs else tensors

    def _replay(
        self,
        data: Minibatch,
        chosen: Chosen,
        config: LearningConfig,
        auxiliary: AuxiliaryTerm | None,
        on_part: OnPart,
    ) -> Gradient:
        if isinstance(chosen, slice):
            chosen = torch.arange(chosen.start, chosen.stop, device=self._device)
        if self._chosen is not None and chosen is not None:
            self._chosen.copy_(chosen)
        # Any option makes a new one, also one that the loss does not have, such as the learning rate: that is rare.
        if self._captured is None or (self._captured.config, self._captured.auxiliary) != (config, auxiliary):
            self._captured = None
            work = partial(self._anew, data, config, auxiliary)
            self._captured = _Captured(config, auxiliary, CapturedGraph(work, self._device))
        gradient, of_weights = self._captured.graph.replay()
        for weight, of_weight in zip(self._weights, of_weights, strict=True):
            weight.grad = of_weight
        on_part("loss")
        return gradient

    def _anew(
        self, data: Minibatch, config: LearningConfig, auxiliary: AuxiliaryTerm | None
    ) -> tuple[Gradient, list[Tensor | None]]:
        """A gradient in memory of its own, which each replay of the graph writes again."""
        self.forget()
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
        on_part: OnPart,
    ) -> Gradient:
        objective = evaluate(self._model, minibatch, config, auxiliary, with_kl=with_kl)
        on_part("loss")
        objective.loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([weight.grad for weight in self._weights if weight.grad is not None])
        kl = norm.new_tensor(math.nan) if objective.kl is None else masked_mean(objective.kl, objective.weights)
        return Gradient(minibatch, objective, norm, torch.stack((objective.loss.detach(), norm, kl)))


def _layout(data: Minibatch, chosen: Tensor | None) -> list[tuple[torch.Size, torch.dtype]]:
    """What a graph was captured for."""
    tensors = data.tensors() if chosen is None else [*data.tensors(), chosen]
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
