"""Running mean and standard deviation of vector observations and of returns.

Only the learner updates them, once at the end of a training iteration, and that of returns once before the first one
learns anything: within an iteration, and between the policy worker and the learner at equal weights, the same input
gives the same output.

All state is float32, so that it travels with the flat weights. Plain float32 would stop moving: after 1e9 samples a
batch of 1000 changes the mean by a millionth of its distance, which is lost beside a mean that is not tiny. So each
number is stored as the sum of two float32, the second holding what the first rounded away: 48 bits, enough for 1e14
samples to be counted one by one. The update itself is done in float64.

Sources: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979; van
Hasselt et al., "Learning values across many orders of magnitude", 2016, arXiv:1602.07714 (PopArt).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

_SMALLEST_SPREAD = 1e-3  # of returns, beside their mean
CLIP = 5.0  # deviations; beyond, an observation is an outlier of a distribution not yet known
# The variance of numbers within plus and minus this is 1e36 at most, however they are weighted: float32 ends at 3.4e38.
# One larger number, such as float32's largest as a sign that something is missing, would make it infinite for ever.
LARGEST = 1e18


class RunningMoments(nn.Module):
    """Mean and variance of the rows seen; mean 0 and variance 1 before the first.

    With n samples so far, m more of mean b and variance s, and w = m / (n + m)::

        mean'     = mean + w * (b - mean)
        variance' = variance + w * (s - variance + (1 - w) * (b - mean)^2)

    n grows up to `memory` times m: so many updates are remembered, older ones fade. An update smaller than the former
    ones makes them fade no faster than one of their size would.
    """

    memory = math.inf

    moments: Tensor  # [2, 2, *shape]: (mean, variance) x (value, what its rounding lost)
    count: Tensor  # [2]: value, what its rounding lost

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        moments = torch.zeros(2, 2, *shape)
        moments[1, 0] = 1.0
        self.register_buffer("moments", moments)
        self.register_buffer("count", torch.zeros(2))

    @property
    def mean(self) -> Tensor:
        """[*shape]."""
        return self.moments[0, 0]

    @property
    def variance(self) -> Tensor:
        """[*shape], the population's: divided by the number of samples."""
        return self.moments[1, 0]

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor) -> None:
        """Take in the rows of x [..., *shape] where mask [...] is true; none changes nothing.

        Numbers beyond plus or minus `LARGEST` count as that.
        """
        rows = x[mask.bool()].double().clamp_(-LARGEST, LARGEST)
        if not len(rows):
            return
        mean, variance = self.moments.double().sum(1)
        count = self.count.double().sum()
        usual = torch.clamp(count / (self.memory + 1.0), min=float(len(rows)))
        new_count = torch.minimum(count, self.memory * usual) + len(rows)
        weight = len(rows) / new_count
        delta = rows.mean(0) - mean
        spread = rows.var(0, correction=0) - variance + (1.0 - weight) * delta.square()
        _store(self.moments[0], mean + weight * delta)
        _store(self.moments[1], variance + weight * spread)
        _store(self.count, new_count)


class ObservationNormalizer(RunningMoments):
    """(x - mean) / deviation, clipped to [-5, 5]."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., *shape] -> the same shape."""
        return self.prepared()(x)

    def prepared(self) -> Callable[[Tensor], Tensor]:
        """`forward`, for the statistics as they are now."""
        # A feature that never changed has variance 0: the added 1e-5 keeps its rounding noise small.
        mean, scale = self.mean, torch.rsqrt(self.variance + 1e-5)
        return lambda x: ((x - mean) * scale).clamp_(-CLIP, CLIP)


class ReturnsNormalizer(RunningMoments):
    """Values are learned in units in which recent returns have mean 0 and deviation 1.

    Targets bootstrap on the critic, so statistics that moved its values would move the targets they are taken from, and
    feed back on themselves. `update_preserving` changes the units and keeps the values.
    """

    memory = 50.0  # the first returns say little of those of a policy that has learned

    def __init__(self) -> None:
        super().__init__(())

    @property
    def is_new(self) -> bool:
        """No returns have been seen."""
        return not self.count[0]

    @torch.no_grad()
    def update_preserving(self, layer: nn.Linear, x: Tensor, mask: Tensor) -> None:
        """Take in returns, and let the layer that gives normalised values give the same values in units of reward.

        With deviation s and mean m before, s' and m' after::

            weight' = weight * s / s'
            bias'   = (bias * s + m - m') / s'

        Not so the first time: the critic knows nothing yet, and the mean of the returns is a better guess than its own.
        Source: PopArt, proposition 1.

        Args:
            layer: [..., F] -> [..., 1], the last one.
            x: [T, N] returns in units of reward.
            mask: [T, N] bool, those that count.
        """
        is_new = self.is_new
        scale, shift = (part.double() for part in self.scale_and_shift())
        self.update(x, mask)
        if is_new:
            return
        new_scale, new_shift = (part.double() for part in self.scale_and_shift())
        layer.weight.copy_(layer.weight * (scale / new_scale))
        layer.bias.copy_((layer.bias * scale + shift - new_shift) / new_scale)

    def normalize(self, x: Tensor) -> Tensor:
        """Units of reward -> normalised; the inverse of `denormalize`, so nothing is clipped."""
        return (x - self.mean) / self._deviation()

    def denormalize(self, x: Tensor) -> Tensor:
        """Normalised -> units of reward."""
        scale, shift = self.scale_and_shift()
        return torch.addcmul(shift, x, scale)

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """What `denormalize` multiplies with and adds."""
        return self._deviation(), self.mean

    def _deviation(self) -> Tensor:
        # Equal returns have no scale of their own; before the first sparse reward they are all 0.
        deviation = torch.maximum(self.variance.sqrt(), _SMALLEST_SPREAD * self.mean.abs())
        return torch.where(deviation > 0.0, deviation, 1.0)


def _store(pair: Tensor, value: Tensor) -> None:
    pair[0] = value
    pair[1] = value - pair[0]
