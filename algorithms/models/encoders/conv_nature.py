"""The convolutions of the Atari agents of 2015, for 84x84 images.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from algorithms.models.config import ModelConfig
from algorithms.models.layers import conv_stack
from envs.api import ObservationLeaf

STAGES = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # (channels, kernel, stride)


class Encoder(nn.Module):
    """32 channels 8x8/4, 64 channels 4x4/2, 64 channels 3x3/1."""

    kind: ClassVar[Literal["image", "vector"]] = "image"
    minimum_size: ClassVar[int] = 36

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None:
        super().__init__()
        self.layers, self.output_size = conv_stack(leaf.shape, STAGES, config)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, output_size]."""
        return self.layers(x)
