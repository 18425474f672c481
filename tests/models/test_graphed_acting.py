"""Decisions as CUDA graphs: those of any other batch. `CalledAgain` stands in for a graph."""

import pytest
import torch

from appo.algorithms.models import graphed_acting
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.inference import PolicyInference
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from tests.models.stand_in_graphs import Refused, count_graphs

ROWS = 21
IMAGE = ObservationLeaf("image", (3, 16, 16), "uint8", "image")
VECTOR = ObservationLeaf("vector", (4,), "float32", "vector")
SPEC = EnvSpec((IMAGE, VECTOR), (ActionLeaf("discrete", 4), ActionLeaf("continuous", 2)), 1)
BATCHES = [[3, 20, 0], [1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(ROWS)), [20, 3], [5]]


@pytest.fixture
def graphs(monkeypatch):
    return count_graphs(monkeypatch, graphed_acting)


def policy(*, uses_cuda_graphs, **options):
    torch.manual_seed(0)
    model = build_actor_critic(ModelConfig(hidden_size=8, mlp_layers="8", precision="fp32", **options), SPEC)
    model.uses_cuda_graphs = uses_cuda_graphs
    return PolicyInference(model, ROWS, "cpu", seed=3)


def observed(turn, rows):
    generator = torch.Generator().manual_seed(turn)
    images = torch.randint(0, 256, (ROWS, 16, 16, 3), dtype=torch.uint8, generator=generator).permute(0, 3, 1, 2)
    return {"image": images[rows], "vector": torch.randn(ROWS, 4, generator=generator)[rows]}


@pytest.mark.parametrize("options", [{"use_rnn": False}, {"rnn_type": "gru"}, {"rnn_type": "lstm"}])
def test_graphed_decisions_follow_from_the_same_numbers(graphs, options):
    graphed, plain = policy(uses_cuda_graphs=True, **options), policy(uses_cuda_graphs=False, **options)
    for turn, batch in enumerate(BATCHES):
        rows, is_first = torch.tensor(batch), torch.tensor([row % 4 == turn for row in batch], dtype=torch.uint8)
        found = graphed.act(rows, observed(turn, batch), is_first)
        expected = plain.act(rows, observed(turn, batch), is_first)
        for name in ("parameters", "values", "state_before"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))
        log_prob = graphed.model.distribution.log_prob(found.parameters, found.actions)
        torch.testing.assert_close(log_prob, found.log_prob)
    assert graphs.made == 3  # for up to 8, 16 and all 21 rows


def test_capturing_uses_up_no_random_numbers(graphs):
    graphed, rows = policy(uses_cuda_graphs=True), torch.arange(4)
    batch = observed(0, rows), torch.ones(4, dtype=torch.uint8)
    state = graphed.random_state
    first = graphed.act(rows, *batch)
    graphed.random_state = state
    second = graphed.act(rows, *batch)
    assert graphs.made == 1 and torch.equal(first.actions, second.actions)


def test_what_was_decided_stays(graphs):
    graphed, rows = policy(uses_cuda_graphs=True), torch.arange(4)
    first = graphed.act(rows, observed(0, rows), torch.ones(4, dtype=torch.uint8))
    before = [field.clone() for field in first]
    second = graphed.act(rows, observed(1, rows), torch.zeros(4, dtype=torch.uint8))
    assert all(torch.equal(field, copy) for field, copy in zip(first, before, strict=True))
    assert not torch.equal(first.parameters, second.parameters)


def test_new_weights_and_another_number_of_rows_are_followed(graphs):
    graphed, plain, rows = policy(uses_cuda_graphs=True), policy(uses_cuda_graphs=False), torch.arange(ROWS)
    is_first = torch.zeros(ROWS, dtype=torch.uint8)
    for each in (graphed, plain):
        each.act(rows, observed(0, rows), is_first)
        each.received.mul_(1.5)
        each.adopt_received()
        each.resize(ROWS + 30)
    more = torch.arange(ROWS + 30)
    observations = {name: leaf[more % ROWS] for name, leaf in observed(1, rows).items()}
    none_first = torch.zeros(len(more), dtype=torch.uint8)
    found, expected = (each.act(more, observations, none_first) for each in (graphed, plain))
    torch.testing.assert_close(found.parameters, expected.parameters)
    torch.testing.assert_close(found.state_before, expected.state_before)
    assert expected.state_before[:ROWS].any() and not expected.state_before[ROWS:].any()


def test_a_network_that_waits_for_its_device_decides_without_graphs(monkeypatch, caplog):
    monkeypatch.setattr(graphed_acting, "CapturedGraph", Refused)
    graphed, plain, rows = policy(uses_cuda_graphs=True), policy(uses_cuda_graphs=False), torch.arange(5)
    for turn in range(3):
        is_first = torch.zeros(5, dtype=torch.uint8)
        found, expected = (each.act(rows, observed(turn, rows), is_first) for each in (graphed, plain))
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other)
    assert len(caplog.records) == 1 and "without CUDA graphs" in caplog.text
