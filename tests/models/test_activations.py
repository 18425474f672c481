"""tanh of our own: torch's numbers to the rounding of float32, and their gradient."""

import pytest
import torch

from appo.algorithms.models import device_choices
from appo.algorithms.models.activations import Tanh, tanh, tanh_
from tests.models.processors import use_on_cpu

LARGE = (32, 3, 17, 31)


def numbers(shape=LARGE, dtype=torch.float32, layout=torch.channels_last):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-4, 2, shape, generator=generator)
    return x.to(dtype).contiguous(memory_format=layout)


TANH_ERROR = 2e-7  # two bits of the float32 below 1


@pytest.fixture
def sigmoids(monkeypatch):
    """The shapes of the tensors that were squashed by torch's sigmoid, as on a CPU of AMD."""
    taken = []
    theirs = torch.Tensor.sigmoid_

    def note_and_compute(x):
        taken.append(x.shape)
        return theirs(x)

    monkeypatch.setattr(torch.Tensor, "sigmoid_", note_and_compute)
    use_on_cpu(monkeypatch, device_choices.ON_CPU._replace(has_sigmoid_tanh=True))
    return taken


@pytest.mark.parametrize("in_place", [False, True])
def test_tanh_of_many_numbers_is_that_of_torch(sigmoids, in_place):
    x = numbers(dtype=torch.float32)
    before, expected = x.clone(), torch.tanh(x.double())
    with torch.inference_mode():
        result = Tanh(in_place=in_place)(x)
    assert sigmoids and result.stride() == before.stride()
    torch.testing.assert_close(result.double(), expected, rtol=0.0, atol=TANH_ERROR)
    assert (result.data_ptr() == x.data_ptr()) == in_place
    assert in_place or torch.equal(x, before)


def test_tanh_of_a_part_of_a_tensor_leaves_the_rest_alone(sigmoids):
    gates = numbers((64, 3 * 128), torch.float32, torch.contiguous_format)
    before = gates.clone()
    tanh_(gates[:, 128:256])
    assert sigmoids == [(64, 128)]
    torch.testing.assert_close(gates[:, 128:256], torch.tanh(before[:, 128:256]), rtol=0.0, atol=TANH_ERROR)
    assert torch.equal(gates[:, :128], before[:, :128]) and torch.equal(gates[:, 256:], before[:, 256:])


@pytest.mark.parametrize("in_place", [False, True])
def test_the_gradient_of_tanh_is_that_of_torch(sigmoids, in_place):
    layer = torch.nn.Linear(8, 300)
    x, gradients = torch.randn(100, 8), []
    for module in (Tanh(in_place=in_place), torch.nn.Tanh()):
        layer.zero_grad()
        module(layer(x)).square().sum().backward()
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad.clone())
    assert len(sigmoids) == 1
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, (10, 20)), (torch.bfloat16, (300, 300))])
def test_tanh_of_few_numbers_and_of_other_dtypes_is_torchs_own(sigmoids, dtype, shape):
    x = torch.randn(shape).to(dtype)
    assert torch.equal(Tanh()(x), torch.tanh(x)) and torch.equal(tanh_(x.clone()), torch.tanh(x))
    assert torch.equal(tanh(x), torch.tanh(x))
    assert not sigmoids


def test_tanh_of_what_is_no_number_stays_so_and_infinities_have_their_limits(sigmoids):
    x = torch.full((40_000,), float("nan"))
    x[:2] = torch.tensor([float("inf"), float("-inf")])
    result = Tanh()(x)
    assert sigmoids and result[:2].tolist() == [1.0, -1.0] and bool(result[2:].isnan().all())


def test_tanh_is_torchs_own_where_that_is_fast(sigmoids, monkeypatch):
    use_on_cpu(monkeypatch, device_choices.ON_CPU._replace(has_sigmoid_tanh=False))
    x = numbers(dtype=torch.float32)
    assert torch.equal(tanh(x), torch.tanh(x)) and torch.equal(tanh_(x.clone()), torch.tanh(x))
    assert not sigmoids


@pytest.mark.usefixtures("sigmoids")
@pytest.mark.parametrize("rows", [10, 300])
def test_tanh_of_what_has_a_gradient_keeps_it(rows):
    x = torch.randn(rows, 100, requires_grad=True)
    tanh(x.chunk(2, 1)[0]).sum().backward()
    tanh(x.chunk(2, 1)[1] * 1.0, in_place=True).sum().backward()
    torch.testing.assert_close(x.grad, 1.0 - torch.tanh(x.detach()).square())
