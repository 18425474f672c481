"""What differs between devices: both sides of every choice give the same numbers and gradients, here on the CPU."""

from typing import Any

import pytest
import torch

from appo.algorithms.models import convolutions, cores, inference, layers
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.device_choices import OF_TORCH, ON_CPU, DeviceChoices, choices_for
from appo.algorithms.models.episode_sequences import cut
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.models.precision import set_gpu_float32
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from tests.models.processors import packs_bf16, packs_float32, use_on_cpu

STEPS, ROWS = 6, 40
IMAGE = ObservationLeaf("image", (1, 16, 16), "uint8", "image")
VECTOR = ObservationLeaf("vector", (4,), "float32", "vector")
SPEC = EnvSpec((IMAGE, VECTOR), (ActionLeaf("discrete", 4), ActionLeaf("continuous", 2)), 1)
CORES: dict[str, dict[str, Any]] = {
    "none": {"use_rnn": False},
    "gru": {"rnn_type": "gru", "rnn_num_layers": 2},
    "lstm": {"rnn_type": "lstm", "rnn_num_layers": 2, "actor_critic_share_weights": False},
}
ENCODERS = {"small images": (IMAGE, "auto"), "deep": (IMAGE, "resnet_impala"), "vectors": (VECTOR, "auto")}
ALL_OWN = DeviceChoices(*[True] * len(DeviceChoices._fields))


def build(leaf=IMAGE, encoder="auto", **options):
    torch.manual_seed(0)
    small: dict[str, Any] = {"hidden_size": 128, "mlp_layers": "256", "obs_scale": 255.0, "precision": "fp32"}
    spec = SPEC if leaf is IMAGE else SPEC._replace(observations=(leaf,))
    model = build_actor_critic(ModelConfig(**(small | {"encoder": encoder} | options)), spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3 / max(1, parameter[0].numel()) ** 0.5)
    return model


def trajectories(model):
    generator = torch.Generator().manual_seed(1)
    observations = {
        "image": torch.randint(0, 256, (STEPS, ROWS, *IMAGE.shape), dtype=torch.uint8, generator=generator),
        "vector": torch.randn(STEPS, ROWS, *VECTOR.shape, generator=generator),
    }
    is_first = (torch.rand(STEPS, ROWS, generator=generator) < 0.3).to(torch.uint8)
    return observations, torch.randn(ROWS, model.state_size, generator=generator), is_first


def learn(model):
    """Outputs and gradients of one pass forth and back."""
    observations, state, is_first = trajectories(model)
    result = model.unroll(observations, state, is_first)
    (result.parameters.sin().mean() + result.values.sin().mean()).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [result.parameters, result.values, *gradients]


def test_a_cpu_has_its_own_choices_and_every_other_device_torchs():
    assert choices_for(torch.device("cpu")) == ON_CPU
    assert choices_for(torch.device("cuda")) == choices_for(torch.device("mps")) == OF_TORCH
    assert not any(OF_TORCH)


@pytest.mark.parametrize("nonlinearity", ["elu", "tanh"])
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_both_sides_of_all_choices_learn_the_same(monkeypatch, encoder, core, nonlinearity):
    monkeypatch.setattr(layers, "_PIXELS_AT_ONCE", 16_384)  # as many images as make several parts here
    learned = []
    for choices in (ALL_OWN, OF_TORCH):
        use_on_cpu(monkeypatch, choices)
        leaf, name = ENCODERS[encoder]
        learned.append(learn(build(leaf, name, nonlinearity=nonlinearity, **CORES[core])))
    for ours, torchs in zip(*learned, strict=True):
        scale = float(torchs.detach().abs().max())
        torch.testing.assert_close(ours, torchs, rtol=1e-3, atol=1e-3 * max(scale, 1e-3))


@packs_bf16
@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_in_bf16_what_was_acted_on_one_side_is_learned_from_on_the_other_to_its_rounding(monkeypatch, core):
    for choices in (ALL_OWN, OF_TORCH):
        use_on_cpu(monkeypatch, choices)
        model = build(**(CORES[core] | {"precision": "bf16"}))
        observations, state, is_first = trajectories(model)
        unrolled, acted = model.unroll(observations, state, is_first), []
        for t in range(STEPS):
            state = state * (is_first[t] == 0).unsqueeze(1)
            step = model.act({name: value[t] for name, value in observations.items()}, state)
            acted.append(step.parameters)
            state = step.state
        torch.testing.assert_close(unrolled.parameters, torch.stack(acted), rtol=0.05, atol=0.05)


