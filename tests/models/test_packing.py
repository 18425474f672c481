"""Packed weights: the plain product's numbers, until the weight changes and is packed again."""

import pytest
import torch

from algorithms.models.packing import Linear, can_pack, multiply, pack

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
