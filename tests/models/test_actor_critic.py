"""Acting and learning are the same function: for every encoder, core, action space and mask."""

import itertools
from typing import Any

import pytest
import torch

from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cpu_inference.acting import ActingStep
from appo.algorithms.models.heads import FORBIDDEN
from appo.algorithms.specs import ELAPSED_STEPS, action_spec
from appo.envs.api import ACTION_MASK, ActionLeaf, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError

STEPS, ROWS = 7, 3

OBSERVATIONS = {
    "mlp": ObservationLeaf("obs", (5,), "float32", "vector"),
    "conv_simple": ObservationLeaf("obs", (3, 36, 40), "uint8", "image"),
    "conv_nature": ObservationLeaf("obs", (2, 40, 36), "uint8", "image"),
    "conv_small": ObservationLeaf("obs", (3, 14, 13), "uint8", "image"),
    "resnet_impala": ObservationLeaf("obs", (3, 9, 8), "uint8", "image"),
    "minigrid_tiny": ObservationLeaf("obs", (3, 7, 7), "uint8", "image"),
}
DISCRETE, CONTINUOUS = ActionLeaf("discrete", 4), ActionLeaf("continuous", 1, (-1.0,), (1.0,))
ACTIONS = {
    "discrete": (DISCRETE,),
    "multi_discrete": (DISCRETE, ActionLeaf("discrete", 2), DISCRETE),
    "box_1": (CONTINUOUS,),
    "box_6": (ActionLeaf("continuous", 6, (-1.0,) * 6, (1.0,) * 6),),
    "mixed": (CONTINUOUS, DISCRETE, ActionLeaf("continuous", 2, (-1.0,) * 2, (1.0,) * 2), ActionLeaf("discrete", 3)),
}
CORES: dict[str, dict[str, Any]] = {
    "none": {"use_rnn": False},
    "gru": {"rnn_type": "gru"},
    "lstm": {"rnn_type": "lstm", "rnn_num_layers": 2},
}


def small_config(**options):
    defaults = {"hidden_size": 8, "mlp_layers": "8", "obs_scale": 255.0, "normalize_input": True, "precision": "fp32"}
    chosen: dict[str, Any] = defaults | options
    return ModelConfig(**chosen)


def spec_of(observation, actions, masked=False):
    leaves: tuple[ObservationLeaf, ...] = (observation,)
    if masked:
        width = action_spec(EnvSpec(leaves, actions, 1)).mask_width
        leaves += (ObservationLeaf(ACTION_MASK, (width,), "uint8", "mask"),)
    return EnvSpec(leaves, actions, 1)


def random_observations(spec, *batch):
    generator = torch.Generator().manual_seed(5)
    observations = {}
    for leaf in spec.observations:
        shape = (*batch, *leaf.shape)
        if leaf.kind == "image":
            observations[leaf.name] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        elif leaf.kind == "vector":
            observations[leaf.name] = torch.randn(shape, generator=generator)
        else:
            observations[leaf.name] = torch.randint(0, max(2, leaf.num_categories), shape, generator=generator)
    return observations


def some_resets():
    is_first = torch.zeros(STEPS, ROWS, dtype=torch.uint8)
    is_first[0, 0] = is_first[3, 1] = is_first[4, 1] = is_first[6, 2] = 1
    return is_first


def trained_model(config, spec, seed=0):
    """Weights as after some training: the first policy is nearly uniform, and would hide differences."""
    torch.manual_seed(seed)
    model = build_actor_critic(config, spec)
    with torch.no_grad():
        for parameter in model.parameters():
            inputs = parameter[0].numel() if parameter.dim() > 1 else 10
            parameter.add_(torch.randn_like(parameter), alpha=0.5 / inputs**0.5)
    return model


