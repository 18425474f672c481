"""Small kernels for images whose shorter side is below 36 pixels, too small for the strides of the larger networks."""

from __future__ import annotations

from algorithms.models.layers import ConvStack


class Encoder(ConvStack):
    """16 channels 3x3/1, 32 channels 3x3/2, 64 channels 3x3/2; padded, so that no pixel is left out."""

    minimum_size = 1
    padding = 1
    stages = ((16, 3, 1), (32, 3, 2), (64, 3, 2))
