"""Small kernels for grid worlds, whose 7x7 cells are not pixels: each cell matters."""

from __future__ import annotations

from appo.algorithms.models.layers import ConvStack


class Encoder(ConvStack):
    """16, 32 and 64 channels of 2x2 windows, one cell apart."""

    minimum_size = 4
    stages = ((16, 2, 1), (32, 2, 1), (64, 2, 1))
