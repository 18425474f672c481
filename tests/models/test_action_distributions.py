"""Distributions by hand against torch.distributions, finite differences and their own samples."""

import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence

from appo.algorithms.models.action_distributions import FORBIDDEN, ActionDistribution
from appo.algorithms.specs import ActionSpec
from appo.envs.api import ActionLeaf


def discrete(size):
    return ActionLeaf("discrete", size)


def continuous(size):
    return ActionLeaf("continuous", size, (-1.0,) * size, (1.0,) * size)


SPACES = {
    "discrete": (discrete(5),),
    "one_choice": (discrete(1),),
    "equal_leaves": (discrete(3), discrete(3)),
    "unequal_leaves": (discrete(2), discrete(5), discrete(3)),
    "box": (continuous(6),),
    "two_boxes": (continuous(1), continuous(2)),
    "mixed": (continuous(2), discrete(4), continuous(1), discrete(2)),
}


def random_parameters(spec, *batch, seed=0, masked=False):
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(*batch, spec.num_parameters, generator=generator)
    start = 0
    for leaf in spec.leaves:
        if leaf.kind == "discrete" and masked and leaf.size > 2:
            parameters[..., start + 1 : start + leaf.size - 1] = FORBIDDEN
        start += leaf.size if leaf.kind == "discrete" else 2 * leaf.size
    return parameters


def by_leaf(spec, parameters):
    """torch's own distribution of every leaf; a forbidden choice has probability 0 there too."""
    distributions: list[Categorical | Normal] = []
    start = 0
    for leaf in spec.leaves:
        if leaf.kind == "discrete":
            distributions.append(Categorical(logits=parameters[..., start : start + leaf.size]))
            start += leaf.size
        else:
            mean, log_std = parameters[..., start : start + 2 * leaf.size].chunk(2, -1)
            distributions.append(Normal(mean, log_std.exp()))
            start += 2 * leaf.size
    return distributions


def summed(spec, values):
    return sum(v if leaf.kind == "discrete" else v.sum(-1) for leaf, v in zip(spec.leaves, values, strict=True))


@pytest.fixture(params=[(name, masked) for name in SPACES for masked in (False, True)], ids=str)
def case(request):
    name, masked = request.param
    spec = ActionSpec(SPACES[name])
    parameters = random_parameters(spec, 4, 3, masked=masked)
    return ActionDistribution(spec), spec, parameters, random_parameters(spec, 4, 3, seed=1, masked=masked)


def test_log_prob_is_that_of_torch(case):
    distribution, spec, parameters, _ = case
    actions = distribution.sample(parameters, torch.Generator().manual_seed(0))
    expected, column = [], 0
    for leaf, theirs in zip(spec.leaves, by_leaf(spec, parameters), strict=True):
        width = 1 if leaf.kind == "discrete" else leaf.size
        part = actions[..., column : column + width]
        expected.append(theirs.log_prob(part.squeeze(-1) if leaf.kind == "discrete" else part))
        column += width
    assert actions.shape == (4, 3, spec.width) and actions.dtype == torch.float32
    torch.testing.assert_close(distribution.log_prob(parameters, actions), summed(spec, expected))


