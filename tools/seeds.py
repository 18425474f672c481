"""Curves of several seeds as one: a common grid, the interquartile mean, and its stratified bootstrap interval.

numpy only; knows neither files nor pictures. A value that does not exist is NaN: before a curve's first point, when its
last one is not in force any more, and where too few seeds are left to speak for all of them.

Source: Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", 2021, arXiv:2108.13264,
section 4: few runs are told by their interquartile mean (IQM) and an interval from resampled runs.

Shape letters:  C = curves,  X = points of the grid,  R = resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000
RANDOM_SEED = 0  # the same curves have the same interval
_TRIMMED = 0.25  # at each end of the sorted values
_NUMBERS_AT_ONCE = 4_000_000  # of resampled values: 32 MB


class Summary(NamedTuple):
    """What some seeds say together, at each point of the grid; each [X]."""

    num_seeds: NDArray[np.int64]  # that have a value there
    mean: Array
    iqm: Array
    low: Array  # of the interval of the IQM
    high: Array


def align(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]], grid: Array, last_holds: float | Array = 0.0
) -> Array:
    """Curves on a common grid, each point in force until the next one (step interpolation).

    Args:
        curves: of each its positions, ascending, and its values there.
        grid: [X] ascending.
        last_holds: how far beyond its position a curve's last point is in force; for all, or [C].

    Returns:
        [C, X]; NaN outside of a curve's own positions.
    """
    aligned = np.full((len(curves), len(grid)), np.nan)
    for row, (positions, values), holds in zip(aligned, curves, np.broadcast_to(last_holds, len(curves)), strict=True):
        if len(positions):
            newest = np.searchsorted(np.asarray(positions, float), grid, side="right") - 1
            inside = (newest >= 0) & (grid <= positions[-1] + holds)
            row[inside] = np.asarray(values, float)[newest[inside]]
    return aligned


def running_mean(values: Array, width: int) -> Array:
    """[C, X] the mean of the last `width` values that exist, of each curve; NaN stays NaN."""
    exists = ~np.isnan(values)
    sums, counts = _sum_of_last(np.where(exists, values, 0.0), width), _sum_of_last(exists.astype(float), width)
    return np.where(exists, sums / np.maximum(counts, 1.0), np.nan)


def _sum_of_last(values: Array, width: int) -> Array:
    total = np.cumsum(values, axis=1)
    total[:, width:] -= total[:, :-width].copy()
    return total


def iqm(values: Array, axis: int = 0) -> Any:
    """Interquartile mean: without the lowest and the highest quarter of the values, each rounded down to whole ones.

    So it is the mean of fewer than four values, and of five the mean of the middle three.
    """
    count = values.shape[axis]
    cut = int(_TRIMMED * count)
    middle = np.take(np.sort(values, axis=axis), np.arange(cut, count - cut), axis=axis)
    return middle.mean(axis=axis)


def bootstrap_interval(
    values: Array, strata: NDArray[np.int64], *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE
) -> tuple[Array, Array]:
    """Percentile interval of the IQM over curves that are drawn again, with replacement, each from its own stratum.

    A curve is drawn as a whole: its values at different points of the grid stay together.

    Args:
        values: [C, X] without NaN.
        strata: [C] which curves may stand for each other. A stratum of one curve always keeps it.
        resamples: R.
        confidence: share of the resampled IQMs that lies within.

    Returns:
        Lower and upper bound, [X] each.
    """
    random = np.random.default_rng(RANDOM_SEED)
    drawn = np.empty((resamples, len(values)), np.int64)
    for stratum in np.unique(strata):
        (members,) = np.nonzero(strata == stratum)
        drawn[:, members] = members[random.integers(len(members), size=(resamples, len(members)))]
    # Of five curves there are only 126 different resamples, however often each is drawn.
    different, which = np.unique(np.sort(drawn, axis=1), axis=0, return_inverse=True)
    tails = [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0]
    bounds = np.empty((2, values.shape[1]))
    columns = max(1, _NUMBERS_AT_ONCE // drawn.size)
    for first in range(0, values.shape[1], columns):
        part = slice(first, first + columns)
        resampled = iqm(values.T[part][:, different], axis=2)  # [X, different ones]
        bounds[:, part] = np.quantile(resampled[:, which.reshape(-1)], tails, axis=1)
    return bounds[0], bounds[1]


def summarize(values: Array, seeds: NDArray[np.int64], strata: NDArray[np.int64]) -> Summary:
    """Mean, IQM and interval where half of the seeds and of the curves have a value; the interval where two seeds have.

    Args:
        values: [C, X] with NaN where a curve has no value.
        seeds: [C] which run each curve comes from; a run with several policies has several curves.
        strata: [C] as for `bootstrap_interval`; the policies of a run are strata of their own.
    """
    num_seeds = np.zeros(values.shape[1], np.int64)
    told = np.full((4, values.shape[1]), np.nan)
    exists = ~np.isnan(values)
    patterns, which = np.unique(exists, axis=1, return_inverse=True)
    for number, there in enumerate(patterns.T):
        columns = which.reshape(-1) == number
        count = len(np.unique(seeds[there]))
        num_seeds[columns] = count
        if count == 0 or 2 * count < len(np.unique(seeds)) or 2 * there.sum() < len(there):
            continue
        present = values[np.ix_(there, columns)]
        told[0, columns], told[1, columns] = present.mean(axis=0), iqm(present)
        if count >= 2:
            told[2:, columns] = bootstrap_interval(present, strata[there])
    return Summary(num_seeds, *told)
