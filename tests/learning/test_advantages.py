"""Means over valid rows and normalised advantages, against plain Python."""

import statistics

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.advantages import masked_mean, mean_weights, normalized_advantages

VALID = torch.tensor([[True, False, True], [True, True, False]])


def test_a_masked_mean_is_the_mean_of_the_valid_rows():
    x = torch.tensor([[1.0, 100.0, 2.0], [3.0, 6.0, -100.0]])
    assert masked_mean(x, mean_weights(VALID)).item() == pytest.approx(3.0)


def test_a_mean_over_none_is_zero_and_pulls_at_nothing():
    x = torch.randn(2, 3, requires_grad=True)
    mean = masked_mean(x, mean_weights(torch.zeros(2, 3, dtype=torch.bool)))
    mean.backward()
    assert mean.item() == 0.0
    assert x.grad is not None and x.grad.abs().max() == 0.0


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_valid_rows():
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)) * 50 + 9
    result = normalized_advantages(x, VALID, mean_weights(VALID))
    valid = result[VALID].tolist()
    assert statistics.fmean(valid) == pytest.approx(0.0, abs=1e-5)
    assert statistics.pstdev(valid) == pytest.approx(1.0, rel=1e-4)
    assert result[~VALID].abs().max() == 0.0


def test_masked_rows_do_not_change_the_others():
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    before = normalized_advantages(x, VALID, mean_weights(VALID))
    x[~VALID] = 1e6
    assert torch.equal(normalized_advantages(x, VALID, mean_weights(VALID)), before)
    assert before[VALID].abs().min() > 0.0


@pytest.mark.parametrize("num_valid", [0, 1])
def test_with_nothing_to_compare_every_advantage_is_zero(num_valid):
    valid = torch.zeros(2, 3, dtype=torch.bool)
    valid.view(-1)[:num_valid] = True
    assert torch.equal(normalized_advantages(torch.full((2, 3), 5.0), valid, mean_weights(valid)), torch.zeros(2, 3))


def test_the_rounding_error_of_equal_advantages_is_not_blown_up():
    valid = torch.ones(32, 33, dtype=torch.bool)
    result = normalized_advantages(torch.full((32, 33), 1234.567), valid, mean_weights(valid))
    assert result.abs().max() == 0.0


def test_a_spread_below_the_least_is_not_blown_up_to_one():
    x, weights = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)), mean_weights(torch.ones(4, 5).bool())
    valid = torch.ones(4, 5, dtype=torch.bool)
    usual = normalized_advantages(x, valid, weights)
    spread = x.std(correction=0)
    assert torch.equal(normalized_advantages(x, valid, weights, 0.5 * spread), usual)
    assert_close(normalized_advantages(x, valid, weights, 4.0 * spread), usual / 4.0)
