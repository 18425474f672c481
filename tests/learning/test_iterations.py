"""Whole iterations against the textbook: the weights, the rate and the statistics that they end with."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.learner import Learner
from tests.learning.learning_cases import ScaledReturns, TinyModel, acted_out, config_for
from tests.learning.plain_ppo import PlainPpo

# Ratios far from 1, so that every clip is at work; both units of values; two minibatches, or as a case says.
COMMON: dict[str, Any] = {"batch_size": 12, "learning_rate": 5e-3, "shuffle_minibatches": False, "ppo_clip_ratio": 0.5}
SMALL_STEPS = {"lr_schedule_kl_threshold": 1e-4}  # every change is too large: the rate falls each time
CASES: dict[str, dict[str, Any]] = {
    "V-trace, two epochs": {"ppo_epochs": 2},
    "V-trace with other caps": {"vtrace_rho": 0.6, "vtrace_c": 1.8},
    "GAE of one minibatch": {"with_vtrace": False, "batch_size": 24},
    "GAE, two epochs": {"with_vtrace": False, "ppo_epochs": 2},
    "the rate follows the budget": {"lr_schedule": "linear_decay"},
    "the rate follows each minibatch": {"lr_schedule": "kl_adaptive_minibatch", **SMALL_STEPS},
    "the rate follows each epoch": {"lr_schedule": "kl_adaptive_epoch", "ppo_epochs": 2, **SMALL_STEPS},
    "other terms and limits": {"kl_loss_coeff": 0.3, "max_grad_norm": 0.1, "reward_scale": 2.0, "reward_clip": 1.0},
}


def decided_model(seed, returns_normalizer=None):
    """One whose policy depends strongly on what it sees."""
    torch.manual_seed(seed)
    model = TinyModel(returns_normalizer=returns_normalizer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    return model


def pair(config, normalizer=None):
    """A learner and a textbook with equal networks."""
    ours, theirs = (decided_model(1, copy.deepcopy(normalizer)) for _ in range(2))
    return Learner(ours, config, "cpu"), ours, PlainPpo(theirs, config), theirs


def weights_of(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def batch_of(seed=0, normalizer=None):
    """Acted out by other weights than those that train, whose version has to be above 0."""
    return acted_out(decided_model(2, normalizer), seed=seed)


def alternatives(options):
    """The same case with something in it wrong."""
    if options.get("with_vtrace", True):
        swapped = {"vtrace_rho": options.get("vtrace_c", 1.0), "vtrace_c": options.get("vtrace_rho", 1.0)}
        if swapped["vtrace_rho"] != swapped["vtrace_c"]:
            yield swapped
    if "lr_schedule" in options:
        yield {"lr_schedule": "constant"}
    yield {"gamma": 0.9}


@pytest.mark.parametrize("normalizer", [None, ScaledReturns(mean=0.7, deviation=3.0)], ids=["rewards", "normalised"])
@pytest.mark.parametrize("name", CASES)
def test_iterations_end_with_the_weights_and_statistics_of_the_textbook(name, normalizer):
    config = config_for(6, 4, **(COMMON | CASES[name]))
    learner, ours, plain, theirs = pair(config, normalizer)
    observations, rows = [], 0
    for number, progress in enumerate((0.25, 0.75)):
        batch = batch_of(number, normalizer)
        result = learner.train(batch, learner.policy_version + 1, progress)
        expected = plain.train(batch, progress)
        assert_close(weights_of(ours), weights_of(theirs), rtol=1e-3, atol=1e-5)
        assert result.metrics["lr"] == pytest.approx(expected.rate)
        observations.append(expected.observations)
        rows += len(expected.targets)
        if normalizer is not None:
            targets, mask = ours.returns_normalizer.updates[-1]
            assert_close(targets[mask].sort().values, expected.targets.sort().values, rtol=1e-4, atol=1e-5)
    seen = torch.cat(observations)
    assert ours.observation_moments.count.sum() == len(seen) == rows < 2 * 24
    assert_close(ours.observation_moments.mean, seen.mean(0))
    assert_close(ours.observation_moments.variance, seen.var(0, correction=0))
    for wrong in alternatives(CASES[name]):  # otherwise the comparison would prove nothing
        _, _, other, elsewhere = pair(dataclasses.replace(config, **wrong), normalizer)
        for number, progress in enumerate((0.25, 0.75)):
            other.train(batch_of(number, normalizer), progress)
        assert (weights_of(elsewhere) - weights_of(theirs)).abs().max() > 1e-3, wrong


def damaged(kind):
    """Four trajectories in four minibatches, and what is wrong with the first, or the last."""
    batch = batch_of()
    number = -1 if "last" in kind else 0
    if "empty" in kind:
        batch.own[:, number] = False
    else:
        batch.rewards[1, number] = math.nan
    return batch


@pytest.mark.parametrize("with_vtrace", [True, False])
@pytest.mark.parametrize("kind", ["empty first", "empty last", "not finite first", "not finite last"])
def test_a_minibatch_that_is_empty_or_not_finite_keeps_no_other_from_weights_and_statistics(kind, with_vtrace):
    normalizer = ScaledReturns(mean=0.7, deviation=3.0)
    config = config_for(6, 4, **(COMMON | {"batch_size": 6, "ppo_epochs": 2, "with_vtrace": with_vtrace}))
    learner, ours, plain, theirs = pair(config, normalizer)
    result = learner.train(damaged(kind), 0, 0.0)
    expected = plain.train(damaged(kind), 0.0)
    assert result.num_sgd_steps == len(expected.kls) == 6
    assert result.num_bad_steps == (2 if "finite" in kind else 0)
    assert_close(weights_of(ours), weights_of(theirs), rtol=1e-3, atol=1e-5)
    assert ours.observation_moments.count.sum() == len(expected.observations) > 12
    assert_close(ours.observation_moments.mean, expected.observations.mean(0))
    ((targets, mask),) = ours.returns_normalizer.updates
    assert_close(targets[mask].sort().values, expected.targets.sort().values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunks", [1, 3])
def test_in_random_order_both_statistics_leave_out_the_rows_of_a_minibatch_that_is_not_finite(chunks):
    config = config_for(6, 8, batch_size=6, with_vtrace=False, recurrence=6 // chunks, gamma=0.0)
    for poisoned in range(8):
        model = decided_model(1, ScaledReturns(mean=0.0, deviation=1.0))
        batch = acted_out(model, 6, 8, chunks=chunks, ends=False)
        batch.rewards[:] = batch.observations["obs"][:-1, :, 0]  # without discount, a target is what was observed
        others = [column for column in range(8) if column != poisoned]
        batch.rewards[5, poisoned] = math.nan
        Learner(model, config, "cpu", seed=poisoned).train(batch, 0, 0.0)
        ((targets, mask),) = model.returns_normalizer.updates
        seen = model.observation_moments
        assert seen.count.sum() == mask.sum()
        assert_close(seen.mean[0], targets[mask].mean())
        if chunks == 1:  # a minibatch is one trajectory
            assert_close(seen.mean, batch.observations["obs"][:-1, others].mean((0, 1)))
        else:  # the chunks of one trajectory are in one to three minibatches
            assert mask.sum() in (30, 36, 42)


def test_what_is_published_last_holds_the_statistics_even_if_the_last_minibatch_was_empty():
    model = decided_model(1)
    published = []
    learner = Learner(
        model,
        config_for(6, 4, batch_size=6, shuffle_minibatches=False),
        "cpu",
        on_step=lambda version: published.append((version, model.observation_moments.count.sum().item())),
    )
    learner.train(damaged("empty last"), 0, 0.0)
    assert published == [(1, 0), (2, 0), (3, 0), (3, 15)]  # 24 rows but a column, a final row and two inactive ones


WRONG_MEANS = ["of all rows", "reversed", "of the last minibatch"]


@pytest.mark.parametrize(
    ("kind", "wrong"), [("minibatch", name) for name in WRONG_MEANS[:2]] + [("epoch", name) for name in WRONG_MEANS]
)
def test_the_rate_follows_the_kl_from_behaviour_to_target_over_the_valid_rows_of_all_minibatches(kind, wrong):
    options = COMMON | {"batch_size": 24 if kind == "minibatch" else 6, "lr_schedule": f"kl_adaptive_{kind}"}
    _, _, plain, _ = pair(config_for(6, 4, **options))
    batch = batch_of()
    batch.behaviour_parameters[3, 1] = torch.tensor([9.0, 0.0, 0.0])  # of a final row
    kls = plain.train(batch, 0.0).kls

    def mean(name):
        return sum(kl[name] for kl in kls) / len(kls)

    right = mean("right")
    other = kls[-1]["right"] if wrong == "of the last minibatch" else mean(wrong)
    assert abs(right / other - 1.0) > 0.02
    # A rate falls above twice the threshold: between the right divergence and the wrong one.
    threshold = math.sqrt(right * other) / 2.0
    learner, *_ = pair(config_for(6, 4, **options, lr_schedule_kl_threshold=threshold))
    rate = learner.train(batch, 1, 0.0).metrics["lr"]
    assert rate == pytest.approx(5e-3 / 1.5 if right > other else 5e-3)
