"""Acting on a CPU: the numbers of the plain modules, for the weights as they were, which it leaves alone."""

import collections
import sys
import types

import pytest
import torch
from torch import nn

from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cpu_inference.acting import ActingStep
from appo.algorithms.models.cpu_inference.calls import CallFinder, through
from appo.algorithms.models.encoders import resnet_impala
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.models.layers import conv
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from tests.models.processors import packs_bf16, packs_float32

IMAGE = ObservationLeaf("obs", (3, 72, 128), "uint8", "image")
VECTOR = ObservationLeaf("speed", (5,), "float32", "vector")
ROOM = ObservationLeaf("room", (1,), "int64", "categorical", 7)


def build(*leaves, **options):
    torch.manual_seed(0)
    spec = EnvSpec(leaves, (ActionLeaf("discrete", 4),), 1)
    model = build_actor_critic(ModelConfig(obs_scale=255.0, **options), spec).requires_grad_(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def calls_of(module, packs=False):
    return CallFinder(torch.float32, packs=packs).calls_of(module)


def observe(*leaves):
    generator = torch.Generator().manual_seed(1)
    made = {
        IMAGE: torch.randint(0, 256, (3, *IMAGE.shape), dtype=torch.uint8, generator=generator),
        VECTOR: torch.randn(3, *VECTOR.shape, generator=generator),
        ROOM: torch.tensor([[0], [6], [3]]),
    }
    return {leaf.name: made[leaf] for leaf in leaves}


@packs_float32
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=packs_bf16)])
@pytest.mark.parametrize("leaves", [(IMAGE,), (IMAGE, VECTOR)], ids=["image", "image and vector"])
@pytest.mark.parametrize("shared", [True, False])
def test_packed_or_not_it_decides_the_same(precision, leaves, shared):
    model = build(*leaves, precision=precision, encoder="conv_simple", actor_critic_share_weights=shared)
    observations, state = observe(*leaves), torch.randn(3, model.state_size)
    plain, step = model.act(observations, state), ActingStep(model)
    packed = step.act(observations, state)
    kinds = collections.Counter(type(layer).__name__ for layer in step.packed)
    per_trunk = {"PixelConv": 1, "Conv2d": 2, "Linear": len(leaves), "GruLayer": 1}
    assert kinds == {kind: count * len(model.trunks) for kind, count in per_trunk.items()}
    tolerance = 1e-4 if precision == "fp32" else 0.03
    for mine, expected in zip(packed, plain, strict=True):
        assert mine.dtype == torch.float32 and expected.abs().max() > 0.05
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "options",
    [{"nonlinearity": "tanh"}, {"nonlinearity": "relu"}, {"use_spectral_norm": True}, {"use_rnn": False}],
    ids=str,
)
def test_prepared_layers_give_the_numbers_of_their_modules(options, precision):
    leaves = (VECTOR, ROOM, IMAGE)
    model = build(*leaves, precision=precision, normalize_input=True, obs_subtract_mean=100.0, **options)
    seen = {"speed": 30.0 * torch.randn(500, 5) + 2.0}
    model.preprocessor.update(
        seen | {"room": torch.zeros(500), "obs": torch.zeros(500)}, torch.ones(500, dtype=torch.bool)
    )
    observations, state = observe(*leaves), torch.randn(3, model.state_size)
    tolerance = 1e-5 if precision == "fp32" else 0.03
    in_time = {name: leaf[None] for name, leaf in observations.items()}
    expected = model.unroll(in_time, state, torch.zeros(1, 3))
    acted = ActingStep(model).act(observations, state)
    for mine, one_step in ((acted.parameters, expected.parameters), (acted.values, expected.values)):
        assert one_step.abs().max() > 0.05
        torch.testing.assert_close(mine, one_step[0], atol=tolerance, rtol=tolerance)


