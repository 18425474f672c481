"""Gradients as CUDA graphs: the same training. `CalledAgain` stands in for a graph."""

import dataclasses

import pytest
import torch

from appo.algorithms.learning import gradients
from appo.algorithms.learning.learner import Learner
from tests.learning.learning_cases import TinyModel, acted_out, config_for
from tests.models.stand_in_graphs import Refused, WaitsAtTheEnd, count_graphs

KINDS = {
    "one minibatch": {},
    "minibatches in random order": {"batch_size": 6, "ppo_epochs": 2, "with_vtrace": False},
    "minibatches in order": {"batch_size": 12, "ppo_epochs": 3, "shuffle_minibatches": False},
    "stops by KL": {"batch_size": 6, "with_vtrace": False, "lr_schedule": "kl_adaptive_minibatch"},
    "an auxiliary loss": {"batch_size": 6, "auxiliary_loss": "action_smoothness", "kl_loss_coeff": 0.1},
}


@pytest.fixture
def graphs(monkeypatch):
    return count_graphs(monkeypatch, gradients)


def trained(options, graphs=None, *, changes=(), iterations=4):
    """Weights and results of iterations; `changes` come into force before the second and later ones."""
    torch.manual_seed(0)
    model = TinyModel()
    if graphs is not None:
        graphs.weights = tuple(model.parameters())
    learner = Learner(model, config_for(6, 8, **options), "cpu", seed=1, uses_cuda_graphs=graphs is not None)
    seen = []
    for iteration in range(iterations):
        if 0 < iteration <= len(changes):
            learner.change(changes[iteration - 1])
        result = learner.train(acted_out(TinyModel(), 6, 8, seed=iteration), learner.policy_version, 0.0)
        assert all(weight.grad is None for weight in model.parameters())
        weights = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
        seen.append((weights, result))
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_graphs_train_as_others_do(graphs, kind):
    found = trained(KINDS[kind], graphs)
    for (weights, result), (expected_weights, expected) in zip(found, trained(KINDS[kind]), strict=True):
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=0)
        assert result == expected and result.metrics
    assert graphs.made == 1


@pytest.mark.parametrize(
    ("kind", "option", "value", "made"),
    [
        ("minibatches in random order", "exploration_loss_coeff", 0.5, 3),
        ("an auxiliary loss", "action_smoothness_coeff", 5.0, 4),  # which is made anew with every change
    ],
)
def test_changed_options_are_captured_anew(graphs, kind, option, value, made):
    changes = ({option: value}, {option: value}, {"ppo_clip_ratio": 0.01})
    found = trained(KINDS[kind], graphs, changes=changes)
    for (weights, _), (expected, _) in zip(found, trained(KINDS[kind], changes=changes), strict=True):
        torch.testing.assert_close(weights, expected, rtol=0, atol=0)
    assert graphs.made == made
    assert not torch.equal(found[1][0], trained(KINDS[kind])[1][0])  # they take effect


def test_batches_of_another_size_are_captured_anew(graphs):
    model = TinyModel()
    learner = Learner(model, config_for(6, 8), "cpu", uses_cuda_graphs=True)
    for trajectories in (8, 4, 4):
        learner.set_config(dataclasses.replace(learner.config, batch_size=6 * trajectories))
        assert learner.train(acted_out(model, 6, trajectories), learner.policy_version, 0.0).num_sgd_steps == 1
    assert graphs.made == 2


@pytest.mark.parametrize("graph", [Refused, WaitsAtTheEnd])
def test_what_waits_for_its_device_is_computed_without_graphs(monkeypatch, caplog, graph):
    monkeypatch.setattr(gradients, "CapturedGraph", graph)
    options = KINDS["minibatches in random order"]
    found = trained(options, graph)
    torch.testing.assert_close(found[-1][0], trained(options)[-1][0], rtol=0, atol=0)
    assert len(caplog.records) == 1
    assert "without CUDA graphs" in caplog.text and "synchronizing" in caplog.text
