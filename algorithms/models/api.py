"""What the parts of a network promise each other and their callers.

Shape letters:  T = time steps,  N = agent rows,  B = T * N rows read at once,  F = features,  H = size of the
recurrent state (0 without one),  P = numbers that describe an action distribution.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from appo.algorithms.models.config import ModelConfig
from appo.envs.api import ObservationLeaf


class StepOutput(NamedTuple):
    """One decision per agent row."""

    parameters: Tensor  # [N, P], forbidden choices already have a very negative logit
    values: Tensor  # [N] in units of reward
    state: Tensor  # [N, H] after this observation


class UnrollOutput(NamedTuple):
    """The same network over trajectories, for the learner."""

    parameters: Tensor  # [T, N, P], as in StepOutput
    values: Tensor  # [T, N] in normalised units when returns are normalised


class Encoder(Protocol):
    """What `encoders/<name>.py` defines as `class Encoder(nn.Module)`: one observation leaf to features.

    An image encoder is given float images [B, channels, height, width] in channels_last memory format, shifted and
    scaled, in the numbers that `--precision` computes with; a vector encoder is given float32 vectors
    [B, leaf.shape[0]]. It returns [B, output_size].

    A class that says `scales_pixels = True` is given images as they are stored, bytes as a rule, unless they are to be
    shifted, and divides them by `obs_scale` itself.
    """

    kind: ClassVar[Literal["image", "vector"]]
    """What it reads."""
    minimum_size: ClassVar[int]
    """The smallest height and width of an image it can read; 1 for vectors."""
    output_size: int
    """F, known once it is built."""

    def __init__(self, leaf: ObservationLeaf, config: ModelConfig) -> None: ...

    def __call__(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, output_size]."""
        ...
