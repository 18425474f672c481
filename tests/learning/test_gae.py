"""GAE against its definition and its limits."""

import math

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.gae import gae

TENSORS = ("rewards", "values", "discounts", "has_delta")


def random_case(steps=6, trajectories=3):
    generator = torch.Generator().manual_seed(3)
    shape = (steps, trajectories)
    case = {
        "rewards": torch.randn(shape, generator=generator),
        "values": torch.randn(shape, generator=generator),
        "bootstrap_value": torch.randn(trajectories, generator=generator),
        "discounts": torch.full(shape, 0.9),
        "has_delta": torch.ones(shape),
    }
    case["discounts"][2, 0] = 0.0  # terminated
    case["discounts"][3, 1] = case["has_delta"][3, 1] = 0.0  # final
    return case


def by_definition(r, v, discount, has_delta, v_end, lam):
    """Equation (16): a sum of discounted errors, no recursion."""
    horizon, next_v = len(r), [*v[1:], v_end]
    delta = [has_delta[t] * (r[t] + discount[t] * next_v[t] - v[t]) for t in range(horizon)]
    return [
        sum(math.prod(discount[i] * lam for i in range(s, t)) * delta[t] for t in range(s, horizon))
        for s in range(horizon)
    ]


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_equals_the_definition(gae_lambda):
    case = random_case()
    result = gae(**case, gae_lambda=gae_lambda)
    for b in range(3):
        r, v, discount, has_delta = (case[name][:, b].tolist() for name in TENSORS)
        expected = by_definition(r, v, discount, has_delta, case["bootstrap_value"][b].item(), gae_lambda)
        assert result.advantages[:, b].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_close(result.value_targets, result.advantages + case["values"])


def test_lambda_zero_is_the_one_step_error():
    case = random_case()
    following = torch.cat((case["values"][1:], case["bootstrap_value"][None]))
    expected = case["has_delta"] * (case["rewards"] + case["discounts"] * following - case["values"])
    assert_close(gae(**case, gae_lambda=0.0).advantages, expected)


def test_lambda_one_does_not_depend_on_values_inside_an_episode():
    case = random_case()
    before = gae(**case, gae_lambda=1.0).value_targets
    case["values"][1:, 2] += 5.0
    assert_close(gae(**case, gae_lambda=1.0).value_targets[0, 2], before[0, 2])
    case["bootstrap_value"][2] += 5.0
    assert (gae(**case, gae_lambda=1.0).value_targets[0, 2] - before[0, 2]).abs() > 1.0  # not a constant


def test_a_truncated_row_bootstraps_with_the_value_of_the_final_observation():
    case = random_case()
    result = gae(**case, gae_lambda=0.95)
    expected = case["rewards"][2, 1] + 0.9 * case["values"][3, 1]
    assert_close(result.value_targets[2, 1], expected)
    assert result.value_targets[3, 1] == case["values"][3, 1]


def test_what_happens_after_an_episode_ends_does_not_reach_back():
    case = random_case()
    before = gae(**case, gae_lambda=0.95).advantages
    case["rewards"][3:, 0] += 10.0
    after = gae(**case, gae_lambda=0.95).advantages
    assert_close(after[:3, 0], before[:3, 0])
    assert (after[3:, 0] - before[3:, 0]).abs().min() > 1.0  # otherwise this test would prove nothing


@pytest.mark.parametrize("name", [*TENSORS, "bootstrap_value"])
def test_a_wrong_shape_is_refused_by_name(name):
    case = random_case()
    case[name] = case[name][..., :2]
    with pytest.raises(ValueError, match=name):
        gae(**case, gae_lambda=0.95)
