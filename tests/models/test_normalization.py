"""Running moments against numpy in float64, over long and hard streams."""

import numpy as np
import pytest
import torch
from torch import nn

from appo.algorithms.models.normalization import ObservationNormalizer, ReturnsNormalizer, RunningMoments


def everything(x):
    return torch.ones(x.shape[:2], dtype=torch.bool)


def test_moments_are_those_of_all_masked_rows_so_far():
    moments, rng = RunningMoments((3,)), np.random.default_rng(0)
    seen = []
    for _ in range(20):
        x = rng.normal([1.0, -50.0, 1e4], [1.0, 0.01, 300.0], (5, 4, 3)).astype(np.float32)
        mask = rng.random((5, 4)) < 0.7
        moments.update(torch.from_numpy(x), torch.from_numpy(mask))
        seen.append(x[mask])
    rows = np.concatenate(seen).astype(np.float64)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-5)
    assert moments.count.sum() == len(rows) < 20 * 20


def test_a_masked_row_has_no_influence_and_an_empty_mask_changes_nothing():
    x, mask = torch.randn(4, 2, 3), torch.tensor([[True, False]] * 4)
    ours, poisoned = RunningMoments((3,)), RunningMoments((3,))
    ours.update(x, mask)
    poisoned.update(torch.where(mask.unsqueeze(-1), x, torch.nan), mask)
    assert torch.equal(ours.moments, poisoned.moments)
    before = ours.moments.clone()
    ours.update(x + 100.0, torch.zeros_like(mask))
    assert torch.equal(ours.moments, before) and ours.moments[0, 0].any()


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_float32_state_follows_beyond_a_billion_samples(offset):
    """The mean of the stream moves after 1e9 samples; plain float32 would lose each small step of it."""
    moments, expected, count = RunningMoments((1,)), offset, 1e9
    moments.moments[0, 0] = offset
    moments.count[0] = count
    batch = torch.tensor([[[offset + 0.5]]]).expand(1, 1024, 1)
    for _ in range(2000):
        moments.update(batch, everything(batch))
        expected += 1024 / (count + 1024) * (offset + 0.5 - expected)
        count += 1024
    plain = np.float32(offset)
    for _ in range(2000):
        plain += np.float32(1024 / 1e9) * (np.float32(offset + 0.5) - plain)
    assert moments.moments[0].double().sum().item() == pytest.approx(expected, abs=1e-8)
    assert moments.count.double().sum().item() == count
    if offset:
        assert plain == np.float32(offset) != np.float32(expected), "float32 alone would have passed"


@pytest.mark.parametrize("huge", [1e20, -1e30, torch.finfo(torch.float32).max])
def test_statistics_of_huge_numbers_are_finite_and_so_is_what_they_scale(huge):
    normalizer, clean = ObservationNormalizer((2,)), ObservationNormalizer((2,))
    for _ in range(3):
        x = torch.randn(4, 8, 2)
        clean.update(x, everything(x))
        x[1, 2, 0] = huge
        normalizer.update(x, everything(x))
        assert normalizer.moments.isfinite().all() and normalizer.variance[0] > 1e30
    assert normalizer(x).isfinite().all()
    assert normalizer(x)[1, 2, 0].item() == (5.0 if huge > 0.0 else -5.0)
    assert torch.equal(normalizer.moments[..., 1], clean.moments[..., 1]), "other numbers are as they were"
    x[..., 0] = huge * torch.tensor([1.0, -1.0]).repeat(16).view(4, 8)
    for _ in range(3):
        normalizer.update(x, everything(x))
    assert normalizer.moments.isfinite().all()


def test_all_state_is_float32_and_travels_with_the_state_dict():
    source, copy = ObservationNormalizer((2,)), ObservationNormalizer((2,))
    source.update(torch.randn(6, 5, 2) * 3.0 + 1.0, torch.ones(6, 5, dtype=torch.bool))
    copy.load_state_dict(source.state_dict())
    x = torch.randn(7, 2)
    assert {value.dtype for value in source.state_dict().values()} == {torch.float32}
    assert torch.equal(copy(x), source(x)) and not torch.equal(source(x), x)


def test_observations_are_centred_scaled_and_clipped():
    normalizer = ObservationNormalizer((1,))
    x = torch.randn(100, 50, 1) * 20.0 + 300.0
    normalizer.update(x, everything(x))
    normal = normalizer(x)
    assert abs(normal.mean().item()) < 0.01 and abs(normal.std().item() - 1.0) < 0.01
    assert normalizer(torch.tensor([[1e6], [-1e6]])).squeeze().tolist() == [5.0, -5.0]
    constant = ObservationNormalizer((1,))
    constant.update(torch.full((3, 3, 1), 0.1), torch.ones(3, 3, dtype=torch.bool))
    assert constant(torch.tensor([[0.1]])).abs().item() < 1e-3


