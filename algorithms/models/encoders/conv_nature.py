"""The convolutions of the Atari agents of 2015, for 84x84 images.

Source: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015.
"""

from __future__ import annotations

from appo.algorithms.models.layers import ConvStack


class Encoder(ConvStack):
    """32 channels 8x8/4, 64 channels 4x4/2, 64 channels 3x3/1."""

    minimum_size = 36
    stages = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
