"""Adam as one fused operation a step.

`torch.optim.Adam(fused=True)` calls the same operation and gives the same numbers, which a test demands. But building
it imports torch's compiler, 800 modules: 73 MB and a second of the learner's start; and its bookkeeping takes half a
millisecond a step, as long as the whole gradient of a small network.

Source: Kingma, Ba, "Adam: a method for stochastic optimization", 2015, arXiv:1412.6980, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """Moments of the gradients of some weights, and the step that follows from them."""

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        """Of float32 weights, all on one device, which stay the caller's."""
        self.betas = (0.9, 0.999)
        self.eps = 1e-8
        self._weights = list(weights)
        self._first = [torch.zeros_like(weight) for weight in weights]
        self._second = [torch.zeros_like(weight) for weight in weights]
        self._counts = [torch.zeros((), device=weight.device) for weight in weights]  # as the fused operation has them

    @property
    def second_moments(self) -> list[Tensor]:
        """Per weight, the mean of its squared gradient."""
        return self._second

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Follow the gradients that there are; weights without one stay, and so do their moments."""
        gradients = [weight.grad for weight in self._weights]
        chosen = [index for index, gradient in enumerate(gradients) if gradient is not None]
        if not chosen:
            return
        counts = [self._counts[index] for index in chosen]
        torch._foreach_add_(counts, 1.0)
        torch._fused_adam_(
            [self._weights[index] for index in chosen],
            [gradient for gradient in gradients if gradient is not None],
            [self._first[index] for index in chosen],
            [self._second[index] for index in chosen],
            [],
            counts,
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """The moments. Refers to live tensors."""
        return {"exp_avg": self._first, "exp_avg_sq": self._second, "step": self._counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved moments.

        Raises:
            ValueError: they belong to other weights.
        """
        own = self.state_dict()
        for name, tensors in own.items():
            shapes = [tuple(tensor.shape) for tensor in tensors]
            found = [tuple(tensor.shape) for tensor in state.get(name, [])]
            if found != shapes:
                raise ValueError(f"{name} of Adam has the shapes {found}; this model has {shapes}")
            for tensor, saved in zip(tensors, state[name], strict=True):
                tensor.copy_(saved)
