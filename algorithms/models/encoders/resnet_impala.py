"""The deep residual network of IMPALA: slower than three convolutions, better on rich images, fits any size.

Source: Espeholt et al., "IMPALA", 2018, arXiv:1802.01561, figure 3 (right).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.layers import FlattenImage, activation, conv, pixel_conv
from appo.envs.api import ObservationLeaf

CHANNELS = (16, 32, 32)


class ResidualBlock(nn.Module):
    """x + conv(act(conv(act(x)))), at one size."""

    def __init__(self, channels: int, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            activation(config),
            conv(channels, channels, 3, 1, config, padding=1),
            activation(config),
            conv(channels, channels, 3, 1, config, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width], unchanged in shape."""
        return x + self.layers(x)


class Encoder(nn.Module):
    """Three stages of convolution, pooling that halves the size, and two residual blocks."""

    kind: ClassVar[Literal["image", "vector"]] = "image"
    scales_pixels: ClassVar[bool] = True
    minimum_size: ClassVar[int] = 1

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None:
        super().__init__()
        channels, height, width = leaf.shape
        layers: list[nn.Module] = []
        for outputs in CHANNELS:
            first_conv = conv if layers else pixel_conv
            layers += [
                first_conv(channels, outputs, 3, 1, config, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(outputs, config),
                ResidualBlock(outputs, config),
            ]
            channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.Sequential(*layers, activation(config), FlattenImage())
        self.output_size = channels * height * width

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, output_size]."""
        return self.layers(x)
