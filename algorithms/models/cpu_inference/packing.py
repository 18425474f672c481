"""Weights in the form in which the CPU multiplies them.

Before a product, weights are rearranged and converted; for the few rows of a policy worker's batch that can take longer
than the product itself, and one set of weights serves many batches. Measured on one core, 8 rows: 512 x 1536 in bf16
52 us against 114, 2304 x 512 in bf16 87 us against 158, 512 x 1536 in float32 174 us against 304. The numbers are those
of the plain product, to the rounding of float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from appo.algorithms.models.convolutions import numbers_of


class PackedMatrix:
    """A matrix [G, F] with its bias [G], to multiply rows with."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, result_dtype: torch.dtype | None = None
    ) -> None:
        """Of the numbers as they are now; the result comes in another dtype where one is given."""
        self.dtype, self._result_dtype = dtype, result_dtype or dtype
        self._multiply = torch.ops.mkldnn._linear_pointwise.default
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), None)
        self._bias = _copied(bias, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, F] -> [N, G]."""
        if x.dtype != self.dtype:
            x = x.to(self.dtype)
        product: Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return product if self._result_dtype == self.dtype else product.to(self._result_dtype)


class PackedKernel:
    """The kernel of a convolution with its bias."""

    def __init__(self, layer: nn.Conv2d, weight: Tensor, dtype: torch.dtype) -> None:
        """Of the numbers as they are now; `weight` stands in for the layer's."""
        self.dtype = dtype
        self._geometry = (layer.padding, layer.stride, layer.dilation, layer.groups)
        self._convolve = torch.ops.mkldnn._convolution_pointwise.default
        self._weight: Tensor = torch.ops.mkldnn._reorder_convolution_weight(weight.detach().to(dtype), *self._geometry)
        self._bias = _copied(layer.bias, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> the convolution, in this kernel's dtype."""
        if x.dtype != self.dtype:
            x = numbers_of(x, self.dtype)
        result: Tensor = self._convolve(x, self._weight, self._bias, *self._geometry, "none", [], "")
        return result


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """This build of torch packs weights of this dtype for this device; for bf16 the processor needs AVX-512."""
    names = ("_linear_pointwise", "_convolution_pointwise")
    has_operations = all(hasattr(torch.ops.mkldnn, name) for name in names)
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or not has_operations:
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _copied(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.detach().to(dtype, copy=True)