def act_step_by_step(act, observations, state, is_first):
    parameters, values = [], []
    with torch.no_grad():
        for t in range(len(is_first)):
            state = state * (is_first[t] == 0).unsqueeze(1)
            step = act({name: value[t] for name, value in observations.items()}, state)
            parameters.append(step.parameters)
            values.append(step.values)
            state = step.state
    return torch.stack(parameters), torch.stack(values)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("encoder", OBSERVATIONS)
def test_ratios_on_unchanged_weights_are_one(encoder, core):
    for actions, masked, shared in itertools.product(ACTIONS.values(), (False, True), (False, True)):
        spec = spec_of(OBSERVATIONS[encoder], actions, masked and any(leaf.kind == "discrete" for leaf in actions))
        config = small_config(encoder=encoder, actor_critic_share_weights=shared, **CORES[core])
        model = trained_model(config, spec)
        observations, is_first = random_observations(spec, STEPS, ROWS), some_resets()
        state = torch.randn(ROWS, model.state_size)
        parameters, values = act_step_by_step(model.act, observations, state, is_first)
        for acted, on_cpu in zip(
            (parameters, values), act_step_by_step(ActingStep(model).act, observations, state, is_first), strict=True
        ):
            torch.testing.assert_close(on_cpu, acted, atol=1e-5, rtol=1e-5)
        chosen = model.distribution.sample(parameters, torch.Generator().manual_seed(1))
        unrolled = model.unroll(observations, state, is_first)
        log_ratio = model.distribution.log_prob(unrolled.parameters, chosen) - model.distribution.log_prob(
            parameters, chosen
        )
        assert (log_ratio.exp() - 1.0).abs().max() < 1e-5
        torch.testing.assert_close(unrolled.values, values, atol=1e-5, rtol=1e-5)
        assert parameters.std(dim=(0, 1)).min() > 1e-4, "the policy ignores its observation: nothing was proven"


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("encoder", OBSERVATIONS)
def test_in_bf16_acting_and_learning_agree_to_its_rounding(encoder, core):
    spec = spec_of(OBSERVATIONS[encoder], ACTIONS["discrete"])
    options = {"encoder": encoder, "hidden_size": 64, **CORES[core]}
    model = trained_model(small_config(precision="bf16", **options), spec)
    exact = trained_model(small_config(**options), spec)
    exact.load_state_dict(model.state_dict())
    observations, is_first = random_observations(spec, STEPS, ROWS), some_resets()
    state = torch.randn(ROWS, model.state_size)
    parameters, values = act_step_by_step(model.act, observations, state, is_first)
    unrolled, exactly = model.unroll(observations, state, is_first), exact.unroll(observations, state, is_first)
    assert model.dtype == torch.bfloat16 and parameters.dtype == unrolled.values.dtype == torch.float32
    scale = exactly.parameters.std() + exactly.values.std()
    for ours, theirs in ((unrolled.parameters, parameters), (unrolled.values, values)):
        assert (ours - theirs).abs().max() < 0.05 * scale
    assert 0.0 < (unrolled.parameters - exactly.parameters).abs().max() < 0.1 * scale, "nothing was rounded"
    (unrolled.parameters.square().mean() + unrolled.values.square().mean()).backward()
    (exactly.parameters.square().mean() + exactly.values.square().mean()).backward()
    for (name, weight), reference in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert weight.grad.dtype == torch.float32
        similarity = torch.cosine_similarity(weight.grad.flatten(), reference.grad.flatten(), 0)
        assert similarity > 0.98 or reference.grad.norm() < 1e-6, name


