"""Convolutions of encoders: of features, and of pixels as they are stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from appo.algorithms.models.device_choices import choices_for


class PixelConv(nn.Conv2d):
    """A convolution of pixels as they are stored, such as bytes.

    It divides them by `scale`, by way of its weight: thousands of numbers, not millions.
    """

    scale: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] in any dtype -> the convolution of x / scale."""
        assert self.bias is not None and isinstance(self.padding, tuple)
        weight = self.scaled_weight()
        if choices_for(x.device).keeps_pixels:
            return PixelConvolution.apply(x, weight, self.bias, self.stride, self.padding)
        numbers = numbers_of(x, _computed_in(x.device, weight))
        return nn.functional.conv2d(numbers, weight, self.bias, self.stride, self.padding)

    def scaled_weight(self) -> Tensor:
        """What multiplies pixels."""
        return self.weight if self.scale == 1.0 else self.weight * (1.0 / self.scale)


class PixelConvolution(torch.autograd.Function):
    """A convolution that keeps the bytes of its input for the backward pass, not the numbers made of them.

    Making them again takes 7 of 200 ms for 1024 images; keeping them was the largest piece of memory of a step.
    """

    @staticmethod
    def forward(ctx: Any, pixels: Tensor, weight: Tensor, bias: Tensor, stride: Any, padding: Any) -> Tensor:
        """[B, channels, height, width] in any dtype; the rest as in `torch.nn.functional.conv2d`."""
        dtype = _computed_in(pixels.device, weight)
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


def numbers_of(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, channels, height, width] in any dtype -> the same in this one, channels last."""
    # Bytes are rearranged before they become two or four times as large; bf16 holds them exactly.
    numbers = pixels.contiguous(memory_format=torch.channels_last).to(dtype)
    _, channels, height, width = numbers.shape
    if channels > 1 or not choices_for(numbers.device).orders_single_channel:
        return numbers
    # The usual strides of one channel are those of both orders, and torch then takes channels first. For 256 images of
    # 32x32, forth and back through `conv_small`, that takes 13.5 ms, channels last 9.9 ms.
    return numbers.as_strided(numbers.shape, (height * width, 1, width, 1))


def _computed_in(device: torch.device, weight: Tensor) -> torch.dtype:
    is_lower = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_lower else weight.dtype
