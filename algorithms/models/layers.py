"""Layers with the options applied: activation, initialisation, spectral norm, and the plain stacks built from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from appo.algorithms.models.activations import Tanh
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.convolutions import PixelConv
from appo.algorithms.models.device_choices import choices_for
from appo.envs.api import ObservationLeaf

# As fast as more at once, and what lives only during the backward pass is a fraction; in bf16 twice as many fit in it.
# Of small images more, for each call has a cost of its own: 256 of 16x16, forth and back, take 3.0 ms, 64 each 4.6.
_IMAGES_AT_ONCE, _PIXELS_AT_ONCE = 64, 150_000
# Where the gradient of the weights is computed the other way round: 1056 rows of 4 inputs and 512 outputs, forth and
# back, in 0.47 instead of 1.73 ms (EPYC with AVX2); 17 inputs gain nothing.
_FEW_INPUTS, _WORTH_TRANSPOSING = 16, 32_768


def activation(config: ModelConfig, *, in_place: bool = False) -> nn.Module:
    """The nonlinearity of the options. In place, what it is given is lost, and less is kept for the gradient."""
    if config.nonlinearity == "elu":
        return nn.ELU(inplace=in_place)
    return nn.ReLU(inplace=in_place) if config.nonlinearity == "relu" else Tanh(in_place=in_place)


@torch.no_grad()
def initialize(weight: Tensor, config: ModelConfig, gain: float | None = None) -> None:
    """Fill a weight in place as the options say; `gain` stands in for policy_init_gain."""
    gain = config.policy_init_gain if gain is None else gain
    if config.policy_initialization == "orthogonal":
        nn.init.orthogonal_(weight, gain=gain)
    else:
        nn.init.xavier_uniform_(weight, gain=gain)


class InputLinear(nn.Linear):
    """A layer that reads observations: it multiplies in float32 whatever the others multiply in.

    With the 8 bits of bf16, a position of 1000 could not be told from one of 1003, with the 11 of TF32 not from 1000.5:
    so matrix products of a GPU stay in float32. It is a small layer: the others are as wide as the network.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], which are in the dtype of the others."""
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return self._multiply(x)
        with torch.autocast(kind, enabled=False):
            return self._multiply(x).to(torch.get_autocast_dtype(kind))

    def _multiply(self, x: Tensor) -> Tensor:
        is_narrow = self.in_features <= _FEW_INPUTS and x.dim() == 2 and choices_for(x.device).transposes_narrow_layers
        if is_narrow and torch.is_grad_enabled() and len(x) * self.out_features >= _WORTH_TRANSPOSING:
            # The gradient of a transposed copy is x' g, that of the weight itself g' x, which MKL computes slowly.
            return nn.functional.linear(x, self.weight.t().contiguous().t(), self.bias)
        return super().forward(x)


def input_weights(model: nn.Module) -> set[nn.Parameter]:
    """What multiplies, or picks a row for, observations: float32 in any network."""
    readers = (layer for layer in model.modules() if isinstance(layer, InputLinear | nn.Embedding))
    return {parameter for layer in readers for parameter in layer.parameters()}


def linear(inputs: int, outputs: int, config: ModelConfig, layer_type: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """A fully connected layer of an encoder: initialised, bias 0, spectral norm if asked."""
    layer = layer_type(inputs, outputs)
    _initialize_layer(layer, config)
    _constrain(layer, config)
    return layer


class FlattenImage(nn.Module):
    """Every number of an image as one row, in the order in which channels_last has them: nothing is copied.

    In the order of channels first, the copy forth and the gradient's copy back, in a layout that no neighbour shares,
    took a fifth of a training step.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, height * width * channels]."""
        return x.permute(0, 2, 3, 1).flatten(1)


def pixel_conv(inputs: int, outputs: int, kernel: int, stride: int, config: ModelConfig, padding: int = 0) -> PixelConv:
    """The first convolution of an encoder, which is given pixels that are not divided by `obs_scale` yet."""
    layer = PixelConv(inputs, outputs, kernel, stride, padding=padding)
    layer.scale = config.obs_scale
    _prepare_conv(layer, config)
    return layer


def conv(inputs: int, outputs: int, kernel: int, stride: int, config: ModelConfig, padding: int = 0) -> nn.Conv2d:
    """A convolution of an encoder, prepared as `linear` is."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=padding)
    _prepare_conv(layer, config)
    return layer


def _prepare_conv(layer: nn.Conv2d, config: ModelConfig) -> None:
    _initialize_layer(layer, config)
    # Measured on one core with 256 images of 84x84x4: training takes 112 ms in channels_last, 187 ms without.
    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    _constrain(layer, config)


