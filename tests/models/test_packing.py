"""Packed weights: the plain product's numbers, until the weight changes and is packed again."""

import pytest
import torch

from algorithms.models.packing import InputLinear, Linear, can_pack, multiply, pack

pytestmark = pytest.mark.skipif(not can_pack(torch.device("cpu")), reason="this torch packs no weights")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_packed_weight_multiplies_as_the_plain_one(dtype, tolerance, rows):
    torch.manual_seed(rows)
    layer, x = Linear(96, 200), torch.randn(rows, 96)
    plain = layer(x)
    pack(layer.weight, dtype)
    with torch.inference_mode():
        packed, without_bias = layer(x), multiply(x, layer.weight, None)
    assert packed.dtype == dtype
    torch.testing.assert_close(packed.float(), plain, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(without_bias.float() + layer.bias, plain, atol=tolerance, rtol=tolerance)


def test_a_changed_weight_has_to_be_packed_again():
    layer, x = Linear(8, 8), torch.randn(3, 8)
    pack(layer.weight, torch.float32)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2.0)
    assert torch.equal(layer(x), before)
    pack(layer.weight, torch.float32)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_layer_that_reads_observations_tells_large_numbers_apart_that_bf16_does_not(is_packed):
    torch.manual_seed(1)
    close = torch.tensor([[1000.0], [1001.0]])  # one number in bf16
    differences = {}
    for kind in (Linear, InputLinear):
        layer = kind(1, 64)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.constant_(layer.bias, -1000.0)
        if is_packed:
            pack(layer.weight, torch.float32 if kind is InputLinear else torch.bfloat16)
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
    with torch.autocast("cpu", torch.bfloat16):
        features = layer(x)
    features.float().square().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(layer.weight.grad, exact, rtol=0.02, atol=0.02 * float(exact.abs().mean()))