def test_recurrent_layers_of_a_gpu_multiply_exactly_and_convolutions_as_asked():
    cudnn: Any = torch.backends.cudnn
    before = cudnn.rnn.fp32_precision, cudnn.conv.fp32_precision
    try:
        for precision, expected in (("auto", "tf32"), ("fp32", "ieee")):
            set_gpu_float32(precision)
            assert (cudnn.rnn.fp32_precision, cudnn.conv.fp32_precision) == ("ieee", expected)
    finally:
        cudnn.rnn.fp32_precision, cudnn.conv.fp32_precision = before


class Taken(Exception):
    """Raised in place of one side."""


def refuse(*_arguments, **_options):
    raise Taken


TELLTALES: dict[str, Any] = {  # what only the own side calls, in a pass forth and back or in acting
    "orders_single_channel": (torch.Tensor, "as_strided"),
    "transposes_narrow_layers": (torch.Tensor, "t"),
    "packs_weights": (inference.ActingStep, "__init__"),
    "keeps_pixels": (convolutions.PixelConvolution, "apply"),
    "loops_over_steps": (cores.GruSequence, "apply"),
    "splits_images": (torch.Tensor, "chunk"),
    "has_sigmoid_tanh": (torch.Tensor, "sigmoid_"),
}


def test_every_choice_has_a_telltale():
    assert set(TELLTALES) == set(DeviceChoices._fields)


@pytest.mark.parametrize("choice", TELLTALES)
def test_a_choice_decides_which_side_computes(monkeypatch, choice):
    options: dict[str, Any] = {"use_rnn": choice == "loops_over_steps"}
    options["nonlinearity"] = "tanh" if choice == "has_sigmoid_tanh" else "elu"
    monkeypatch.setattr(layers, "_PIXELS_AT_ONCE", 16_384)
    monkeypatch.setattr(*TELLTALES[choice], refuse)
    compute = (lambda model: PolicyInference(model, ROWS, "cpu", 0)) if choice == "packs_weights" else learn
    use_on_cpu(monkeypatch, OF_TORCH)
    compute(build(**options))
    use_on_cpu(monkeypatch, OF_TORCH._replace(**{choice: True}))
    with pytest.raises(Taken):
        compute(build(**options))


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_cuda_graphs_loop_over_steps_whatever_the_device_prefers(monkeypatch, core):
    for layer in (cores.GruSequence, cores.LstmSequence):
        monkeypatch.setattr(layer, "apply", refuse)
    use_on_cpu(monkeypatch, OF_TORCH)
    model = build(**CORES[core])
    learn(model)
    model.use_cuda_graphs()
    with pytest.raises(Taken):
        learn(model)


@packs_float32
@pytest.mark.parametrize("core", CORES)
def test_both_sides_act_the_same(monkeypatch, core):
    acted = []
    for choices in (ALL_OWN, OF_TORCH):
        use_on_cpu(monkeypatch, choices)
        policy = PolicyInference(build(**CORES[core]), ROWS, "cpu", 0)
        observations, states, is_first = trajectories(policy.model)
        rows = torch.arange(ROWS)
        policy.set_states(rows, states)
        acted += [
            policy.act(rows, {name: value[t] for name, value in observations.items()}, is_first[t], deterministic=True)
            for t in range(2)
        ]
    for ours, torchs in zip(acted[:2], acted[2:], strict=True):
        for mine, theirs in zip(ours, torchs, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_trajectories_are_cut_where_episodes_begin():
    begins = torch.zeros(4, 2, 1, dtype=torch.bool)
    begins[0, 0] = begins[3, 0] = begins[2, 1] = True
    parts = cut(begins)
    # Row 0: steps 0 to 2, then 3; row 1: 0 to 1, going on from its state, then 2 to 3.
    assert parts.row.tolist() == [0, 1, 1, 0]
    assert parts.begins.squeeze(1).tolist() == [True, False, True, True]
    assert begins.sum() == 3, "what it was given stays"
    assert parts.batch_sizes.tolist() == [4, 3, 1]
    steps = [(int(place) // 2, int(place) % 2) for place in parts.packed]
    assert steps == [(0, 0), (0, 1), (2, 1), (3, 0), (1, 0), (1, 1), (3, 1), (2, 0)]
    assert parts.packed[parts.unpacked].tolist() == list(range(8))