@packs_bf16
@pytest.mark.parametrize(
    ("leaves", "options", "is_entered"),
    [((IMAGE,), {"hidden_size": 512}, False), ((IMAGE, VECTOR), {"mlp_layers": "16,16"}, True)],
    ids=["all layers large", "small ones"],
)
def test_autocast_is_entered_only_for_layers_that_are_not_packed(monkeypatch, leaves, options, is_entered):
    model, entered = build(*leaves, precision="bf16", **options), []
    autocast = model.autocast

    def enter(device):
        entered.append(device)
        return autocast(device)

    monkeypatch.setattr(model, "autocast", enter)
    ActingStep(model).act(observe(*leaves), torch.zeros(3, model.state_size))
    assert bool(entered) == is_entered


def test_what_it_computes_holds_until_it_is_made_anew():
    model = build(VECTOR, normalize_returns=True)
    observations, state = observe(VECTOR), torch.zeros(3, model.state_size)
    step = ActingStep(model)
    before = step.act(observations, state)
    with torch.no_grad():
        model.value_head.layer.bias.add_(1.0)
    model.returns_normalizer.update(10.0 * torch.randn(1000) + 5.0, torch.ones(1000, dtype=torch.bool))
    assert torch.equal(step.act(observations, state).values, before.values)
    scale, shift = model.returns_normalizer.scale_and_shift()
    assert scale > 9.0 and shift.abs() > 1.0
    raw = model.unroll({"speed": observations["speed"][None]}, state, torch.zeros(1, 3)).values[0]
    torch.testing.assert_close(ActingStep(model).act(observations, state).values, raw * scale + shift)


class PlusOne(nn.Module):
    def forward(self, x):
        return x + 1.0


class Doubled(nn.ELU):
    def forward(self, x):
        return 2.0 * super().forward(x)


def run(calls, *numbers):
    x = torch.tensor(numbers)
    for call in calls:
        x = call(x)
    return x.tolist()


def test_modules_that_tell_nothing_of_their_insides_are_called_as_a_whole():
    layers = nn.Sequential(nn.Sequential(PlusOne(), nn.ReLU()), PlusOne())
    calls = calls_of(layers)
    assert len(calls) == 3 and run(calls, -3.0, 1.0) == [1.0, 3.0]


def test_a_subclass_that_does_more_is_asked_itself():
    assert run(calls_of(nn.Sequential(nn.ELU(), Doubled())), 1.0, 3.0) == [2.0, 6.0]

    class Backwards(nn.Sequential):
        def forward(self, x):
            return -super().forward(x)

    assert run(calls_of(Backwards(PlusOne())), 1.0) == [-2.0]


def test_hooks_are_called():
    seen, layers = [], nn.Sequential(nn.ELU(), PlusOne())
    layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.tolist()))
    layers[1].register_forward_pre_hook(lambda module, inputs: (10.0 * inputs[0],))
    assert run(calls_of(layers), 1.0) == [11.0] and seen == [[1.0]]


@packs_float32
def test_every_layer_of_ours_is_one_call():
    model = build(IMAGE, VECTOR, encoder="conv_simple", mlp_layers="256,256")
    image, vector = (calls_of(encoder, packs=True) for encoder in model.trunks[0].encoder.encoders)
    assert names(image) == ["PackedKernel", "ELU", *["PackedKernel", "ELU"] * 2, "FlattenImage"]
    assert names(vector) == ["function", "ELU", "PackedMatrix", "ELU"]


def names(calls):
    """The classes of what is called, or of the modules whose methods are."""
    return [type(getattr(call, "__self__", call)).__name__ for call in calls]


