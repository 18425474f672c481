"""Small kernels for grid worlds, whose 7x7 cells are not pixels: each cell matters."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from algorithms.models.config import ModelConfig
from algorithms.models.layers import conv_stack
from envs.api import ObservationLeaf

STAGES = ((16, 2, 1), (32, 2, 1), (64, 2, 1))  # (channels, kernel, stride)


class Encoder(nn.Module):
    """16, 32 and 64 channels of 2x2 windows, one cell apart."""

    kind: ClassVar[Literal["image", "vector"]] = "image"
    minimum_size: ClassVar[int] = 4

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None:
        super().__init__()
        self.layers, self.output_size = conv_stack(leaf.shape, STAGES, config)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, output_size]."""
        return self.layers(x)
