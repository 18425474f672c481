"""The ELU of our own: torch's numbers to the rounding of bf16, and its gradient."""

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
    monkeypatch.setattr(activations, "_elu_", lambda x: taken.append(x.shape) or ours(x))
    return taken


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("in_place", [False, True])
def test_it_is_the_rounded_elu(own, in_place, layout):
    x = numbers(layout=layout)
    before, expected = x.clone(), elu(x.float())
    with torch.inference_mode():
        result = Elu(in_place=in_place)(x)
    assert own and result.dtype == torch.bfloat16 and result.stride() == before.stride()
    torch.testing.assert_close(result.float(), expected, rtol=2**-8, atol=1.2e-7)
    assert (result.data_ptr() == x.data_ptr()) == in_place
    assert in_place or torch.equal(x, before)


@pytest.mark.parametrize("in_place", [False, True])
def test_its_gradient_is_that_of_torch(own, in_place):
    layer = torch.nn.Conv2d(3, 4, 3).to(torch.bfloat16)
    x, gradients = numbers(), []
    for module in (Elu(in_place=in_place), torch.nn.ELU(inplace=in_place)):
        layer.zero_grad()
        module(layer(x)).float().square().sum().backward()
        gradients.append(layer.weight.grad.float().clone())
    assert len(own) == 1
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.02, atol=0.01 * float(gradients[1].abs().max()))


def test_every_piece_of_a_large_tensor_is_computed(own, monkeypatch):
    monkeypatch.setattr(activations, "_PIECE", 1000)
    x = numbers()
    torch.testing.assert_close(Elu()(x).float(), elu(x.float()), rtol=2**-8, atol=1.2e-7)
    assert own


def test_what_is_no_number_stays_so_and_infinities_have_their_limits(own):
    x = torch.full((20_000,), float("nan"), dtype=torch.bfloat16)
    x[:2] = torch.tensor([float("inf"), float("-inf")])
    result = Elu()(x)
    assert own and result[:2].tolist() == [float("inf"), -1.0] and bool(result[2:].isnan().all())


@pytest.mark.parametrize(
    "x",
    [numbers(dtype=torch.float32), numbers((4, 4), layout=torch.contiguous_format), numbers()[:, :, ::2]],
    ids=["float32", "few numbers", "with gaps"],
)
def test_everything_else_is_left_to_torch(own, x):
    assert torch.equal(Elu()(x), elu(x)) and not own
