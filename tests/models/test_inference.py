"""The policy worker's half: memory per agent row, replaced weights, repeatable samples."""

import copy
from typing import Any

import pytest
import torch

from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cpu_inference.calls import CallFinder
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.models.layers import InputLinear
from appo.algorithms.models.parameters import flatten
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from tests.models.processors import packs_bf16

SPEC = EnvSpec(
    (ObservationLeaf("obs", (3,), "float32", "vector"),), (ActionLeaf("discrete", 4), ActionLeaf("continuous", 2)), 1
)
ROWS = 6


def build(seed=0, spec=SPEC, **options):
    torch.manual_seed(seed)
    small: dict[str, Any] = {"hidden_size": 8, "mlp_layers": "8"}
    return build_actor_critic(ModelConfig(**(small | options)), spec)


def inference(seed=0, weights=0, **options):
    return PolicyInference(build(weights, **options), ROWS, "cpu", seed)


def observe(t, rows):
    generator = torch.Generator().manual_seed(t)
    return {"obs": torch.randn(ROWS, 3, generator=generator)[rows]}


def none_first(rows):
    return torch.zeros(len(rows), dtype=torch.uint8)


@pytest.mark.parametrize("options", [{"rnn_type": "gru"}, {"rnn_type": "lstm", "actor_critic_share_weights": False}])
def test_each_row_remembers_its_own_episode_in_whatever_order_it_is_asked(options):
    together, apart = inference(**options), inference(**options)
    everyone = torch.arange(ROWS)
    for t in range(4):
        whole = together.act(everyone, observe(t, everyone), none_first(everyone), deterministic=True)
        for rows in (torch.tensor([4, 0]), torch.tensor([5, 2, 1]), torch.tensor([3])):
            part = apart.act(rows, observe(t, rows), none_first(rows), deterministic=True)
            torch.testing.assert_close(part.parameters, whole.parameters[rows])
            torch.testing.assert_close(part.state_before, whole.state_before[rows])
    assert whole.state_before.abs().min() > 0


def test_who_needs_no_values_need_not_count_steps():
    policy, rows = inference(actor_critic_share_weights=False, critic_sees_time=True, use_rnn=False), torch.arange(ROWS)
    timed = observe(0, rows) | {ELAPSED_STEPS.name: torch.full((ROWS, 1), 7.0)}
    counted = policy.act(rows, timed, none_first(rows), deterministic=True)
    uncounted = policy.act(rows, observe(0, rows), none_first(rows), deterministic=True)
    assert torch.equal(counted.actions, uncounted.actions)
    assert not torch.equal(counted.values, uncounted.values)


def test_the_state_before_is_what_the_learner_unrolls_from():
    policy, rows = inference(), torch.arange(ROWS)
    policy.act(rows, observe(0, rows), none_first(rows))
    is_first = torch.tensor([0, 1, 0, 0, 1, 0], dtype=torch.uint8)
    result = policy.act(rows, observe(1, rows), is_first)
    unrolled = policy.model.unroll({"obs": observe(1, rows)["obs"][None]}, result.state_before, torch.zeros(1, ROWS))
    torch.testing.assert_close(unrolled.parameters[0], result.parameters)
    torch.testing.assert_close(unrolled.values[0], result.values)
    log_prob = policy.model.distribution.log_prob(unrolled.parameters[0], result.actions)
    torch.testing.assert_close(log_prob, result.log_prob)
    assert not result.state_before[is_first == 1].any() and result.state_before[is_first == 0].any(1).all()


def test_shapes_and_types_are_those_of_the_block():
    for options, state_size in (({}, 8), ({"use_rnn": False}, 0)):
        rows = torch.tensor([2, 4])
        result = inference(**options).act(rows, observe(0, rows), none_first(rows))
        shapes = [tuple(field.shape) for field in result]
        assert shapes == [(2, 3), (2,), (2, 8), (2,), (2, state_size)]
        assert {field.dtype for field in result} == {torch.float32}


def adopt(policy, other):
    policy.received.numpy()[:] = flatten(copy.deepcopy(other)).numpy()
    policy.adopt_received()


def test_received_weights_are_in_force_when_they_are_adopted():
    policy, rows = inference(weights=0), torch.arange(ROWS)
    before = policy.act(rows, observe(0, rows), none_first(rows) + 1)
    adopt(policy, build(1))
    after = policy.act(rows, observe(0, rows), none_first(rows) + 1)
    expected = build(1).act(observe(0, rows), torch.zeros(ROWS, 8))
    torch.testing.assert_close(after.parameters, expected.parameters)
    assert not torch.allclose(before.values, after.values)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_state_that_is_not_finite_is_forgotten_with_its_episode_or_when_weights_are_adopted(rnn_type, bad):
    policy, rows = inference(rnn_type=rnn_type), torch.arange(ROWS)
    states = torch.randn(ROWS, policy.model.state_size)
    states[[1, 4]] = bad
    policy.set_states(rows, states)
    is_first = torch.tensor([0, 1, 0, 0, 0, 0], dtype=torch.uint8)
    result = policy.act(rows, observe(0, rows), is_first)
    assert not result.state_before[1].any() and result.parameters[1].isfinite().all()
    assert not result.state_before[4].isfinite().any()  # its episode goes on
    policy.set_states(rows[4:5], states[4:5])
    adopt(policy, build(1, rnn_type=rnn_type))
    kept = [0, 1, 2, 3, 5]
    after = policy.act(rows, observe(1, rows), none_first(rows))
    assert not after.state_before[4].any() and after.parameters[4].isfinite().all()
    assert after.state_before[kept].isfinite().all() and after.state_before[kept].all()


