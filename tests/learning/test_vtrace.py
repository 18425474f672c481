"""V-trace against its definition, its limits, and a neighbour's episode."""

import math

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.gae import gae
from appo.algorithms.learning.vtrace import vtrace

TENSORS = ("log_ratio", "rewards", "values", "discounts", "has_delta")


def random_case(steps=6, trajectories=3, ends=True):
    generator = torch.Generator().manual_seed(7)
    shape = (steps, trajectories)
    case = {
        "log_ratio": torch.empty(shape).uniform_(math.log(0.1), math.log(10.0), generator=generator),
        "rewards": torch.randn(shape, generator=generator),
        "values": torch.randn(shape, generator=generator),
        "bootstrap_value": torch.randn(trajectories, generator=generator),
        "discounts": torch.full(shape, 0.9),
        "has_delta": torch.ones(shape),
    }
    if ends:
        case["discounts"][2, 0] = 0.0  # terminated
        case["discounts"][3, 1] = case["has_delta"][3, 1] = 0.0  # final
    return case


def by_definition(w, r, v, discount, has_delta, v_end, rho_max, c_max):
    """Equation (1) of the paper for one trajectory in plain floats: sums of products, no recursion."""
    horizon, next_v = len(r), [*v[1:], v_end]

    def rho(t):
        return has_delta[t] * min(rho_max, w[t])

    def target(s):
        return v[s] + sum(
            math.prod(discount[i] * min(c_max, w[i]) for i in range(s, t))
            * rho(t)
            * (r[t] + discount[t] * next_v[t] - v[t])
            for t in range(s, horizon)
        )

    targets = [target(s) for s in range(horizon)] + [v_end]
    return targets[:-1], [rho(t) * (r[t] + discount[t] * targets[t + 1] - v[t]) for t in range(horizon)]


@pytest.mark.parametrize(("rho_max", "c_max"), [(1, 1), (2, 1), (1, 0.5), (1e9, 1e9), (1, 0)])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 8, 9])
def test_equals_the_definition(steps, rho_max, c_max):
    case = random_case(steps, ends=steps >= 6)
    result = vtrace(**case, rho_max=rho_max, c_max=c_max)
    for b in range(3):
        log_w, r, v, discount, has_delta = (case[name][:, b].tolist() for name in TENSORS)
        w, v_end = [math.exp(x) for x in log_w], case["bootstrap_value"][b].item()
        targets, advantages = by_definition(w, r, v, discount, has_delta, v_end, rho_max, c_max)
        assert result.value_targets[:, b].tolist() == pytest.approx(targets, rel=1e-4, abs=1e-4)
        assert result.advantages[:, b].tolist() == pytest.approx(advantages, rel=1e-4, abs=1e-4)


def test_on_policy_targets_are_discounted_returns():
    case = random_case(ends=False) | {"log_ratio": torch.zeros(6, 3)}
    returns: list[torch.Tensor] = []
    following = case["bootstrap_value"]
    for reward in case["rewards"].flip(0):
        following = reward + 0.9 * following
        returns.insert(0, following)
    assert_close(vtrace(**case, rho_max=1.0, c_max=1.0).value_targets, torch.stack(returns))


def test_on_policy_it_equals_gae_with_lambda_one():
    case = random_case() | {"log_ratio": torch.zeros(6, 3)}
    result = vtrace(**case, rho_max=1.0, c_max=1.0)
    del case["log_ratio"]
    expected = gae(**case, gae_lambda=1.0)
    assert_close(result.value_targets, expected.value_targets)
    assert_close(result.advantages, expected.advantages)


def test_without_discount_only_the_next_reward_counts():
    case = random_case(ends=False) | {"discounts": torch.zeros(6, 3), "log_ratio": torch.zeros(6, 3)}
    assert_close(vtrace(**case, rho_max=1.0, c_max=1.0).value_targets, case["rewards"])


def test_a_final_rows_target_is_its_own_value():
    case = random_case()
    result = vtrace(**case, rho_max=1.0, c_max=1.0)
    assert result.value_targets[3, 1] == case["values"][3, 1]
    assert result.advantages[3, 1] == 0.0


def test_what_happens_after_an_episode_ends_does_not_reach_back():
    case = random_case()
    before = vtrace(**case, rho_max=1.0, c_max=1.0).value_targets
    case["rewards"][3:, 0] += 10.0
    case["bootstrap_value"][0] += 7.0
    after = vtrace(**case, rho_max=1.0, c_max=1.0).value_targets
    assert_close(after[:3, 0], before[:3, 0])
    assert (after[3:, 0] - before[3:, 0]).abs().min() > 0.1  # otherwise this test would prove nothing


def test_a_trajectory_does_not_see_its_neighbours():
    case = random_case()
    whole = vtrace(**case, rho_max=1.0, c_max=1.0)
    alone = vtrace(**{name: x[..., 1:2] for name, x in case.items()}, rho_max=1.0, c_max=1.0)
    assert_close(whole.value_targets[:, 1:2], alone.value_targets)


def test_no_gradient_flows_through_what_it_returns():
    case = {name: x.requires_grad_() for name, x in random_case().items()}
    assert not any(part.requires_grad for part in vtrace(**case, rho_max=1.0, c_max=1.0))
    del case["log_ratio"]
    assert not any(part.requires_grad for part in gae(**case, gae_lambda=0.9))


def test_long_trajectories_with_high_caps_stay_finite():
    steps = 127
    case = {name: torch.ones(steps, 1) for name in TENSORS} | {"bootstrap_value": torch.ones(1)}
    case["discounts"][100:] = 0.0
    result = vtrace(**case, rho_max=2.0, c_max=2.0)
    assert result.value_targets.isfinite().all()


@pytest.mark.parametrize("name", [*TENSORS, "bootstrap_value"])
def test_a_wrong_shape_is_refused_by_name(name):
    case = random_case()
    case[name] = case[name][..., :2]
    with pytest.raises(ValueError, match=name):
        vtrace(**case, rho_max=1.0, c_max=1.0)
