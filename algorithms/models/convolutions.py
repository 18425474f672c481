"""Convolutions of encoders: of features, and of pixels as they are stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from appo.algorithms.models.packing import PackedKernel, numbers_of


class Conv2d(nn.Conv2d):
    """A convolution of an encoder, which may be packed."""

    _packed: PackedKernel | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> the convolution."""
        return super().forward(x) if self._packed is None else self._packed(x)

    @property
    def is_packed(self) -> bool:
        """See `packing.Packable`."""
        return self._packed is not None

    def pack(self, dtype: torch.dtype) -> None:
        """See `packing.Packable`."""
        self._packed = PackedKernel(self, self.weight, dtype)


class PixelConv(Conv2d):
    """A convolution of pixels as they are stored, such as bytes.

    It divides them by `scale`, by way of its weight: thousands of numbers, not millions.
    """

    scale: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] in any dtype -> the convolution of x / scale."""
        if self._packed is not None:
            return self._packed(x)
        assert self.bias is not None and isinstance(self.padding, tuple)
        return PixelConvolution.apply(x, self._scaled_weight(), self.bias, self.stride, self.padding)

    def pack(self, dtype: torch.dtype) -> None:
        """See `packing.Packable`."""
        self._packed = PackedKernel(self, self._scaled_weight(), dtype)

    def _scaled_weight(self) -> Tensor:
        return self.weight if self.scale == 1.0 else self.weight * (1.0 / self.scale)


class PixelConvolution(torch.autograd.Function):
    """A convolution that keeps the bytes of its input for the backward pass, not the numbers made of them.

    Making them again takes 7 of 200 ms for 1024 images; keeping them was the largest piece of memory of a step.
    """

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any) -> Tensor:
        """[B, channels, height, width] in any dtype; the rest as in `torch.nn.functional.conv2d`."""
        kind = pixels.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        weight = weight.to(dtype)
        ctx.save_for_backward(pixels, weight)
        ctx.geometry = (stride, padding)
        return nn.functional.conv2d(numbers_of(pixels, dtype), weight, bias.to(dtype), stride, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of weight and bias, float32."""
        pixels, weight = ctx.saved_tensors
        stride, padding = ctx.geometry
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            grad, numbers_of(pixels, weight.dtype), weight, [len(weight)],
            stride, padding, (1, 1), False, (0, 0), 1, (False, True, True),
        )  # fmt: skip
        return None, of_weight.float(), of_bias.float(), None, None