def test_normalised_returns_come_back_and_start_unchanged():
    normalizer, x = ReturnsNormalizer(), torch.randn(8, 16) * 40.0 - 90.0
    assert torch.equal(normalizer.normalize(x), x) and torch.equal(normalizer.denormalize(x), x)
    normalizer.update(x, everything(x))
    normal = normalizer.normalize(x)
    assert abs(normal.mean().item()) < 1e-5 and normal.std(correction=0).item() == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(normalizer.denormalize(normal), x)


def test_the_statistics_of_returns_forget_the_beginning_and_those_of_observations_do_not():
    returns, observations = ReturnsNormalizer(), ObservationNormalizer(())
    for normalizer in returns, observations:
        for step in range(600):
            x = torch.randn(4, 16) + (1000.0 if step < 100 else 10.0)
            normalizer.update(x, everything(x))
    assert returns.mean.item() == pytest.approx(10.0, abs=0.5)
    assert returns.variance.item() < 100.0
    assert observations.mean.item() == pytest.approx(175.0, abs=0.5)


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (1e-3, 5e-3), (1e3, -2e4)])
def test_an_update_of_the_units_leaves_every_value_as_it_was(scale, shift):
    normalizer, layer = ReturnsNormalizer(), nn.Linear(8, 1)
    features, x = torch.randn(32, 8), shift + scale * torch.randn(8, 16)
    before = normalizer.denormalize(layer(features))
    normalizer.update_preserving(layer, x, everything(x))
    first = normalizer.denormalize(layer(features))
    assert not torch.allclose(first, before)  # nothing was known: values begin at the mean of the returns
    for step in range(100):
        more = x * (1.0 + 0.1 * step) + 0.3 * step * scale
        normalizer.update_preserving(layer, more, everything(more))
    after = normalizer.denormalize(layer(features))
    spread = normalizer.scale_and_shift()[0].item()
    assert spread > 2.0 * scale  # the units did change
    torch.testing.assert_close(after, first, rtol=1e-5, atol=1e-5 * spread)


def test_huge_returns_leave_units_and_values_finite():
    normalizer, layer = ReturnsNormalizer(), nn.Linear(8, 1)
    features = torch.randn(32, 8)
    for size in (1.0, 1e25, 1.0):
        x = size * torch.randn(8, 16)
        normalizer.update_preserving(layer, x, everything(x))
        assert normalizer.moments.isfinite().all()
        assert normalizer.denormalize(layer(features)).isfinite().all()
        assert normalizer.normalize(x).isfinite().all()
    first, x = ReturnsNormalizer(), 1e25 * torch.randn(8, 16)
    first.update_preserving(layer, x, everything(x))  # before anything is known
    assert first.moments.isfinite().all()


def test_a_small_update_weighs_little_and_does_not_make_the_former_ones_fade():
    normalizer = ReturnsNormalizer()

    def update(value, rows):
        normalizer.update(torch.full((rows,), value), torch.ones(rows))

    for _ in range(200):
        update(0.0, 2048)
    update(100.0, 1)
    assert abs(normalizer.mean) < 0.01
    update(1.0, 2048)
    assert abs(normalizer.mean - 1 / 51) < 0.002


def test_an_update_without_rows_changes_neither_units_nor_values():
    normalizer, layer = ReturnsNormalizer(), nn.Linear(8, 1)
    x = torch.randn(8, 16)
    for _ in range(2):
        normalizer.update_preserving(layer, x, everything(x))
    before = [layer.weight.clone(), layer.bias.clone(), normalizer.moments.clone()]
    normalizer.update_preserving(layer, x * 100.0, ~everything(x))
    assert all(map(torch.equal, before, [layer.weight, layer.bias, normalizer.moments]))


def test_equal_returns_do_not_blow_up_the_first_different_one():
    normalizer, zeros = ReturnsNormalizer(), torch.zeros(8, 16)
    normalizer.update(zeros, everything(zeros))
    assert normalizer.normalize(torch.tensor(1.0)).item() == 1.0
    tens = torch.full((8, 16), 10.0)
    for _ in range(1000):  # until the zeros are forgotten
        normalizer.update(tens, everything(tens))
    assert normalizer.normalize(torch.tensor(11.0)).item() == pytest.approx(100.0, rel=1e-3)
