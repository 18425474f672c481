"""The same numbers on a device as on the CPU: decisions, losses, gradients, weights after training, checkpoints."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch

from appo.algorithms.messages import CheckpointSaved, SaveCheckpoint
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.workers.policy_core import PolicyCore
from tests.models.test_actor_critic import (
    ACTIONS,
    CORES,
    OBSERVATIONS,
    ROWS,
    STEPS,
    random_observations,
    small_config,
    some_resets,
    spec_of,
    trained_model,
)
from tests.workers.core_cases import ROLLOUT, Case, Turns, run_state

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("one_thread")]
GRU: dict[str, Any] = {"rnn_type": "gru"}
SHORT = {"synthetic_episode_length": 4}
LEARNED: dict[str, Any] = {
    "gru": lambda: Case("synthetic_identity", options=SHORT, **GRU),
    "two trunks of lstm": lambda: Case(
        "synthetic_truncation", options=SHORT, rnn_type="lstm", rnn_num_layers=2, actor_critic_share_weights=False
    ),
    "continuous": lambda: Case("synthetic_continuous", options=SHORT, use_rnn=False, normalize_returns=True),
    "image and vector": lambda: Case(
        "synthetic_dict", options={"synthetic_image_size": 40, **SHORT}, obs_scale=255.0, precision="fp32", **GRU
    ),
    "several agents": lambda: Case(
        "synthetic_multi", options={"synthetic_num_agents": 3, "synthetic_episode_length": 5}, **GRU
    ),
}


def assert_equal(on_device, on_cpu, tolerance=1e-3):
    """To the rounding of float32 through some layers."""
    scale = max(1e-3, float(on_cpu.detach().abs().max())) if on_cpu.numel() else 1.0
    torch.testing.assert_close(on_device.detach().cpu(), on_cpu.detach(), rtol=tolerance, atol=tolerance * scale)


def unrolled(model, observations, state, is_first):
    output = model.unroll(observations, state, is_first)
    (output.parameters.clamp(min=-50.0).sin().mean() + output.values.sin().mean()).backward()
    return [output.parameters, output.values, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("encoder", OBSERVATIONS)
def test_networks_have_the_outputs_and_gradients_that_they_have_on_the_cpu(on_device, device, encoder, core, actions):
    masked = any(leaf.kind == "discrete" for leaf in ACTIONS[actions])
    spec = spec_of(OBSERVATIONS[encoder], ACTIONS[actions], masked)
    model = trained_model(small_config(encoder=encoder, **CORES[core]), spec)
    observations, is_first = random_observations(spec, STEPS, ROWS), some_resets()
    state = torch.randn(ROWS, model.state_size)
    on_cpu = unrolled(copy.deepcopy(model), observations, state, is_first)
    there = {name: value.to(device) for name, value in observations.items()}
    with on_device():
        found = unrolled(model.to(device), there, state.to(device), is_first.to(device))
    for mine, expected in zip(found, on_cpu, strict=True):
        assert_equal(mine, expected)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("encoder", OBSERVATIONS)
def test_policy_workers_decide_as_on_the_cpu(on_device, device, encoder, core):
    spec, rows = spec_of(OBSERVATIONS[encoder], ACTIONS["mixed"], masked=True), torch.arange(ROWS)
    model = trained_model(small_config(encoder=encoder, **CORES[core]), spec)
    observations, is_first = random_observations(spec, STEPS, ROWS), some_resets()

    def decide(where):
        policy = PolicyInference(copy.deepcopy(model), ROWS, where, seed=1)
        steps = [{name: value[t] for name, value in observations.items()} for t in range(STEPS)]
        results = [policy.act(rows, seen, is_first[t], deterministic=True) for t, seen in enumerate(steps)]
        sampled = policy.act(rows, steps[0], is_first[0])
        likelihood = policy.model.distribution.log_prob(sampled.parameters.to(where), sampled.actions.to(where))
        assert_equal(likelihood, sampled.log_prob)
        return results

    on_cpu = decide("cpu")
    with on_device():
        found = decide(device)
    for mine, expected in zip(found, on_cpu, strict=True):
        assert all(field.device.type == "cpu" for field in mine)
        for number, expected_number in zip(mine, expected, strict=True):
            assert_equal(number, expected_number)


@pytest.mark.parametrize("case", LEARNED)
def test_learners_take_the_steps_that_they_take_on_the_cpu(on_device, device, tmp_path, case):
    on_cpu = Turns(LEARNED[case](), tmp_path / "cpu")
    with on_device():
        there = Turns(LEARNED[case](), tmp_path / "device", with_splits=False, device=device)
    try:
        for _ in range(2):
            on_cpu.next_batch(0)
            for name, array in on_cpu.stagings[0].arrays.items():
                there.stagings[0].arrays[name][:] = array
            expected = on_cpu.learners[0].train(on_cpu.stagings[0])
            with on_device():
                found = there.learners[0].train(there.stagings[0])
            assert found.train_step == expected.train_step
            assert found.metrics.keys() == expected.metrics.keys() and "loss" in found.metrics
            for name, value in expected.metrics.items():
                assert found.metrics[name] == pytest.approx(value, rel=0.01, abs=1e-3), name
    finally:
        on_cpu.close()
    # Adam divides by the size of gradients, and so makes as much of rounding where there is no gradient.
    weights = zip(there.learners[0]._model.parameters(), on_cpu.learners[0]._model.parameters(), strict=True)
    step = on_cpu.case.learning().learning_rate
    for weight, weight_on_cpu in weights:
        difference = (weight.detach().cpu() - weight_on_cpu.detach()).abs()
        assert difference.max() <= 2.0 * step and difference.mean() <= 0.1 * step


@pytest.mark.parametrize("case", LEARNED)
def test_graphs_change_no_step(on_device, device, tmp_path, case):
    """With several minibatches and epochs, over several iterations: as without graphs."""
    columns = LEARNED[case]().columns
    options: dict[str, Any] = {"batch_size": ROLLOUT, "num_batches_per_iteration": columns, "ppo_epochs": 2}
    options |= {"with_vtrace": False, "num_minibatches_to_accumulate": -1}
    with on_device():
        graphed = Turns(LEARNED[case](), tmp_path / "graphed", device=device, **options)
        plain_case = LEARNED[case]()
        plain_case.model = dataclasses.replace(plain_case.model, cuda_graphs=False)
        plain = Turns(plain_case, tmp_path / "plain", with_splits=False, device=device, **options)
        try:
            assert graphed.learners[0]._model.uses_cuda_graphs == (device != "cpu")
            assert not plain.learners[0]._model.uses_cuda_graphs
            for _ in range(3):
                graphed.next_batch(0)
                for name, array in graphed.stagings[0].arrays.items():
                    plain.stagings[0].arrays[name][:] = array
                found, expected = (each.learners[0].train(each.stagings[0]) for each in (graphed, plain))
                assert found.train_step == expected.train_step > 4
                for name, value in expected.metrics.items():
                    assert found.metrics[name] == pytest.approx(value, rel=0.01, abs=1e-3), name
        finally:
            graphed.close()
    weights = zip(graphed.learners[0]._model.parameters(), plain.learners[0]._model.parameters(), strict=True)
    step = graphed.case.learning().learning_rate * found.train_step
    for mine, other in weights:
        difference = (mine.detach() - other.detach()).abs()
        assert difference.max() <= 2.0 * step and difference.mean() <= 0.02 * step


def test_a_network_that_waits_for_its_device_acts_and_learns_all_the_same(on_device, device, tmp_path, caplog):
    def wait(module, given, output):
        float(output.detach().sum())

    def build_waiting(*arguments):
        model = build_actor_critic(*arguments)
        model.trunks[0].encoder.register_forward_hook(wait)
        return model

    with on_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.workers.core_cases.build_actor_critic", build_waiting)
        patch.setattr("appo.algorithms.workers.learner_core.build_actor_critic", build_waiting)
        turns = Turns(LEARNED["continuous"](), tmp_path, device=device)
        try:
            for _ in range(2):
                turns.next_batch(0)
                assert turns.learners[0].train(turns.stagings[0]).metrics["num_sgd_steps"] == 1.0
        finally:
            turns.close()
    told = [record.message for record in caplog.records if "--cuda_graphs=False" in record.message]
    assert len(told) == (0 if device == "cpu" else 2)  # once each
    assert all("test_device_numbers.py" in message for message in told)


@pytest.mark.parametrize("core", CORES)
def test_sampled_decisions_of_graphs_are_those_of_the_network(on_device, device, core):
    spec = spec_of(OBSERVATIONS["conv_small"], ACTIONS["mixed"], masked=True)
    model = trained_model(small_config(encoder="conv_small", **CORES[core]), spec)
    model.uses_cuda_graphs = device != "cpu"
    observations, is_first = random_observations(spec, STEPS, 20), torch.zeros(STEPS, 20, dtype=torch.uint8)
    with on_device():
        policy = PolicyInference(copy.deepcopy(model), 20, device, seed=1)
        drawn = []
        for t, count in enumerate([20, 3, 9, 20, 3]):
            rows = torch.arange(20 - count, 20)
            result = policy.act(rows, {name: leaf[t, rows] for name, leaf in observations.items()}, is_first[t, rows])
            unrolled = model.to("cpu").unroll(
                {name: leaf[t : t + 1, rows] for name, leaf in observations.items()},
                result.state_before,
                torch.zeros(1, count),
            )
            assert_equal(result.parameters, unrolled.parameters[0])
            assert_equal(result.log_prob, model.distribution.log_prob(unrolled.parameters[0], result.actions))
            drawn.append(result.actions)
    assert not torch.equal(drawn[0], drawn[3])


@pytest.mark.parametrize("case", LEARNED)
def test_what_was_acted_on_the_device_is_what_its_learner_computes(on_device, device, tmp_path, case):
    with on_device():
        turns = Turns(LEARNED[case](), tmp_path, device=device)
        try:
            batch, model = turns.next_batch(0), turns.learners[0]._model
        finally:
            turns.close()
        assert {value.device.type for value in batch.observations.values()} == {torch.device(device).type}
        with torch.no_grad():
            unrolled_again = model.unroll(
                {name: value[:-1] for name, value in batch.observations.items()},
                batch.recurrent_state[0],
                batch.is_first[:-1],
            )
            log_prob = model.distribution.log_prob(unrolled_again.parameters, batch.actions)
    counts = (batch.active[:-1] != 0) & batch.own[:-1]
    assert counts.any()
    assert ((log_prob - batch.behaviour_log_prob).exp() - 1.0).abs()[counts].max() < 1e-3


def test_what_is_copied_to_a_gpu_lies_in_memory_that_it_reads_itself(device, tmp_path):
    turns = Turns(LEARNED["image and vector"](), tmp_path, with_splits=False, device=device)
    is_gpu = torch.device(device).type == "cuda"
    staged = [torch.from_numpy(array) for array in turns.stagings[0].arrays.values()]
    player = turns.policies[0]
    assert isinstance(player, PolicyCore)
    uploads = [rows._upload for rows in player._observations.values()]
    weights = [turns.policies[0].inference.received, turns.learners[0]._published]
    if is_gpu:
        assert all(tensor is not None and tensor.is_pinned() for tensor in [*staged, *uploads, *weights])
    else:
        assert uploads == [None] * len(uploads) and weights[1] is turns.learners[0]._flat


@pytest.mark.parametrize("direction", ["device to cpu", "cpu to device"])
def test_a_learner_goes_on_from_the_checkpoint_of_another_device(on_device, device, tmp_path, direction):
    first, second = (device, "cpu") if direction == "device to cpu" else ("cpu", device)
    with on_device():
        before = Turns(LEARNED["gru"](), tmp_path, device=first)
        try:
            before.next_batch(0)
            before.learners[0].train(before.stagings[0])
        finally:
            before.close()
        saved = before.learners[0].save(SaveCheckpoint(0, "latest", 100, run_state(100), 1, math.nan, ""))
        assert isinstance(saved, CheckpointSaved)
        learner = Turns(LEARNED["gru"](), tmp_path, with_splits=False, seed=1, device=second).learners[0]
        restored = learner.restore()
    assert restored.run_state == run_state(100) and learner.policy_version == before.learners[0].policy_version > 0
    for mine, expected in zip(learner._model.parameters(), before.learners[0]._model.parameters(), strict=True):
        assert mine.device.type == torch.device(second).type and torch.equal(mine.cpu(), expected.cpu())
