"""Gradients from recordings: the same training, on fewer calls. `CalledAgain` stands in for what a GPU plays."""

import dataclasses

import pytest
import torch

from appo.algorithms.learning import gradients
from appo.algorithms.learning.learner import Learner
from tests.learning.learning_cases import TinyModel, acted_out, config_for
from tests.models.recordings import CalledAgain, Refused, WaitsAtTheEnd

KINDS = {
    "one minibatch": {},
    "minibatches in random order": {"batch_size": 6, "ppo_epochs": 2, "with_vtrace": False},
    "minibatches in order": {"batch_size": 12, "ppo_epochs": 3, "shuffle_minibatches": False},
    "stops by KL": {"batch_size": 6, "with_vtrace": False, "lr_schedule": "kl_adaptive_minibatch"},
    "an auxiliary loss": {"batch_size": 6, "auxiliary_loss": "action_smoothness", "kl_loss_coeff": 0.1},
}


@pytest.fixture
def recordings(monkeypatch):
    class Counted(CalledAgain):
        made = 0

    monkeypatch.setattr(gradients, "Recording", Counted)
    return Counted


def trained(options, *, is_recorded, changes=(), iterations=4):
    """Weights and metrics after each iteration; `changes` come into force before the iterations after the first."""
    torch.manual_seed(0)
    model = TinyModel()
    learner = Learner(model, config_for(6, 8, **options), "cpu", seed=1, is_recorded=is_recorded)
    seen = []
    for iteration in range(iterations):
        if iteration <= len(changes) and iteration > 0:
            learner.set_config(dataclasses.replace(learner.config, **changes[iteration - 1]))
        result = learner.train(acted_out(TinyModel(), 6, 8, seed=iteration), learner.policy_version, 0.0)
        weights = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
        seen.append((weights, result))
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_gradients_train_as_others_do(recordings, kind):
    for (weights, result), (expected_weights, expected) in zip(
        trained(KINDS[kind], is_recorded=True), trained(KINDS[kind], is_recorded=False), strict=True
    ):
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=0)
        assert result == expected and result.metrics
    assert recordings.made == 1


def test_changed_options_are_recorded_anew(recordings):
    changes = ({"exploration_loss_coeff": 0.5}, {"exploration_loss_coeff": 0.5}, {"ppo_clip_ratio": 0.01})
    options = KINDS["minibatches in random order"]
    found = trained(options, is_recorded=True, changes=changes)
    for (weights, _), (expected, _) in zip(found, trained(options, is_recorded=False, changes=changes), strict=True):
        torch.testing.assert_close(weights, expected, rtol=0, atol=0)
    assert recordings.made == 3
    plain = trained(options, is_recorded=False)
    assert not torch.equal(found[1][0], plain[1][0])  # they take effect


def test_batches_of_another_size_are_recorded_anew(recordings):
    model = TinyModel()
    learner = Learner(model, config_for(6, 8), "cpu", is_recorded=True)
    for trajectories in (8, 4, 4):
        learner.set_config(dataclasses.replace(learner.config, batch_size=6 * trajectories))
        assert learner.train(acted_out(model, 6, trajectories), learner.policy_version, 0.0).num_sgd_steps == 1
    assert recordings.made == 2


@pytest.mark.parametrize("recording", [Refused, WaitsAtTheEnd])
def test_what_waits_for_its_device_is_computed_step_by_step(monkeypatch, caplog, recording):
    monkeypatch.setattr(gradients, "Recording", recording)
    options = KINDS["minibatches in random order"]
    found = trained(options, is_recorded=True)
    torch.testing.assert_close(found[-1][0], trained(options, is_recorded=False)[-1][0], rtol=0, atol=0)
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "step by step" in caplog.text and "synchronizing" in caplog.text
