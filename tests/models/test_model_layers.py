"""Options as they arrive in layers and heads: ranges, initialisation, spectral norm, bounded deviations."""

import math

import pytest
import torch
from torch import nn

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.heads import LOG_STD_RANGE, bounded_log_std, raw_log_std
from appo.algorithms.models.layers import (
    FlattenImage,
    InputLinear,
    SpectralNorm,
    conv,
    fully_connected,
    linear,
    pixel_conv,
    refresh_spectral_norms,
)
from appo.utils.options import ConfigError, check_value, options_of

PROMISED = {  # what users of these names rely on
    "cuda_graphs": True,
    "encoder": "auto",
    "mlp_layers": "512,512",
    "encoder_extra_fc_layers": 1,
    "hidden_size": 512,
    "nonlinearity": "elu",
    "policy_initialization": "orthogonal",
    "policy_init_gain": 1.0,
    "use_rnn": True,
    "rnn_type": "gru",
    "rnn_num_layers": 1,
    "rnn_chrono_init": 0,
    "precision": "auto",
    "actor_critic_share_weights": True,
    "critic_sees_time": False,
    "adaptive_stddev": True,
    "initial_stddev": 1.0,
    "use_spectral_norm": False,
    "obs_subtract_mean": 0.0,
    "obs_scale": 1.0,
    "normalize_input": False,
    "normalize_returns": False,
}


def test_the_defaults_are_the_promised_ones_in_range_and_explained():
    defaults = {}
    for field, rule in options_of(ModelConfig):
        check_value(field.name, field.default, rule, "default")
        assert len(rule.help) > 30, field.name
        defaults[field.name] = field.default
    assert defaults == PROMISED


def test_widths_are_read_from_text():
    assert ModelConfig(mlp_layers="64, 32").mlp_widths == (64, 32)
    for wrong in ("", "64,", "64;32", "0", "-5", "64.5"):
        with pytest.raises(ConfigError, match="mlp_layers"):
            ModelConfig(mlp_layers=wrong)


def test_orthogonal_weights_keep_lengths_and_the_gain_multiplies_them():
    for gain in (1.0, 2.5):
        layer = linear(16, 16, ModelConfig(policy_init_gain=gain))
        x = torch.randn(5, 16)
        torch.testing.assert_close(layer(x).norm(dim=1), gain * x.norm(dim=1))
        assert not layer.bias.any()


def test_xavier_weights_are_uniform_within_their_bound():
    weight = linear(300, 100, ModelConfig(policy_initialization="xavier_uniform")).weight
    bound = math.sqrt(6.0 / 400)
    assert 0.99 * bound < weight.abs().max() <= bound


@pytest.mark.parametrize("name, at_minus_one", [("elu", math.exp(-1) - 1), ("relu", 0.0), ("tanh", math.tanh(-1))])
def test_the_nonlinearity_follows_every_layer(name, at_minus_one):
    layers = fully_connected(1, [1, 1], ModelConfig(nonlinearity=name))
    with torch.no_grad():
        for layer in (layers[0], layers[2]):
            assert isinstance(layer, nn.Linear)
            layer.weight.fill_(1.0)
            layer.bias.zero_()
    inner = layers[1](torch.tensor(-1.0)).item()
    assert inner == pytest.approx(at_minus_one)
    assert layers(torch.tensor([[-1.0]])).item() == pytest.approx(layers[3](torch.tensor(inner)).item())


@pytest.mark.parametrize("build", [lambda c: linear(9, 7, c), lambda c: conv(2, 5, 3, 1, c)])
def test_spectral_norm_brings_the_largest_singular_value_to_one(build):
    torch.manual_seed(0)
    layer = build(ModelConfig(use_spectral_norm=True, policy_init_gain=3.0))
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(torch.randn_like(layer.parametrizations.weight.original))
    for _ in range(40):
        refresh_spectral_norms(layer)
    assert torch.linalg.matrix_norm(layer.weight.flatten(1), ord=2).item() == pytest.approx(1.0, rel=1e-3)
    plain = build(ModelConfig(policy_init_gain=3.0))
    assert torch.linalg.matrix_norm(plain.weight.flatten(1), ord=2).item() == pytest.approx(3.0, rel=1e-3)


def test_spectral_norm_lets_the_gradient_through_the_norm():
    torch.manual_seed(0)
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(SpectralNorm(weight).double(), weight)


def test_log_stds_stay_in_their_range_with_a_gradient_and_start_where_asked():
    raw = torch.linspace(-8.0, 6.0, 50, requires_grad=True)
    bounded = bounded_log_std(raw)
    bounded.sum().backward()
    assert LOG_STD_RANGE[0] < bounded.min() < -4.8 and 1.8 < bounded.max() < LOG_STD_RANGE[1]
    assert raw.grad is not None and raw.grad.gt(0).all() and (bounded.diff() > 0).all()
    for stddev in (0.01, 0.5, 1.0, 7.0):
        assert bounded_log_std(torch.tensor(raw_log_std(stddev))).exp().item() == pytest.approx(stddev, rel=1e-4)


@pytest.mark.parametrize("padding", [0, 1])
def test_a_convolution_of_bytes_is_that_of_the_scaled_numbers_and_keeps_the_bytes(padding):
    torch.manual_seed(0)
    layer = pixel_conv(3, 4, 3, 2, ModelConfig(obs_scale=255.0), padding=padding)
    plain = torch.nn.Conv2d(3, 4, 3, 2, padding=padding)
    plain.load_state_dict(layer.state_dict())
    pixels = torch.randint(0, 256, (5, 9, 11, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ours = layer(pixels)
    theirs = plain(pixels.float() / 255.0)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert any(tensor.dtype == torch.uint8 for tensor in kept)
    assert not any(tensor.dtype != torch.uint8 and tensor.shape == pixels.shape for tensor in kept)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for mine, reference in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, reference.grad, atol=1e-4, rtol=1e-4)


def test_an_image_is_flattened_without_a_copy_where_its_channels_lie_last():
    image = torch.randn(2, 5, 7, 3).permute(0, 3, 1, 2)
    flat = FlattenImage()(image)
    assert flat.shape == (2, 105) and flat.data_ptr() == image.data_ptr()
    assert torch.equal(flat, FlattenImage()(image.contiguous()))


def test_a_layer_that_reads_observations_tells_large_numbers_apart_that_bf16_does_not():
    close = torch.tensor([[1000.0], [1001.0]])  # one number in bf16
    differences = {}
    for kind in (torch.nn.Linear, InputLinear):
        layer = kind(1, 8)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.constant_(layer.bias, -1000.0)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            features = layer(close)
        assert features.dtype == torch.bfloat16
        differences[kind] = (features[1] - features[0]).unique().tolist()
    assert differences == {torch.nn.Linear: [0.0], InputLinear: [1.0]}


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
