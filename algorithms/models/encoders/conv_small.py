"""Small kernels for images whose shorter side is below 36 pixels, too small for the strides of the larger networks."""

from __future__ import annotations

from appo.algorithms.models.layers import ConvStack


class Encoder(ConvStack):
    """16 channels 3x3/2, 32 channels 3x3/2; padded, so that no pixel is left out.

    Another convolution, at full size, before them would take most of the time of learning.
    """

    minimum_size = 1
    is_padded = True
    stages = ((16, 3, 2), (32, 3, 2))
