"""The ELU of our own: torch's numbers to the rounding of the dtype, and its gradient."""

import pytest
import torch
from torch.nn.functional import elu

from algorithms.models import activations
from algorithms.models.activations import Elu

LARGE = (32, 3, 17, 31)


def numbers(shape=LARGE, dtype=torch.bfloat16, layout=torch.channels_last):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-4, 2, shape, generator=generator)
    return x.to(dtype).contiguous(memory_format=layout)


@pytest.fixture
def own(monkeypatch):
    """How many tensors took the way of our own."""
    taken = []
    ours = activations._elu_

    def note_and_compute(x):
        taken.append(x.shape)
        return ours(x)

    monkeypatch.setattr(activations, "_elu_", note_and_compute)
    return taken


DTYPES = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_rounded_elu(own, dtype, in_place, layout):
    x = numbers(dtype=dtype, layout=layout)
    before, expected = x.clone(), elu(x.double())
    with torch.inference_mode():
        result = Elu(in_place=in_place)(x)
    assert own and result.dtype == dtype and result.stride() == before.stride()
    torch.testing.assert_close(result.double(), expected, rtol=ROUNDING[dtype], atol=1.2e-7)
    assert (result.data_ptr() == x.data_ptr()) == in_place
    assert in_place or torch.equal(x, before)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_its_gradient_is_that_of_torch(own, dtype, in_place):
    layer = torch.nn.Conv2d(3, 4, 3).to(dtype)
    x, gradients = numbers(dtype=dtype), []
    for module in (Elu(in_place=in_place), torch.nn.ELU(inplace=in_place)):
        layer.zero_grad()
        module(layer(x)).float().square().sum().backward()
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad.float().clone())
    assert len(own) == 1
    rounding = 0.01 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(*gradients, rtol=2 * rounding, atol=rounding * float(gradients[1].abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_piece_of_a_large_tensor_is_computed(own, monkeypatch, dtype):
    monkeypatch.setattr(activations, "_PIECE", 1000)
    x = numbers(dtype=dtype)
    torch.testing.assert_close(Elu()(x).double(), elu(x.double()), rtol=ROUNDING[dtype], atol=1.2e-7)
    assert own


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_so_and_infinities_have_their_limits(own, dtype):
    x = torch.full((40_000,), float("nan"), dtype=dtype)
    x[:2] = torch.tensor([float("inf"), float("-inf")])
    result = Elu()(x)
    assert own and result[:2].tolist() == [float("inf"), -1.0] and bool(result[2:].isnan().all())


@pytest.mark.parametrize(
    "x",
    [numbers(dtype=torch.float16), numbers((4, 4), layout=torch.contiguous_format), numbers()[:, :, ::2]],
    ids=["float16", "few numbers", "with gaps"],
)
def test_everything_else_is_left_to_torch(own, x):
    assert torch.equal(Elu()(x), elu(x)) and not own
