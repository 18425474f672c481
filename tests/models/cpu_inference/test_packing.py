"""Packed weights: the plain product's numbers, of the weights as they were."""

import pytest
import torch

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cores import RecurrentCore, build_core
from appo.algorithms.models.cpu_inference.calls import CallFinder, through
from appo.algorithms.models.cpu_inference.packing import PackedMatrix
from appo.algorithms.models.layers import InputLinear, conv, linear, pixel_conv
from tests.models.processors import packs_bf16, packs_float32

pytestmark = packs_float32
TOLERANCES = [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 0.02, marks=packs_bf16)]


def packed(layer, dtype=torch.float32):
    """The one call that a layer becomes, which is said to be packed."""
    finder = CallFinder(dtype, packs=True)
    (call,) = finder.calls_of(layer)
    assert finder.packed == {layer}
    return call


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_packed_matrix_multiplies_as_the_plain_one(dtype, tolerance, rows):
    torch.manual_seed(rows)
    layer, x = torch.nn.Linear(96, 200), torch.randn(rows, 96)
    plain = layer(x)
    with torch.inference_mode():
        result, without_bias = packed(layer, dtype)(x), PackedMatrix(layer.weight, None, dtype)(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), plain, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(without_bias.float() + layer.bias, plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_packed_kernel_convolves_as_the_plain_one(dtype, tolerance, norm, padding):
    torch.manual_seed(3)
    config = ModelConfig(use_spectral_norm=norm, obs_scale=255.0)
    for make, x in (
        (pixel_conv, torch.randint(0, 256, (5, 3, 20, 24), dtype=torch.uint8)),
        (conv, torch.randn(5, 3, 20, 24).contiguous(memory_format=torch.channels_last)),
    ):
        layer = make(3, 16, 4, 2, config, padding=padding)
        plain = layer(x)
        with torch.inference_mode():
            result = packed(layer, dtype)(x)
        assert result.dtype == dtype and result.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(result.float(), plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_packed_core_steps_as_the_plain_one(dtype, tolerance, kind):
    torch.manual_seed(4)
    core = build_core(48, ModelConfig(rnn_type=kind, hidden_size=64, rnn_num_layers=2))
    assert isinstance(core, RecurrentCore)
    x, state = torch.randn(5, 48), torch.randn(5, core.state_size)
    with torch.no_grad():
        for name, bias in core.named_parameters():
            if "bias" in name:
                bias.normal_()
        plain = core.step(x, state)
        finder = CallFinder(dtype, packs=True)
        step = finder.step_of(core)
        assert finder.packed == set(core.layers)
        result = step(x, state)
    for mine, expected in zip(result, plain, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


def test_changed_weights_have_to_be_packed_again():
    x = torch.randn(3, 256)
    for norm in (False, True):
        layer = linear(256, 256, ModelConfig(use_spectral_norm=norm))
        call = packed(layer)
        before = call(x)
        with torch.no_grad():
            layer.get_parameter("parametrizations.weight.original" if norm else "weight").mul_(2.0)
            layer.bias.add_(1.0)
        assert torch.equal(call(x), before)
        torch.testing.assert_close(packed(layer)(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Linear(8, 8),
        torch.nn.Conv2d(3, 4, 3, padding="same"),
        torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    ],
    ids=["small", "padding by name", "padding by reflection"],
)
def test_a_layer_that_cannot_be_packed_or_is_too_small_stays_as_it_is(layer):
    finder = CallFinder(torch.float32, packs=True)
    x = torch.randn(2, 8) if isinstance(layer, torch.nn.Linear) else torch.randn(2, 3, 9, 9)
    assert torch.equal(through(finder.calls_of(layer), x), layer(x)) and not finder.packed


def test_where_nothing_can_be_packed_the_numbers_are_the_modules_own():
    torch.manual_seed(6)
    layers = torch.nn.Sequential(InputLinear(5, 4000), torch.nn.ReLU(), torch.nn.Linear(4000, 10))
    core, finder = build_core(48, ModelConfig(hidden_size=64)), CallFinder(torch.float32, packs=False)
    x = torch.randn(3, 5)
    assert torch.equal(through(finder.calls_of(layers), x), layers(x))
    assert finder.step_of(core) == core.step and not finder.packed


@packs_bf16
def test_a_packed_layer_that_reads_observations_tells_large_numbers_apart_that_bf16_does_not():
    close = torch.tensor([[1000.0], [1001.0]])  # one number in bf16
    differences = {}
    for kind in (torch.nn.Linear, InputLinear):
        layer = kind(1, 16_384)  # as large as it takes to be packed
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.constant_(layer.bias, -1000.0)
        with torch.inference_mode():
            features = packed(layer, torch.bfloat16)(close)
        assert features.dtype == torch.bfloat16
        differences[kind] = (features[1] - features[0]).unique().tolist()
    assert differences == {torch.nn.Linear: [0.0], InputLinear: [1.0]}