@pytest.mark.parametrize("core", ["gru", "lstm"])
@pytest.mark.parametrize("shared", [True, False])
def test_resets_and_state_matter(core, shared):
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["discrete"])
    model = trained_model(small_config(actor_critic_share_weights=shared, **CORES[core]), spec)
    observations, is_first = random_observations(spec, STEPS, ROWS), some_resets()
    state = torch.randn(ROWS, model.state_size)
    before = model.unroll(observations, state, is_first)
    without_resets = model.unroll(observations, state, torch.zeros_like(is_first))
    other_state = model.unroll(observations, state + 1.0, is_first)
    for field in ("parameters", "values"):
        ours, unreset, other = (getattr(output, field) for output in (before, without_resets, other_state))
        assert torch.equal(ours[:3, 1], unreset[:3, 1]) and not torch.allclose(ours[3:, 1], unreset[3:, 1])
        assert torch.equal(ours[:, 0], other[:, 0]) and not torch.allclose(ours[:3, 1], other[:3, 1])
        torch.testing.assert_close(ours[3:, 1], other[3:, 1])


def test_a_dict_of_every_kind_reaches_policy_and_value():
    leaves = (
        ObservationLeaf("a/image", (3, 9, 9), "uint8", "image"),
        ObservationLeaf("a.number", (2, 3), "float32", "vector"),
        ObservationLeaf("few", (2,), "int64", "categorical", 4),
        ObservationLeaf("many", (5,), "int64", "categorical", 3000),
        ObservationLeaf(ACTION_MASK, (4,), "uint8", "mask"),
    )
    spec = EnvSpec(leaves, ACTIONS["discrete"], 1)
    model = trained_model(small_config(use_rnn=False), spec)
    observations = random_observations(spec, STEPS, ROWS)
    observations[ACTION_MASK][:] = 1
    state, is_first = torch.zeros(ROWS, 0), some_resets()
    before = model.unroll(observations, state, is_first)
    for leaf in leaves[:-1]:
        value = observations[leaf.name]
        other = (value + 1) % leaf.num_categories if leaf.kind == "categorical" else value + 1
        after = model.unroll({**observations, leaf.name: other}, state, is_first)
        assert not torch.allclose(before.parameters, after.parameters), leaf.name
        assert not torch.allclose(before.values, after.values), leaf.name
    assert {"few", "many"} <= {leaf.name for leaf in model.preprocessor.leaves}


def test_the_mask_forbids_in_act_and_unroll_alike():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["mixed"], masked=True)
    model = trained_model(small_config(use_rnn=False), spec)
    observations = random_observations(spec, 1, ROWS)
    observations[ACTION_MASK] = torch.tensor([[[1, 0, 0, 1, 0, 1, 1], [0] * 7, [1] * 7]], dtype=torch.uint8)
    state, is_first = torch.zeros(ROWS, 0), torch.zeros(1, ROWS)
    acted = model.act({name: value[0] for name, value in observations.items()}, state).parameters
    learned = model.unroll(observations, state, is_first).parameters[0]
    forbidden = acted == FORBIDDEN
    # Parameters: mean, log std, four logits, two means, two log stds, three logits.
    assert forbidden.nonzero().tolist() == [[0, 3], [0, 4], [0, 10]]
    assert torch.equal(forbidden, learned == FORBIDDEN)


def test_separate_critic_shares_no_weight_with_the_actor():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["discrete"])
    for shared in (True, False):
        model = trained_model(small_config(actor_critic_share_weights=shared), spec)
        observations = random_observations(spec, STEPS, ROWS)
        model.unroll(observations, torch.zeros(ROWS, model.state_size), some_resets()).values.sum().backward()
        touched = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        assert any(name.startswith("_trunks.0") for name in touched) == shared
        assert any(name.startswith("_trunks.1") for name in touched) != shared


