"""Fully connected layers for vectors; `--mlp_layers` gives their widths."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.layers import fully_connected
from appo.envs.api import ObservationLeaf


class Encoder(nn.Module):
    """Linear layers with activations in between and after."""

    kind: ClassVar[Literal["image", "vector"]] = "vector"
    minimum_size: ClassVar[int] = 1

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None:
        super().__init__()
        self.layers = fully_connected(leaf.shape[0], config.mlp_widths, config, reads_observations=True)
        self.output_size = config.mlp_widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """[B, numbers] -> [B, output_size]."""
        return self.layers(x)
