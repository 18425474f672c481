"""ELU and tanh of large tensors on the CPU, where torch's own takes twice as long or longer.

Source of the ELU: Clevert, Unterthiner, Hochreiter, "Fast and Accurate Deep Network Learning by Exponential Linear
Units (ELUs)", 2016, arXiv:1511.07289.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from appo.algorithms.models.device_choices import choices_for

# From how many numbers on it is worth it: below, the calls take longer than the numbers.
_WORTH_IT = {torch.float32: 32_768, torch.bfloat16: 16_384}
_PIECE = 131_072  # numbers at a time, so that intermediate results stay in a cache
# The same for tanh, which is not computed in pieces; with a gradient there is one more call into Python.
_WORTH_TANH, _WORTH_TANH_GRADIENT = 4_096, 16_384
_MINUS_ONE = torch.tensor(-1.0)
_LOG2_E = math.log2(math.e)


class Elu(nn.Module):
    """x where positive, else exp(x) - 1; in place, what it is given is lost.

    Most of the time of torch's is for an expm1 that is exact to the last bit of numbers however small. e^x - 1 in
    float32 is off by 7e-8 at most, one bit of the float32 below 1, and takes half the time: a number 0.8 ns instead of
    1.4 to 2.0 in float32, 0.8 instead of 1.54 in bf16.
    """

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and dtype."""
        worth_it = _WORTH_IT.get(x.dtype)
        if worth_it is None or x.numel() < worth_it or not choices_for(x.device).has_own_elu or not _is_dense(x):
            return nn.functional.elu(x, inplace=self.in_place)
        x = x if self.in_place else x.clone()
        return _InPlace.apply(x, _elu_, _elu_gradient) if _has_gradient(x) else _elu_(x)


class Tanh(nn.Module):
    """tanh; in place, what it is given is lost.

    On CPUs of AMD as 2 / (1 + e^-2x) - 1, by torch's sigmoid: the absolute error is 2e-7 at most, two bits of the
    float32 below 1. A number takes 1.2 ns on an EPYC with AVX2, where torch's own goes through MKL and takes 3.2. On a
    Xeon with AVX-512 torch's own takes 0.3 and the sigmoid 0.7 to 1.0. Other dtypes and devices get torch's own.
    """

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and dtype."""
        return tanh(x, in_place=self.in_place)


def tanh(x: Tensor, *, in_place: bool = False) -> Tensor:
    """`Tanh` as a function."""
    has_gradient = _has_gradient(x)
    if not _is_faster_by_sigmoid(x, _WORTH_TANH_GRADIENT if has_gradient else _WORTH_TANH):
        return torch.tanh(x)
    x = x if in_place else x.clone()
    return _InPlace.apply(x, tanh_, torch.ops.aten.tanh_backward) if has_gradient else tanh_(x)


def tanh_(x: Tensor) -> Tensor:
    """In place, of what has no gradient."""
    if not _is_faster_by_sigmoid(x, _WORTH_TANH):
        return x.tanh_()
    return torch.add(_MINUS_ONE, x.mul_(2.0).sigmoid_(), alpha=2.0, out=x)


class _InPlace(torch.autograd.Function):
    """A function of each number, computed in place, whose gradient follows from its result."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, function_: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """`gradient`: of the result, and the result -> of x."""
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.gradient = gradient
        return function_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (result,) = ctx.saved_tensors
        return ctx.gradient(grad, result), None, None


def _elu_gradient(grad: Tensor, result: Tensor) -> Tensor:
    gradient: Tensor = torch.ops.aten.elu_backward(grad, 1.0, 1.0, 1.0, True, result)
    return gradient


def _has_gradient(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _is_faster_by_sigmoid(x: Tensor, numbers: int) -> bool:
    return choices_for(x.device).has_sigmoid_tanh and x.numel() >= numbers and x.dtype == torch.float32


def _is_dense(x: Tensor) -> bool:
    return x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))


def _elu_(x: Tensor) -> Tensor:
    flat = x.detach().as_strided((x.numel(),), (1,))
    for piece in flat.split(_PIECE):
        if x.dtype == torch.float32:
            negative = piece.clamp_max(0.0).exp_().sub_(1.0)
            torch.maximum(piece, negative, out=piece)
        else:
            exact = piece.float()
            negative = exact.clamp_max(0.0).mul_(_LOG2_E).exp2_().sub_(1.0)
            piece.copy_(torch.maximum(exact, negative, out=negative))
    return x
