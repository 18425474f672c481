"""Three convolutions for the images of Doom, whose sides they nearly fit; `conv_medium` is for any other size."""

from __future__ import annotations

from appo.algorithms.models.layers import ConvStack


class Encoder(ConvStack):
    """32 channels 8x8/4, 64 channels 4x4/2, 128 channels 3x3/2."""

    minimum_size = 36
    stages = ((32, 8, 4), (64, 4, 2), (128, 3, 2))
