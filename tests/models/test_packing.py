"""Packed weights: the plain product's numbers, until the weight changes and is packed again."""

import pytest
import torch

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cores import build_core
from appo.algorithms.models.layers import conv, linear, pixel_conv
from appo.algorithms.models.packing import InputLinear, Linear, Packable, PackedMatrix
from tests.models.processors import packs_bf16, packs_float32

pytestmark = packs_float32
TOLERANCES = [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 0.02, marks=packs_bf16)]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_packed_matrix_multiplies_as_the_plain_one(dtype, tolerance, rows):
    torch.manual_seed(rows)
    layer, x = Linear(96, 200), torch.randn(rows, 96)
    plain = layer(x)
    layer.pack(dtype)
    with torch.inference_mode():
        packed, without_bias = layer(x), PackedMatrix(layer.weight, None, dtype)(x)
    assert packed.dtype == dtype and (layer(x) == packed).all()
    torch.testing.assert_close(packed.float(), plain, atol=tolerance, rtol=tolerance)
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
        layer.pack(dtype)
        with torch.inference_mode():
            packed = layer(x)
        assert packed.dtype == dtype and packed.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(packed.float(), plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_packed_core_steps_as_the_plain_one(dtype, tolerance, kind):
    torch.manual_seed(4)
    core = build_core(48, ModelConfig(rnn_type=kind, hidden_size=64, rnn_num_layers=2))
    x, state = torch.randn(5, 48), torch.randn(5, core.state_size)
    with torch.no_grad():
        for name, bias in core.named_parameters():
            if "bias" in name:
                bias.normal_()
        plain = core.step(x, state)
        for layer in core.modules():
            if isinstance(layer, Packable):
                layer.pack(dtype)
        packed = core.step(x, state)
    for mine, expected in zip(packed, plain, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


def test_changed_weights_have_to_be_packed_again():
    x = torch.randn(3, 256)
    for norm in (False, True):
        layer = linear(256, 256, ModelConfig(use_spectral_norm=norm))
        layer.pack(torch.float32)
        before = layer(x)
        with torch.no_grad():
            layer.get_parameter("parametrizations.weight.original" if norm else "weight").mul_(2.0)
            layer.bias.add_(1.0)
        assert torch.equal(layer(x), before)
        layer.pack(torch.float32)
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_small_layers_stay_as_they_are():
    layer, x = Linear(8, 8), torch.randn(3, 8)
    layer.pack(torch.bfloat16)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("is_packed", [False, pytest.param(True, marks=packs_bf16)])
def test_a_layer_that_reads_observations_tells_large_numbers_apart_that_bf16_does_not(is_packed):
    torch.manual_seed(1)
    close = torch.tensor([[1000.0], [1001.0]])  # one number in bf16
    differences = {}
    for kind in (Linear, InputLinear):
        layer = kind(1, 16_384)  # as large as it takes to be packed
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.constant_(layer.bias, -1000.0)
        if is_packed:
            layer.pack(torch.bfloat16)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            features = layer(close)
        assert features.dtype == torch.bfloat16
        differences[kind] = (features[1] - features[0]).unique().tolist()
    assert differences == {Linear: [0.0], InputLinear: [1.0]}


def test_its_gradient_is_that_of_float32_to_the_rounding_of_what_comes_after():
    torch.manual_seed(2)
    layer, x = InputLinear(5, 300), 1000.0 + torch.randn(16, 5)
    layer(x).square().sum().backward()
    exact, layer.weight.grad = layer.weight.grad, None
    assert exact is not None
    with torch.autocast("cpu", torch.bfloat16):
        features = layer(x)
    features.float().square().sum().backward()
    rounded = layer.weight.grad
    assert rounded is not None and rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.02 * float(exact.abs().mean()))


@pytest.mark.parametrize("inputs", [4, 16, 17])
def test_few_observed_numbers_in_many_rows_have_the_gradient_of_a_plain_layer(inputs):
    torch.manual_seed(3)
    layer, plain, x = InputLinear(inputs, 256), torch.nn.Linear(inputs, 256), torch.randn(200, inputs)
    plain.load_state_dict(layer.state_dict())
    outputs = layer(x), plain(x)
    torch.testing.assert_close(*outputs)
    to_weight, names = outputs[0].grad_fn, []
    while to_weight is not None:
        names.append(type(to_weight).__name__)
        to_weight = to_weight.next_functions[-1][0] if to_weight.next_functions else None
    assert ("CloneBackward0" in names) == (inputs <= 16)
    for output in outputs:
        output.square().sum().backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(layer.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-3)