@pytest.mark.parametrize("core", CORES)
def test_the_critic_sees_the_time_and_the_policy_does_not(core):
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["mixed"], masked=True)
    config = small_config(actor_critic_share_weights=False, critic_sees_time=True, **CORES[core])
    model = trained_model(config, spec)
    observations = random_observations(spec, STEPS, ROWS)
    observations[ACTION_MASK][:] = 1
    observations[ELAPSED_STEPS.name] = torch.rand(STEPS, ROWS, 1)
    state, is_first = torch.randn(ROWS, model.state_size), some_resets()
    before = model.unroll(observations, state, is_first)
    later = {**observations, ELAPSED_STEPS.name: observations[ELAPSED_STEPS.name] + 1}
    after = model.unroll(later, state, is_first)
    assert torch.equal(before.parameters, after.parameters)
    assert (before.values - after.values).abs().min() > 0
    parameters, values = act_step_by_step(model.act, observations, state, is_first)
    torch.testing.assert_close(before.parameters, parameters, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(before.values, values, rtol=1e-4, atol=1e-5)


def test_the_time_is_normalised_whatever_the_environment_shows():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["discrete"])
    model = build_actor_critic(
        small_config(actor_critic_share_weights=False, critic_sees_time=True, normalize_input=False), spec
    )
    observations = random_observations(spec, 50, ROWS)
    observations[ELAPSED_STEPS.name] = torch.arange(50.0).reshape(50, 1, 1).expand(50, ROWS, 1)
    for _ in range(100):
        model.update_observation_normalizer(observations, torch.ones(50, ROWS, dtype=torch.bool))
    seen = model.preprocessor({name: value.flatten(0, 1) for name, value in observations.items()})
    torch.testing.assert_close(seen[0], observations["obs"].flatten(0, 1))
    assert abs(seen[1].mean()) < 0.05 and abs(seen[1].std() - 1.0) < 0.05


def test_heads_that_read_the_same_features_learn_as_if_each_were_alone():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["mixed"], masked=True)
    model = trained_model(small_config(adaptive_stddev=False), spec)
    features = torch.randn(STEPS, ROWS, model.policy_head.layer.in_features)
    mask = random_observations(spec, STEPS, ROWS)[ACTION_MASK]
    gradients = []
    for together in (True, False):
        model.zero_grad()
        read = features.clone().requires_grad_()
        if together:
            parameters, values = model.joined_heads()(read, mask)
        else:
            parameters, values = model.policy_head(read, mask), model.value_head(read)
        (parameters.clamp_min(-10.0).square().sum() + 2.0 * values.square().sum()).backward()
        heads = (*model.policy_head.parameters(), *model.value_head.parameters())
        gradients.append([values, parameters, read.grad, *(weight.grad.clone() for weight in heads)])
    for ours, apart in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, apart)


def test_the_first_policy_is_nearly_uniform_with_the_stddev_asked_for():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["mixed"])
    for adaptive in (True, False):
        model = build_actor_critic(small_config(adaptive_stddev=adaptive, initial_stddev=0.3), spec)
        observations = random_observations(spec, ROWS)
        parameters = model.act(observations, torch.zeros(ROWS, model.state_size)).parameters
        log_stds = parameters[:, [1, 8, 9]]
        torch.testing.assert_close(log_stds.exp(), torch.full_like(log_stds, 0.3), atol=0.03, rtol=0.0)
        assert parameters[:, [0, 2, 3, 4, 5, 6, 7, 10, 11, 12]].abs().max() < 0.1
        assert (log_stds.std(0).max() > 0) == adaptive


def test_values_of_act_are_in_reward_units_and_those_of_unroll_normalised():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["discrete"])
    model = trained_model(small_config(use_rnn=False, normalize_returns=True), spec)
    model.returns_normalizer.update(100.0 + 7.0 * torch.randn(64, 8), torch.ones(64, 8, dtype=torch.bool))
    observations = random_observations(spec, 1, ROWS)
    state = torch.zeros(ROWS, 0)
    acted = model.act({"obs": observations["obs"][0]}, state).values
    learned = model.unroll(observations, state, torch.zeros(1, ROWS)).values[0]
    torch.testing.assert_close(model.returns_normalizer.denormalize(learned), acted)
    assert (acted - learned).abs().min() > 10.0