def test_a_sample_comes_with_its_log_prob_and_without_a_gradient(case):
    distribution, _, parameters, _ = case
    parameters.requires_grad_()
    actions, log_prob = distribution.sample_with_log_prob(parameters, torch.Generator().manual_seed(0))
    assert torch.equal(actions, distribution.sample(parameters, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(log_prob, distribution.log_prob(parameters, actions).detach(), atol=1e-5, rtol=1e-5)
    assert not actions.requires_grad and not log_prob.requires_grad


def test_entropy_and_kl_are_those_of_torch(case):
    distribution, spec, p, q = case
    p_leaves, q_leaves = by_leaf(spec, p), by_leaf(spec, q)
    entropy = summed(spec, [leaf.entropy() for leaf in p_leaves])
    kl = summed(spec, [kl_divergence(a, b) for a, b in zip(p_leaves, q_leaves, strict=True)])
    torch.testing.assert_close(distribution.entropy(p), entropy)
    torch.testing.assert_close(distribution.kl(p, q), kl)
    torch.testing.assert_close(distribution.kl(p, p), torch.zeros(4, 3))


def test_symmetric_kl_is_to_the_uniform_over_allowed_choices_and_to_the_unit_gaussian(case):
    distribution, spec, parameters, _ = case
    expected = []
    neutral: Categorical | Normal
    for leaf, ours in zip(spec.leaves, by_leaf(spec, parameters), strict=True):
        if leaf.kind == "discrete":
            allowed = ours.probs > 0
            neutral = Categorical(logits=torch.where(allowed, 0.0, FORBIDDEN).expand_as(ours.probs))
        else:
            neutral = Normal(torch.zeros(leaf.size), torch.ones(leaf.size))
        expected.append(0.5 * (kl_divergence(ours, neutral) + kl_divergence(neutral, ours)))
    torch.testing.assert_close(
        distribution.symmetric_kl_to_uniform(parameters), summed(spec, expected), atol=1e-5, rtol=1e-5
    )


def test_gradients_agree_with_finite_differences(case):
    distribution, _, p, q = case
    actions = distribution.sample(p, torch.Generator().manual_seed(0)).double()
    free = (p > 0.5 * FORBIDDEN).double()
    # Forbidden logits are constants, as in the model: a step of finite differences leaves them where they are.
    x = torch.where(free.bool(), p, 0.0).double().requires_grad_()
    other = q.double()

    def parameters(x):
        return x * free + FORBIDDEN * (1.0 - free)

    assert torch.autograd.gradcheck(lambda x: distribution.log_prob(parameters(x), actions), x)
    assert torch.autograd.gradcheck(lambda x: distribution.entropy(parameters(x)), x)
    assert torch.autograd.gradcheck(lambda x: distribution.symmetric_kl_to_uniform(parameters(x)), x)
    assert torch.autograd.gradcheck(lambda x: distribution.kl(parameters(x), other), x)
    assert torch.autograd.gradcheck(lambda x: distribution.kl(other, parameters(x)), x)


@pytest.mark.parametrize("confidence", [1.0, 1e3])
def test_everything_stays_finite_with_masks_and_extreme_certainty(confidence):
    spec = ActionSpec(SPACES["unequal_leaves"])
    distribution = ActionDistribution(spec)
    raw = random_parameters(spec, 50, masked=True)
    p = torch.where(raw > 0.5 * FORBIDDEN, confidence * raw, raw).requires_grad_()
    actions = distribution.sample(p)
    forbidden = torch.zeros_like(actions) + 1.0  # choice 1 is masked in the larger leaves
    total = (
        distribution.log_prob(p, actions)
        + distribution.log_prob(p, forbidden)
        + distribution.entropy(p)
        + distribution.kl(p, raw)
        + distribution.symmetric_kl_to_uniform(p)
    )
    total.sum().backward()
    assert total.isfinite().all() and p.grad is not None and p.grad.isfinite().all() and p.grad.any()


def test_forbidden_choices_are_never_sampled_and_the_rest_as_often_as_they_should():
    spec = ActionSpec((discrete(3), discrete(4)))
    distribution = ActionDistribution(spec)
    parameters = torch.tensor([0.3, FORBIDDEN, -0.5, 1.0, 0.0, FORBIDDEN, -1.0]).expand(40_000, -1)
    actions = distribution.sample(parameters, torch.Generator().manual_seed(0)).long()
    for column, theirs in enumerate(by_leaf(spec, parameters[0])):
        counts = torch.bincount(actions[:, column], minlength=theirs.probs.numel())
        assert not counts[theirs.probs == 0].any()
        # 5 standard errors of a proportion.
        torch.testing.assert_close(counts / 40_000, theirs.probs, atol=5 * 0.5 / 200, rtol=0.0)


def test_gaussian_samples_have_the_mean_and_deviation_asked_for():
    distribution = ActionDistribution(ActionSpec((continuous(2),)))
    parameters = torch.tensor([1.0, -2.0, 0.5, -1.0]).expand(40_000, -1)
    actions = distribution.sample(parameters, torch.Generator().manual_seed(0))
    std = torch.tensor([0.5, -1.0]).exp()
    assert ((actions.mean(0) - torch.tensor([1.0, -2.0])).abs() < 5 * std / 200).all()
    torch.testing.assert_close(actions.std(0), std, rtol=0.02, atol=0.0)


def test_samples_repeat_under_a_generator_and_mixed_columns_lie_where_they_belong():
    spec = ActionSpec(SPACES["mixed"])
    distribution = ActionDistribution(spec)
    parameters = random_parameters(spec, 64)
    first, again, other = (distribution.sample(parameters, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first[:, [2, 4]], first[:, [2, 4]].round())
    assert set(first[:, 2].tolist()) == {0, 1, 2, 3} and set(first[:, 4].tolist()) == {0, 1}


def test_the_mode_is_the_most_likely_action(case):
    distribution, _, parameters, _ = case
    best = distribution.log_prob(parameters, distribution.mode(parameters))
    for seed in range(20):
        sampled = distribution.sample(parameters, torch.Generator().manual_seed(seed))
        assert (distribution.log_prob(parameters, sampled) <= best + 1e-6).all()


def test_wrong_widths_are_named():
    distribution = ActionDistribution(ActionSpec(SPACES["mixed"]))
    with pytest.raises(ValueError, match="last dimension has 12"):
        distribution.entropy(torch.zeros(2, 11))
    with pytest.raises(ValueError, match="actions is"):
        distribution.log_prob(torch.zeros(2, 12), torch.zeros(2, 1))