def test_actions_repeat_under_a_seed_and_are_the_mode_when_deterministic():
    rows = torch.arange(ROWS)
    actions = [inference(seed).act(rows, observe(0, rows), none_first(rows)).actions for seed in (1, 1, 2)]
    assert torch.equal(actions[0], actions[1]) and not torch.equal(actions[0], actions[2])
    result = inference(3).act(rows, observe(0, rows), none_first(rows), deterministic=True)
    assert torch.equal(result.actions[:, 0], result.parameters[:, :4].argmax(1).float())
    assert torch.equal(result.actions[:, 1:], result.parameters[:, 4:6])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_choosing_gives_the_actions_of_acting_without_the_rest(rnn_type, shared, deterministic):
    options = {"rnn_type": rnn_type, "actor_critic_share_weights": shared, "critic_sees_time": not shared}
    acting, choosing = inference(**options), inference(**options)
    rows, actions = torch.arange(ROWS), []
    for t in range(5):
        is_first = torch.tensor([t == 0, t == 3, 0, 0, 0, 0], dtype=torch.uint8)
        actions.append(acting.act(rows, observe(t, rows), is_first, deterministic).actions)
        assert torch.equal(choosing.choose(rows, observe(t, rows), is_first, deterministic), actions[-1])
    assert not torch.equal(actions[3], actions[4])


def test_choosing_by_the_plain_network_gives_the_same_actions():
    spec = EnvSpec((*SPEC.observations, ObservationLeaf("action_mask", (4,), "uint8", "mask")), SPEC.actions, 1)
    rows, mask = torch.arange(ROWS), torch.tensor([[1, 0, 1, 0]], dtype=torch.uint8).repeat(ROWS, 1)
    for shared in (True, False):
        model = build(spec=spec, actor_critic_share_weights=shared, critic_sees_time=not shared)
        policy, state = PolicyInference(model, ROWS, "cpu", 0), torch.randn(ROWS, model.state_size)
        observations = observe(0, rows) | {"action_mask": mask}
        parameters, after = model.decide(observations, state)
        policy.set_states(rows, state)
        chosen = policy.choose(rows, observations, none_first(rows), deterministic=True)
        torch.testing.assert_close(chosen, model.distribution.mode(parameters))
        assert set(chosen[:, 0].tolist()) <= {0.0, 2.0}
        torch.testing.assert_close(policy.act(rows, observations, none_first(rows)).state_before, after)


def test_nothing_it_returns_carries_a_gradient():
    rows = torch.arange(ROWS)
    assert not any(field.requires_grad for field in inference().act(rows, observe(0, rows), none_first(rows)))


@packs_bf16
def test_in_bf16_the_layer_that_reads_observations_is_prepared_in_float32():
    wide = EnvSpec((ObservationLeaf("obs", (100,), "float32", "vector"),), SPEC.actions, 1)
    policy = PolicyInference(build(spec=wide, precision="bf16", mlp_layers="256,256"), ROWS, "cpu", 0)
    with torch.no_grad():
        policy.received.copy_(flatten(build(1, wide, precision="bf16", mlp_layers="256,256")))
    policy.adopt_received()
    (layer,) = (layer for layer in policy.model.modules() if isinstance(layer, InputLinear))
    x = 1000.0 + torch.randn(2, 100)
    exact = torch.nn.functional.linear(x, layer.weight, layer.bias)
    rounded_result: dict[str, Any] = {"rtol": 2**-8, "atol": 1e-2}
    (encoder,) = policy.model.trunks[0].encoder.encoders
    first, *_ = CallFinder(torch.bfloat16, packs=True).calls_of(encoder)
    torch.testing.assert_close(first(x).float(), exact, **rounded_result)
    rounded_input = torch.nn.functional.linear(x.bfloat16().float(), layer.weight, layer.bias)
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(rounded_input, exact, **rounded_result)


@packs_bf16
def test_an_embedding_is_neither_packed_nor_rounded():
    leaf = ObservationLeaf("obs", (1,), "int64", "categorical", num_categories=5000)
    policy = PolicyInference(build(spec=EnvSpec((leaf,), SPEC.actions, 1), precision="bf16"), ROWS, "cpu", 0)
    (embedding,) = (layer for layer in policy.model.modules() if isinstance(layer, torch.nn.Embedding))
    assert embedding.weight.numel() == 80_000 and embedding.weight.dtype == torch.float32
    assert not policy._converted


@pytest.mark.parametrize("packs", [pytest.param(True, marks=packs_bf16), False])
def test_in_bf16_adopted_weights_are_the_published_ones_rounded(monkeypatch, packs):
    if not packs:
        monkeypatch.setattr("appo.algorithms.models.cpu_inference.acting.can_pack", lambda device, dtype: False)
    policy = inference(precision="bf16", hidden_size=256, mlp_layers="256")
    other = build(1, precision="bf16", hidden_size=256, mlp_layers="256")
    assert len(policy._converted) == (0 if packs else 3), "the large layer, and both weights of the core"
    adopt(policy, other)
    for mine, published in zip(policy.model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, published.to(mine.dtype))
    rows = torch.arange(ROWS)
    result = policy.act(rows, observe(0, rows), none_first(rows))
    unrolled = other.unroll({"obs": observe(0, rows)["obs"][None]}, result.state_before, torch.zeros(1, ROWS))
    torch.testing.assert_close(unrolled.parameters[0], result.parameters, atol=1e-3, rtol=0.02)
    assert {field.dtype for field in result} == {torch.float32}