def test_updating_the_observation_normalizer_uses_only_the_masked_rows():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["discrete"])
    mask = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    mask[2:5, 1] = True
    observations = random_observations(spec, STEPS, ROWS)
    state, is_first = torch.zeros(ROWS, 0), torch.zeros(STEPS, ROWS)
    outputs = []
    for poison in (0.0, 1e6):
        model = trained_model(small_config(use_rnn=False), spec)
        untouched = model.unroll(observations, state, is_first).values
        poisoned = observations["obs"] + poison * ~mask.unsqueeze(-1)
        model.update_observation_normalizer({"obs": poisoned}, mask)
        outputs.append(model.unroll(observations, state, is_first).values)
        assert not torch.allclose(untouched, outputs[-1])
    assert torch.equal(*outputs)


def test_spectral_norm_moves_only_when_the_normalizer_is_updated():
    spec = spec_of(OBSERVATIONS["minigrid_tiny"], ACTIONS["discrete"])
    model = trained_model(small_config(use_rnn=False, use_spectral_norm=True), spec)
    observations = random_observations(spec, STEPS, ROWS)
    arguments = (observations, torch.zeros(ROWS, 0), torch.zeros(STEPS, ROWS))
    first, second = model.unroll(*arguments).values, model.unroll(*arguments).values
    model.update_observation_normalizer(observations, torch.ones(STEPS, ROWS, dtype=torch.bool))
    assert torch.equal(first, second)
    assert not torch.allclose(first, model.unroll(*arguments).values)


def test_low_precision_runs_through_every_core():
    spec = spec_of(OBSERVATIONS["minigrid_tiny"], ACTIONS["mixed"])
    for core in CORES.values():
        model = trained_model(small_config(**core), spec)
        observations, state = random_observations(spec, STEPS, ROWS), torch.zeros(ROWS, model.state_size)
        exact = model.unroll(observations, state, some_resets())
        with torch.autocast("cpu", torch.bfloat16):
            rough = model.unroll(observations, state, some_resets())
            step = model.act({name: value[0] for name, value in observations.items()}, state)
        (rough.parameters.sum() + rough.values.sum()).backward()
        assert {t.dtype for t in (*rough, *step)} == {torch.float32}
        torch.testing.assert_close(rough.parameters, exact.parameters, atol=0.3, rtol=0.1)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_building_twice_from_one_seed_gives_the_same_weights():
    spec = spec_of(OBSERVATIONS["conv_simple"], ACTIONS["mixed"])
    first, second, other = (trained_model(small_config(), spec, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_impossible_environments_are_refused():
    vector = OBSERVATIONS["mlp"]
    wrong_mask = ObservationLeaf(ACTION_MASK, (3,), "uint8", "mask")
    with pytest.raises(ConfigError, match=r"shape \(4,\)"):
        build_actor_critic(small_config(), EnvSpec((vector, wrong_mask), ACTIONS["discrete"], 1))
    with pytest.raises(ConfigError, match="no observation but an action mask"):
        build_actor_critic(small_config(), EnvSpec((wrong_mask,), ACTIONS["discrete"], 1))


def test_wrong_shapes_are_named():
    spec = spec_of(OBSERVATIONS["mlp"], ACTIONS["discrete"])
    model = build_actor_critic(small_config(), spec)
    observations, state = random_observations(spec, STEPS, ROWS), torch.zeros(ROWS, model.state_size)
    with pytest.raises(ValueError, match="at least one step"):
        model.unroll(observations, state, torch.zeros(0, ROWS))
    with pytest.raises(ValueError, match="one row for each of the 3"):
        model.unroll(observations, state[:2], some_resets())
    with pytest.raises(ValueError, match="observation 'obs'"):
        model.unroll({"obs": observations["obs"][1:]}, state, some_resets())
    with pytest.raises(ValueError, match="keeps 8 numbers a row"):
        model.unroll(observations, state[:, 1:], some_resets())