class OfTheUsersOwn(nn.Module):
    """Reads attributes of its layers, and keeps one of them apart."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(128, 256)
        self.second = nn.Linear(256, 256)
        self.blocks = nn.ModuleList([nn.Sequential(self.second, nn.ReLU()), nn.Identity()])
        self.bias = nn.Parameter(torch.randn(256))

    def forward(self, x):
        x = self.first(x) + self.bias * self.first.weight.sum()
        for block in self.blocks:
            x = x + block(x)
        return x


@packs_float32
def test_layers_inside_a_module_that_no_rule_knows_are_packed_and_the_module_is_left_alone():
    module, x = OfTheUsersOwn().requires_grad_(False), torch.randn(4, 128)
    layers, attributes = [module.first, module.second], set(vars(module))
    finder = CallFinder(torch.float32, packs=True)
    (call,) = finder.calls_of(module)
    assert finder.packed == set(layers)
    expected = module(x)
    torch.testing.assert_close(call(x), expected, atol=1e-4, rtol=1e-5)
    for layer in layers:
        layer.bias.add_(1.0)
    torch.testing.assert_close(call(x), expected, atol=1e-4, rtol=1e-5)
    assert not torch.allclose(module(x), expected) and set(vars(module)) == attributes
    assert [module.first, module.second] == layers and "forward" not in vars(module.first)


@packs_float32
def test_a_network_of_residual_blocks_is_the_sum_that_it_was():
    torch.manual_seed(0)
    encoder = resnet_impala.Encoder(IMAGE, ModelConfig(obs_scale=255.0)).requires_grad_(False)
    finder, image = CallFinder(torch.float32, packs=True), observe(IMAGE)["obs"]
    calls = finder.calls_of(encoder)
    assert len(finder.packed) == 15
    torch.testing.assert_close(through(calls, image), encoder(image), atol=1e-5, rtol=1e-5)


@packs_float32
def test_a_hooked_layer_is_not_packed():
    layer, finder = conv(3, 8, 3, 1, ModelConfig()), CallFinder(torch.float32, packs=True)
    layer.register_forward_hook(lambda module, inputs, output: -output)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(through(finder.calls_of(nn.Sequential(layer)), x), layer(x)) and not finder.packed


class Hooked(nn.Module):
    """Its layer's weight is made anew by a hook before each pass."""

    kind, minimum_size = "vector", 1

    def __init__(self, leaf, config):
        super().__init__()
        self.layer = nn.utils.spectral_norm(nn.Linear(leaf.shape[0], 256))
        self.output_size = 256

    def forward(self, x):
        return self.layer(x) * 2.0


class MultipliesByABuffer(nn.Module):
    """All its layers can be packed, and it multiplies in a dtype of its own besides."""

    kind, minimum_size = "vector", 1

    def __init__(self, leaf, config):
        super().__init__()
        self.layer = nn.Linear(leaf.shape[0], 256)
        self.register_buffer("projection", torch.randn(256, 128))
        self.output_size = 128

    def forward(self, x):
        return self.layer(x) @ self.projection


LONG = ObservationLeaf("speed", (128,), "float32", "vector")


@pytest.fixture
def registered(monkeypatch):
    for encoder in (Hooked, MultipliesByABuffer):
        module = types.ModuleType(encoder.__name__)
        module.__dict__["Encoder"] = encoder
        monkeypatch.setitem(sys.modules, f"the_users_{encoder.__name__}", module)


@packs_float32
@pytest.mark.usefixtures("registered")
def test_a_layer_whose_weight_a_hook_makes_acts_with_the_weights_that_were_adopted():
    model = build(LONG, encoder="the_users_Hooked:Encoder", use_rnn=False, precision="fp32")
    policy = PolicyInference(model, 3, "cpu", 0)
    with torch.no_grad():
        policy.received.mul_(3.0)
    policy.adopt_received()
    observations, rows = {"speed": torch.randn(3, 128)}, torch.arange(3)
    acted = policy.act(rows, observations, torch.ones(3, dtype=torch.uint8), deterministic=True)
    with torch.no_grad():
        unrolled = model.unroll({"speed": observations["speed"][None]}, torch.zeros(3, 0), torch.ones(1, 3))
    torch.testing.assert_close(acted.values, unrolled.values[0], rtol=1e-4, atol=1e-4)


@packs_bf16
@pytest.mark.usefixtures("registered")
def test_a_module_that_multiplies_itself_acts_in_the_dtype_of_the_others():
    model = build(LONG, encoder="the_users_MultipliesByABuffer:Encoder", precision="bf16")
    observations, state = {"speed": torch.randn(3, 128)}, torch.zeros(3, model.state_size)
    acted, plain = ActingStep(model).act(observations, state), model.act(observations, state)
    torch.testing.assert_close(acted.parameters, plain.parameters, rtol=0.05, atol=0.05)