def fully_connected(
    inputs: int, widths: Sequence[int], config: ModelConfig, *, reads_observations: bool = False
) -> nn.Sequential:
    """Linear layers of the given widths, each followed by the activation; no widths, no change."""
    layers: list[nn.Module] = []
    layer_type = InputLinear if reads_observations else nn.Linear
    for width in widths:
        layers += [linear(inputs, width, config, layer_type), activation(config, in_place=True)]
        inputs, layer_type = width, nn.Linear
    return nn.Sequential(*layers)


def head(inputs: int, outputs: int, gain: float, config: ModelConfig) -> nn.Linear:
    """A last layer: its own gain, no spectral norm, which would tie how certain a policy can become."""
    layer = nn.Linear(inputs, outputs)
    initialize(layer.weight, config, gain)
    nn.init.zeros_(layer.bias)
    return layer


def conv_output_size(size: int, kernel: int, stride: int, padding: int = 0) -> int:
    """Pixels along one side after a convolution."""
    return (size + 2 * padding - kernel) // stride + 1


class ConvStack(nn.Module):
    """Convolutions, each followed by the activation: what encoders of plain images are made of.

    Without padding, strides that do not divide the image leave out some of its last rows and columns: of 64 pixels,
    `conv_simple` sees 52.

    Subclasses name their `stages`. Satisfies `api.Encoder` for images.
    """

    kind: ClassVar[Literal["image", "vector"]] = "image"
    scales_pixels: ClassVar[bool] = True
    minimum_size: ClassVar[int]
    stages: ClassVar[Sequence[tuple[int, int, int]]]
    """(channels, kernel, stride) of each convolution."""
    is_padded: ClassVar[bool] = False
    """Zeros around what each convolution reads: it sees everything, although strides do not divide the image."""

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None:
        super().__init__()
        channels, height, width = leaf.shape
        layers: list[nn.Module] = []
        for outputs, kernel, stride in self.stages:
            make = conv if layers else pixel_conv
            padding = max(stride - 1, (kernel - stride + 1) // 2) if self.is_padded else 0
            layers.append(make(channels, outputs, kernel, stride, config, padding))
            layers.append(activation(config, in_place=True))
            sides = (conv_output_size(side, kernel, stride, padding) for side in (height, width))
            channels, height, width = outputs, *sides
        self.layers = nn.Sequential(*layers, FlattenImage())
        self.output_size = channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, output_size]."""
        if not choices_for(x.device).splits_images:
            return self.layers(x)
        at_once = max(_IMAGES_AT_ONCE, _PIXELS_AT_ONCE // (x.shape[-2] * x.shape[-1]))
        at_once *= 2 if torch.is_autocast_enabled(x.device.type) else 1
        if len(x) <= at_once:
            return self.layers(x)
        return torch.cat([self.layers(part) for part in x.chunk(math.ceil(len(x) / at_once))])


def _initialize_layer(layer: nn.Linear | nn.Conv2d, config: ModelConfig) -> None:
    initialize(layer.weight, config)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _constrain(layer: nn.Linear | nn.Conv2d, config: ModelConfig) -> None:
    if config.use_spectral_norm:
        parametrize.register_parametrization(layer, "weight", SpectralNorm(layer.weight))


class SpectralNorm(nn.Module):
    """Divides a weight by an estimate of its largest singular value, sigma = u' W v.

    The vectors u and v move only in `refresh`, not in every forward pass: the same weights give the same outputs
    whenever they are asked, when acting and when learning. They are buffers, and travel with the weights.

    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018, arXiv:1802.05957.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        matrix = weight.detach().flatten(1)
        self.register_buffer("u", torch.randn_like(matrix[:, 0]))
        self.register_buffer("v", torch.zeros_like(matrix[0]))
        self.refresh(weight, iterations=15)

    def forward(self, weight: Tensor) -> Tensor:
        """W / sigma(W)."""
        sigma = torch.dot(self.u, torch.mv(weight.flatten(1), self.v))
        return weight / sigma.clamp(min=1e-12)

    @torch.no_grad()
    def refresh(self, weight: Tensor, iterations: int = 2) -> None:
        """Follow the weight by power iteration."""
        matrix = weight.detach().flatten(1)
        for _ in range(iterations):
            self.v.copy_(nn.functional.normalize(torch.mv(matrix.t(), self.u), dim=0))
            self.u.copy_(nn.functional.normalize(torch.mv(matrix, self.v), dim=0))


def refresh_spectral_norms(module: nn.Module) -> None:
    """Let every spectral norm inside follow its weight; once per training iteration."""
    for layer in module.modules():
        if not parametrize.is_parametrized(layer, "weight"):
            continue
        stack = cast("parametrize.ParametrizationList", cast(nn.ModuleDict, layer.parametrizations)["weight"])
        for norm in stack:
            if isinstance(norm, SpectralNorm):
                norm.refresh(cast(Tensor, stack.original))
