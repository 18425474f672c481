"""Curves of several seeds as one, against values computed by hand."""

import itertools

import numpy as np
import pytest

from appo.tools.seeds import align, bootstrap_interval, iqm, running_mean, summarize

NAN = float("nan")


def same(actual, expected):
    np.testing.assert_allclose(actual, expected)  # NaN equals NaN


def test_a_point_is_in_force_until_the_next_one_and_nothing_is_known_outside():
    grid = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    same(align([([2, 4], [10, 20]), ([0.5], [7]), ([], [])], grid), [[NAN, 10, 10, 20, NAN], [NAN] * 5, [NAN] * 5])
    same(align([([1, 1.5, 5], [1, 2, 3])], grid), [[1, 2, 2, 2, 3]])
    same(align([([2, 3.5], [10, 20])], grid, last_holds=1.0), [[NAN, 10, 10, 20, NAN]])
    two = [([2], [10]), ([2], [20])]
    same(align(two, grid, last_holds=np.array([0.0, 2.0])), [[NAN, 10, NAN, NAN, NAN], [NAN, 20, 20, 20, NAN]])


def test_a_running_mean_looks_back_over_what_exists():
    same(running_mean(np.array([[NAN, 1.0, 2.0, 6.0, NAN], [4.0, 8.0, 0.0, 1.0, 2.0]]), 2),
         [[NAN, 1.0, 1.5, 4.0, NAN], [4.0, 6.0, 4.0, 0.5, 1.5]])  # fmt: skip
    values = np.array([[3.0, NAN], [1.0, 5.0]])
    same(running_mean(values, 1), values)
    same(running_mean(values, 99), [[3.0, NAN], [1.0, 3.0]])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([9.0, 1.0, 2.0], 4.0),  # of three none is left out
        ([100.0, 1.0, 3.0, -50.0], 2.0),
        ([100.0, 1.0, 3.0, -50.0, 8.0], 4.0),  # (1 + 3 + 8) / 3
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(values, expected):
    assert iqm(np.array(values)) == pytest.approx(expected)
    assert iqm(np.array([values, values]), axis=1).tolist() == pytest.approx([expected] * 2)


def test_the_interval_is_that_of_all_resamples_of_a_small_group():
    values = np.array([[1.0], [2.0], [6.0]])
    low, high = bootstrap_interval(values, np.zeros(3, int), resamples=20_000, confidence=0.8)
    means = sorted(sum(drawn) / 3 for drawn in itertools.product([1.0, 2.0, 6.0], repeat=3))
    # All 27 equally likely resamples: the 10 % and 90 % quantiles lie within steps, so chance does not matter.
    assert (low[0], high[0]) == pytest.approx(tuple(np.quantile(means, [0.1, 0.9])))


def test_curves_are_drawn_from_their_own_stratum_only_and_as_a_whole():
    values = np.array([[0.0, 10.0], [2.0, 8.0], [100.0, 0.0]])
    low, high = bootstrap_interval(values, np.array([0, 0, 1]), confidence=0.99)
    same([low, high], [[100 / 3, 16 / 3], [104 / 3, 20 / 3]])  # the third is in every resample
    alone = bootstrap_interval(values, np.array([0, 1, 2]))
    same(alone, [values.mean(axis=0)] * 2)


def test_the_same_curves_have_the_same_interval_however_wide_the_grid():
    values = np.random.default_rng(3).normal(size=(6, 1000))
    narrow = bootstrap_interval(values[:, :2], np.zeros(6, int))
    same(np.array(bootstrap_interval(values, np.zeros(6, int)))[:, :2], narrow)


def test_a_curve_is_told_where_half_of_the_seeds_have_data_and_its_interval_where_two_have():
    values = np.array([[1.0, 1.0, 1.0, NAN], [3.0, 3.0, NAN, NAN], [8.0, NAN, NAN, 2.0]])
    told = summarize(values, np.arange(3), np.zeros(3, int))
    assert told.num_seeds.tolist() == [3, 2, 1, 1]
    same(told.mean, [4.0, 2.0, NAN, NAN])
    same(told.iqm, [4.0, 2.0, NAN, NAN])
    assert (np.isnan(told.low) == [False, False, True, True]).all()
    assert told.low[0] < 4.0 < told.high[0]
    same([told.low[1], told.high[1]], [1.0, 3.0])


def test_nothing_is_told_of_the_few_policies_that_went_furthest():
    values = np.array([[1.0, 1.0, NAN], [2.0, NAN, NAN], [3.0, 3.0, 3.0]])
    told = summarize(values, np.zeros(3, int), np.arange(3))
    same(told.mean, [2.0, 2.0, NAN])


def test_a_single_seed_has_a_curve_and_no_interval_however_many_policies_it_has():
    told = summarize(np.array([[1.0], [5.0]]), np.array([0, 0]), np.array([0, 1]))
    assert told.num_seeds.tolist() == [1] and told.mean.tolist() == [3.0]
    assert np.isnan(told.low[0]) and np.isnan(told.high[0])
