"""Three convolutions for images of 36 pixels and more that no other encoder was made for."""

from __future__ import annotations

from appo.algorithms.models.layers import ConvStack


class Encoder(ConvStack):
    """32 channels 8x8/4, 64 channels 4x4/2, 64 channels 3x3/2; padded, so that edges are seen whatever the size."""

    minimum_size = 6
    is_padded = True
    stages = ((32, 8, 4), (64, 4, 2), (64, 3, 2))
