"""Weights in the order in which the CPU multiplies them, for acting.

Matrices are rearranged before they are multiplied; for the few rows of a policy worker's batch that takes longer than
the product itself, and one set of weights serves many batches. Measured on one core, 8 rows: 512 x 1536 in bf16 52 us
against 114, 2304 x 512 in bf16 87 us against 158, 512 x 1536 in float32 174 us against 304. The numbers are those of
the plain product, to the rounding of float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PACKED = "packed_for_acting"  # the attribute of a weight that holds its packed form


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., F] @ weight [G, F].T + bias [G], by way of the weight's packed form where it has one."""
    packed: Tensor | None = getattr(weight, _PACKED, None)
    if packed is None:
        return nn.functional.linear(x, weight, bias)
    dtype = packed.dtype
    bias = None if bias is None else bias.to(dtype)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(dtype), packed, bias, "none", [], "")
    return product


class Linear(nn.Linear):
    """A fully connected layer whose weight may be packed."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return multiply(x, self.weight, self.bias)


class InputLinear(Linear):
    """A layer that reads observations: it multiplies in float32 whatever the others multiply in.

    With the 8 bits of bf16, a position of 1000 could not be told from one of 1003. It is a small layer: the others
    are as wide as the network.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], which are in the dtype of the others."""
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return super().forward(x)
        with torch.autocast(kind, enabled=False):
            return super().forward(x).to(torch.get_autocast_dtype(kind))


def input_weights(model: nn.Module) -> set[nn.Parameter]:
    """What multiplies, or picks a row for, observations: float32 in any network."""
    readers = (layer for layer in model.modules() if isinstance(layer, InputLinear | nn.Embedding))
    return {parameter for layer in readers for parameter in layer.parameters()}


def can_pack(device: torch.device) -> bool:
    """This build of torch packs weights for this device."""
    return (
        device.type == "cpu" and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


@torch.no_grad()
def pack(weight: Tensor, dtype: torch.dtype) -> None:
    """Give a matrix [G, F] its packed form; again whenever its numbers have changed."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), None)
    setattr(weight, _PACKED, packed)
