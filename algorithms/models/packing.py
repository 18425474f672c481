"""Weights in the form in which the CPU multiplies them, for acting.

Before a product, weights are rearranged and converted; for the few rows of a policy worker's batch that can take longer
than the product itself, and one set of weights serves many batches. So each layer that is worth it keeps a packed form
of its weights, which is made anew whenever they have changed. Measured on one core, 8 rows: 512 x 1536 in bf16 52 us
against 114, 2304 x 512 in bf16 87 us against 158, 512 x 1536 in float32 174 us against 304. The numbers are those of
the plain product, to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Call = Callable[[Tensor], Tensor]

_WORTH_PACKING = 16_384  # numbers in a matrix


@runtime_checkable
class Packable(Protocol):
    """A layer that keeps a packed form of its weights, and acts with it once there is one."""

    @property
    def is_packed(self) -> bool:
        """It acts with the packed form."""

    def pack(self, dtype: torch.dtype) -> None:
        """Make the packed form of the weights as they are now, in the dtype that the network multiplies in."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As of any module."""


class PackedMatrix:
    """A matrix [G, F] with its bias [G], to multiply rows with."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, result_dtype: torch.dtype | None = None
    ) -> None:
        """Of the numbers as they are now; the result comes in another dtype where one is given."""
        self._dtype, self._result_dtype = dtype, result_dtype or dtype
        self._multiply = torch.ops.mkldnn._linear_pointwise.default
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), None)
        self._bias = _copied(bias, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, F] -> [N, G]."""
        if x.dtype != self._dtype:
            x = x.to(self._dtype)
        product: Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return product if self._result_dtype == self._dtype else product.to(self._result_dtype)


class PackedKernel:
    """The kernel of a convolution with its bias."""

    def __init__(self, layer: nn.Conv2d, weight: Tensor, dtype: torch.dtype) -> None:
        """Of the numbers as they are now; `weight` stands in for the layer's."""
        self._dtype = dtype
        self._geometry = (layer.padding, layer.stride, layer.dilation, layer.groups)
        self._convolve = torch.ops.mkldnn._convolution_pointwise.default
        self._weight: Tensor = torch.ops.mkldnn._reorder_convolution_weight(weight.detach().to(dtype), *self._geometry)
        self._bias = _copied(layer.bias, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> the convolution, in this kernel's dtype."""
        if x.dtype != self._dtype:
            x = numbers_of(x, self._dtype)
        result: Tensor = self._convolve(x, self._weight, self._bias, *self._geometry, "none", [], "")
        return result


class Linear(nn.Linear):
    """A fully connected layer that may be packed."""

    _packed: PackedMatrix | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return super().forward(x) if self._packed is None else self._packed(x)

    def calls(self) -> list[Call]:
        """See `acting.Flat`."""
        if self._packed is not None:
            return [self._packed]
        return [partial(nn.functional.linear, weight=self.weight.detach(), bias=_detached(self.bias))]

    @property
    def is_packed(self) -> bool:
        """See `Packable`."""
        return self._packed is not None

    def pack(self, dtype: torch.dtype) -> None:
        """See `Packable`; small layers stay as they are."""
        if self.weight.numel() >= _WORTH_PACKING:
            self._packed = PackedMatrix(self.weight, self.bias, dtype)


# Where the gradient of the weights is computed the other way round: 1056 rows of 4 inputs and 512 outputs, forth and
# back, in 0.47 instead of 1.73 ms (EPYC with AVX2); 17 inputs gain nothing.
_FEW_INPUTS, _WORTH_TRANSPOSING = 16, 32_768


class InputLinear(Linear):
    """A layer that reads observations: it multiplies in float32 whatever the others multiply in.

    With the 8 bits of bf16, a position of 1000 could not be told from one of 1003. It is a small layer: the others
    are as wide as the network.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], which are in the dtype of the others."""
        if self._packed is not None:
            return self._packed(x)
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return self._multiply(x)
        with torch.autocast(kind, enabled=False):
            return self._multiply(x).to(torch.get_autocast_dtype(kind))

    def calls(self) -> list[Call]:
        """See `acting.Flat`."""
        (call,) = super().calls()
        kind = self.weight.device.type
        if self._packed is not None:
            return [call]
        return [lambda x: self.forward(x) if torch.is_autocast_enabled(kind) else call(x)]

    def pack(self, dtype: torch.dtype) -> None:
        """See `Packable`; in float32."""
        if self.weight.numel() >= _WORTH_PACKING:
            self._packed = PackedMatrix(self.weight, self.bias, torch.float32, dtype)

    def _multiply(self, x: Tensor) -> Tensor:
        is_narrow = self.in_features <= _FEW_INPUTS and x.dim() == 2 and x.device.type == "cpu"
        if is_narrow and torch.is_grad_enabled() and len(x) * self.out_features >= _WORTH_TRANSPOSING:
            # The gradient of a transposed copy is x' g, that of the weight itself g' x, which MKL computes slowly.
            return nn.functional.linear(x, self.weight.t().contiguous().t(), self.bias)
        return super().forward(x)


def numbers_of(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, channels, height, width] in any dtype -> the same in this one, channels last."""
    # Bytes are rearranged before they become two or four times as large; bf16 holds them exactly.
    numbers = pixels.contiguous(memory_format=torch.channels_last).to(dtype)
    _, channels, height, width = numbers.shape
    if channels > 1 or numbers.device.type != "cpu":
        return numbers
    # The usual strides of one channel are those of both orders, and torch then takes channels first. For 256 images of
    # 32x32, forth and back through `conv_small`, that takes 13.5 ms, channels last 9.9 ms.
    return numbers.as_strided(numbers.shape, (height * width, 1, width, 1))


def input_weights(model: nn.Module) -> set[nn.Parameter]:
    """What multiplies, or picks a row for, observations: float32 in any network."""
    readers = (layer for layer in model.modules() if isinstance(layer, InputLinear | nn.Embedding))
    return {parameter for layer in readers for parameter in layer.parameters()}


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """This build of torch packs weights of this dtype for this device; for bf16 the processor needs AVX-512."""
    names = ("_linear_pointwise", "_convolution_pointwise")
    has_operations = all(hasattr(torch.ops.mkldnn, name) for name in names)
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or not has_operations:
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


def _copied(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias.detach().to(dtype, copy=True)
