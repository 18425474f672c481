"""What is learned does not depend on the size of rewards when returns are normalised."""

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.learner import Learner
from appo.algorithms.models.normalization import ReturnsNormalizer
from tests.learning.learning_cases import OBSERVATION_SIZE, TinyModel, acted_out, config_for


class ModelInUnitsOfReturns(TinyModel):
    """Its values are preserved when their units change, as a real model's are."""

    def __init__(self) -> None:
        super().__init__()
        self.units = ReturnsNormalizer()
        self.returns_normalizer = self.units  # type: ignore[assignment]

    def update_returns_normalizer(self, returns, mask):
        self.units.update_preserving(self.value, returns, mask)


def trained(scale, *, normalizes=True, **options):
    """The weights, and values in multiples of the scale, after four iterations of the same data."""
    torch.manual_seed(1)
    model = ModelInUnitsOfReturns() if normalizes else TinyModel()
    settings = {"batch_size": 12, "learning_rate": 1e-2, "ppo_epochs": 2, "ppo_clip_value": float("inf")}
    learner = Learner(model, config_for(6, 4, **(settings | options)), "cpu", seed=3)
    for seed in range(4):
        batch = acted_out(TinyModel(), seed=seed)  # no longer this policy's own: ratios differ from 1
        batch.rewards[:] = scale * (3.0 + batch.observations["obs"][:-1, :, 0])
        learner.train(batch, learner.policy_version, 0.0)
    with torch.no_grad():
        observations = torch.randn(16, 8, OBSERVATION_SIZE, generator=torch.Generator().manual_seed(5))
        output = model.unroll({"obs": observations}, torch.zeros(8, 0), torch.zeros(16, 8))
        values = (
            output.values if model.returns_normalizer is None else model.returns_normalizer.denormalize(output.values)
        )
    return output.parameters, values / scale


@pytest.mark.parametrize("with_vtrace", [True, False])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_policy_and_values_are_the_same_at_every_scale(scale, with_vtrace):
    policy, values = trained(1.0, with_vtrace=with_vtrace)
    other_policy, other_values = trained(scale, with_vtrace=with_vtrace)
    assert_close(other_policy, policy, rtol=2e-3, atol=2e-3)
    assert_close(other_values, values, rtol=2e-3, atol=2e-2)
    raw_policy, _ = trained(1.0, normalizes=False, with_vtrace=with_vtrace)
    other_raw, _ = trained(scale, normalizes=False, with_vtrace=with_vtrace)
    assert (other_raw - raw_policy).abs().max() > 0.05  # otherwise the comparison would prove nothing
