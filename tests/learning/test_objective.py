"""One forward pass: targets, units and terms of the loss."""

import pytest
import torch
from torch.testing import assert_close

from appo.algorithms.learning.learner import Learner
from appo.algorithms.learning.minibatches import whole_batch
from appo.algorithms.learning.objective import evaluate
from tests.learning.learning_cases import ScaledReturns, TinyModel, acted_out, config_for


@pytest.mark.parametrize("with_vtrace", [True, False])
def test_a_truncated_step_learns_the_reward_and_the_value_of_the_final_observation(with_vtrace):
    """Two rows: a step with reward 1 that is cut off, then the final observation itself."""
    torch.manual_seed(0)
    model = TinyModel()
    batch = acted_out(model, 2, 1, ends=False)
    batch.rewards[:] = torch.tensor([[1.0], [0.0]])
    batch.is_last[1], batch.is_first[2] = 1, 1
    config = config_for(2, 1, with_vtrace=with_vtrace, gamma=0.9)
    objective = evaluate(model, whole_batch(batch, config, 0), config)
    final_value = model.unroll(batch.observations, batch.recurrent_state[0], batch.is_first).values[1, 0]
    assert final_value.abs() > 1e-3  # bootstrapping with zero would be seen
    assert_close(objective.estimates.value_targets[0, 0], 1.0 + 0.9 * final_value.detach())
    assert_close(objective.estimates.value_targets[1, 0], final_value.detach())
    assert objective.weights.tolist() == [[1.0], [0.0]]


def test_the_loss_is_the_sum_of_its_terms():
    config = config_for(6, 4, kl_loss_coeff=0.1, exploration_loss_coeff=0.2)
    model = TinyModel()
    batch = acted_out(TinyModel())  # another model acted: ratios and KL are not trivial
    objective = evaluate(model, whole_batch(batch, config, 0), config)
    assert set(objective.terms) == {"policy_loss", "value_loss", "exploration_loss", "kl_loss"}
    assert all(term.abs() > 0.0 for term in objective.terms.values())
    assert_close(objective.loss.detach(), torch.stack(tuple(objective.terms.values())).sum())


def test_masked_rows_have_no_influence_on_the_gradient():
    config = config_for(6, 4, kl_loss_coeff=0.1)
    model, batch = TinyModel(), acted_out(TinyModel())

    def gradient():
        loss = evaluate(model, whole_batch(batch, config, 0), config).loss
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])

    before = gradient()
    masked = ~whole_batch(batch, config, 0).valid
    assert masked.sum() == 3
    for array in (batch.behaviour_log_prob, batch.behaviour_value, batch.behaviour_parameters[..., 0]):
        array[masked] += 2.0
    batch.actions[masked] = (batch.actions[masked] + 1) % 3
    batch.rewards[3, 1] += 5.0  # of the final row
    assert_close(gradient(), before)
    batch.behaviour_log_prob[~masked] += 0.01
    assert (gradient() - before).abs().max() > 1e-5


@pytest.mark.parametrize("shift", [1000.0, -1000.0])
def test_differences_that_are_small_beside_the_return_weigh_little_when_taken_for_noise(shift):
    model, batch = TinyModel(), acted_out(TinyModel())
    batch = batch._replace(rewards=batch.rewards + shift)

    def policy_loss(**options):
        config = config_for(6, 4, gamma=0.0, with_vtrace=False, **options)
        return evaluate(model, whole_batch(batch, config, 0), config).terms["policy_loss"]

    assert policy_loss(advantage_noise=1.0).abs() < 0.1 * policy_loss().abs()
    assert_close(policy_loss(advantage_noise=1e-7), policy_loss())


def test_values_are_learned_in_normalised_units():
    torch.manual_seed(0)
    model = TinyModel(returns_normalizer=ScaledReturns(mean=5.0, deviation=10.0))
    batch = acted_out(model, 1, 1, ends=False)
    batch.terminated[0], batch.is_first[1] = 1, 1
    batch.rewards[:] = 30.0
    config = config_for(1, 1, value_loss_coeff=1.0, ppo_clip_value=100.0)
    objective = evaluate(model, whole_batch(batch, config, 0), config)
    raw = model.unroll(batch.observations, batch.recurrent_state[0], batch.is_first).values[0, 0].detach()
    assert_close(objective.estimates.value_targets, torch.tensor([[30.0]]))
    assert_close(objective.values[0, 0], raw * 10.0 + 5.0)
    assert_close(objective.terms["value_loss"], (raw - 2.5).square())  # (30 - 5) / 10


def test_values_may_move_the_clip_in_normalised_units_away_from_what_the_actor_saw():
    model = TinyModel(returns_normalizer=ScaledReturns(mean=0.0, deviation=10.0))
    batch = acted_out(model, 1, 1, ends=False)
    batch.terminated[0], batch.is_first[1] = 1, 1
    raw = model.unroll(batch.observations, batch.recurrent_state[0], batch.is_first).values[0, 0].detach()
    batch.behaviour_value[:] = (raw - 0.5) * 10.0  # the critic has since risen by 0.5 normalised units
    batch.rewards[:] = raw * 10.0
    config = config_for(1, 1, value_loss_coeff=1.0, ppo_clip_value=0.2)
    objective = evaluate(model, whole_batch(batch, config, 0), config)
    assert objective.terms["value_loss"].item() == pytest.approx(0.3**2, rel=1e-4)


def test_an_iteration_shows_the_returns_normaliser_targets_in_units_of_reward():
    normalizer = ScaledReturns(mean=5.0, deviation=10.0)
    model = TinyModel(returns_normalizer=normalizer)
    batch = acted_out(model)
    batch.terminated[:], batch.is_first[1:], batch.is_last[:] = 1, 1, 0
    batch.rewards[:] = 30.0
    Learner(model, config_for(6, 4, batch_size=12, ppo_epochs=2, with_vtrace=False), "cpu").train(batch, 0, 0.0)
    ((targets, mask),) = normalizer.updates
    assert targets.shape == mask.shape == (6, 4)  # each row once, whatever the number of epochs
    assert_close(targets[mask], torch.full_like(targets[mask], 30.0))
