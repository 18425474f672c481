"""The terms of the loss against plain Python, their gradients against finite differences."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from appo.algorithms.learning.advantages import mean_weights
from appo.algorithms.learning.ppo_loss import exploration_loss, masked_log_ratio, policy_loss, value_loss
from tests.learning.learning_cases import Categorical

CLIP = (1 / 1.2, 1.2)
VALID = torch.tensor([[True, True, False, True], [True, False, True, True], [True, True, True, True]])


def random_rows(*, scale=1.0, seed=0):
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale


def weights():
    return mean_weights(VALID).double()


def valid_mean(terms):
    return sum(terms) / len(terms)


def test_the_policy_loss_is_the_clipped_surrogate():
    log_ratio, advantages = random_rows(scale=0.4), random_rows(seed=1)
    terms, num_clipped = [], 0
    for x, a in zip(log_ratio[VALID].tolist(), advantages[VALID].tolist(), strict=True):
        ratio = math.exp(x)
        clipped = min(max(ratio, CLIP[0]), CLIP[1])
        num_clipped += clipped != ratio
        terms.append(-min(ratio * a, clipped * a))
    assert 0 < num_clipped < len(terms)  # both branches are compared
    assert policy_loss(log_ratio, advantages, weights(), clip_range=CLIP).item() == pytest.approx(valid_mean(terms))


def test_a_ratio_is_bounded_and_one_where_no_agent_decided():
    log_prob = torch.tensor([[300.0, -300.0, 0.5, 300.0]])
    acted = torch.tensor([[True, True, True, False]])
    assert masked_log_ratio(log_prob, torch.zeros(1, 4), acted).tolist() == [[20.0, -20.0, 0.5, 0.0]]


def test_the_policy_loss_stops_pulling_outside_the_trust_region_only_where_it_would_go_on():
    log_ratio = torch.tensor([[0.5, 0.5, -0.5, -0.5]], requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    policy_loss(log_ratio, advantages, torch.full((1, 4), 0.25), clip_range=CLIP).backward()
    assert log_ratio.grad is not None and log_ratio.grad.ne(0).tolist() == [[False, True, True, False]]


def test_the_value_loss_is_the_larger_squared_error():
    values, seen, targets = random_rows(), random_rows(seed=1), random_rows(seed=2)
    terms, num_clipped = [], 0
    for v, mu_v, target in zip(*(x[VALID].tolist() for x in (values, seen, targets)), strict=True):
        clipped = mu_v + min(max(v - mu_v, -0.3), 0.3)
        num_clipped += clipped != v
        terms.append(max((v - target) ** 2, (clipped - target) ** 2))
    assert 0 < num_clipped < len(terms)
    assert value_loss(values, seen, targets, weights(), clip_value=0.3).item() == pytest.approx(valid_mean(terms))


def test_exploration_losses_fall_with_randomness():
    committed, open_minded = torch.tensor([[[5.0, 0.0, 0.0]]]), torch.tensor([[[0.5, 0.0, 0.0]]])
    for kind in ("entropy", "symmetric_kl"):
        losses = [exploration_loss(kind, Categorical(), p, torch.ones(1, 1)).item() for p in (committed, open_minded)]
        assert losses[0] > losses[1] + 0.1
    entropy = exploration_loss("entropy", Categorical(), torch.zeros(1, 1, 3), torch.ones(1, 1))
    assert entropy.item() == pytest.approx(-math.log(3))


def test_an_unknown_exploration_loss_is_refused():
    with pytest.raises(ValueError, match="allowed: entropy, symmetric_kl"):
        exploration_loss("curiosity", Categorical(), torch.zeros(1, 1, 3), torch.ones(1, 1))


def test_gradients_agree_with_finite_differences():
    log_ratio, values = random_rows(scale=0.4).requires_grad_(), random_rows().requires_grad_()
    advantages, seen, targets = random_rows(seed=1), random_rows(seed=1), random_rows(seed=2)
    parameters = torch.randn(3, 4, 3, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda x: policy_loss(x, advantages, weights(), clip_range=CLIP), log_ratio)
    assert gradcheck(lambda x: value_loss(x, seen, targets, weights(), clip_value=0.3), values)
    for kind in ("entropy", "symmetric_kl"):
        assert gradcheck(lambda x, kind=kind: exploration_loss(kind, Categorical(), x, weights()), parameters)


def test_masked_rows_have_no_influence():
    inputs = [random_rows(seed=s) for s in range(4)]

    def losses():
        x, a, b, c = inputs
        return torch.stack(
            (policy_loss(x, a, weights(), clip_range=CLIP), value_loss(x, b, c, weights(), clip_value=0.3))
        )

    before = losses()
    for x in inputs:
        x[~VALID] += 3.0
    assert_close(losses(), before)
    for x in inputs:
        x[VALID] += torch.rand_like(x[VALID])
    assert (losses() - before).abs().min() > 1e-3


def test_where_no_agent_decided_the_log_ratio_is_zero_without_gradient():
    log_prob = torch.zeros(3, 4, requires_grad=True)
    log_ratio = masked_log_ratio(log_prob, torch.full((3, 4), -0.5), VALID)
    assert_close(log_ratio, VALID * 0.5)
    log_ratio.sum().backward()
    assert_close(log_prob.grad, VALID.float())


def test_an_impossible_action_keeps_the_loss_finite():
    log_ratio = masked_log_ratio(torch.zeros(1, 1), torch.full((1, 1), -1e9), torch.ones(1, 1, dtype=torch.bool))
    loss = policy_loss(log_ratio, -torch.ones(1, 1), torch.ones(1, 1), clip_range=CLIP)
    assert 1e6 < loss.item() < math.inf


def test_wrong_shapes_are_refused_by_name():
    rows, short = torch.zeros(3, 4), torch.zeros(3, 3)
    with pytest.raises(ValueError, match="advantages is"):
        policy_loss(rows, short, rows, clip_range=CLIP)
    with pytest.raises(ValueError, match="targets is"):
        value_loss(rows, rows, short, rows, clip_value=1.0)
    with pytest.raises(ValueError, match="behaviour_log_prob is"):
        masked_log_ratio(rows, short, VALID)
