"""Weights as one tensor: round trips, optimizers, checkpoints."""

import copy
import itertools

import pytest
import torch
from torch import nn

from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.parameters import flat_size, flatten
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf

SPEC = EnvSpec(
    (
        ObservationLeaf("image", (3, 9, 9), "uint8", "image"),
        ObservationLeaf("numbers", (3,), "float32", "vector"),
    ),
    (ActionLeaf("discrete", 3), ActionLeaf("continuous", 2)),
    1,
)
CONFIG = ModelConfig(
    hidden_size=8,
    mlp_layers="8",
    obs_scale=255.0,
    normalize_input=True,
    normalize_returns=True,
    use_spectral_norm=True,
    adaptive_stddev=False,
)


def build(seed):
    torch.manual_seed(seed)
    return build_actor_critic(CONFIG, SPEC)


def outputs(model):
    generator = torch.Generator().manual_seed(0)
    observations = {
        "image": torch.randint(0, 256, (4, 5, 3, 9, 9), dtype=torch.uint8, generator=generator),
        "numbers": torch.randn(4, 5, 3, generator=generator),
    }
    return model.unroll(observations, torch.ones(5, model.state_size), torch.zeros(4, 5))


def floating(module):
    return [value for value in (*module.parameters(), *module.buffers()) if value.is_floating_point()]


def train_one_step(model, optimizer):
    output = outputs(model)
    optimizer.zero_grad()
    (output.values.square().mean() + output.parameters.square().mean()).backward()
    optimizer.step()
    model.returns_normalizer.update(output.values.detach() + 3.0, torch.ones(4, 5, dtype=torch.bool))


def test_flattening_changes_no_output_and_no_memory_format():
    model = build(0)
    before, strides = outputs(model), [value.stride() for value in floating(model)]
    flat = flatten(model)
    assert torch.equal(outputs(model).parameters, before.parameters)
    assert [value.stride() for value in floating(model)] == strides
    assert any(value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
               for value in floating(model))  # fmt: skip
    assert flat.shape == (flat_size(model),) and flat.dtype == torch.float32 and flat.is_contiguous()


def test_every_floating_tensor_is_an_aligned_view_and_none_overlap():
    model = build(0)
    flat = flatten(model)
    begin = flat.data_ptr()
    places = sorted((value.data_ptr() - begin, value.numel() * 4) for value in floating(model))
    assert all(start % 64 == 0 for start, _ in places)
    assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(places))
    assert places[-1][0] + places[-1][1] <= flat.numel() * 4
    assert sum(size for _, size in places) > 0.5 * flat.numel() * 4


def test_one_copy_makes_another_model_equal_normalisers_included():
    source, target = build(0), build(1)
    train_one_step(source, torch.optim.Adam(source.parameters(), 0.01))
    source_flat, target_flat = flatten(source), flatten(target)
    assert not torch.equal(outputs(source).values, outputs(target).values)
    target_flat.copy_(source_flat)
    assert all(
        torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )
    assert torch.equal(outputs(source).values, outputs(target).values)
    assert target.returns_normalizer.mean.item() > 1.0


def test_an_optimizer_steps_the_flat_weights_as_it_steps_separate_ones():
    separate = build(0)
    flattened = copy.deepcopy(separate)
    # Made before flattening on purpose: the parameters must remain the same objects.
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (separate, flattened)]
    flat = flatten(flattened)
    start = flat.clone()
    for _ in range(3):
        train_one_step(separate, optimizers[0])
        train_one_step(flattened, optimizers[1])
    torch.testing.assert_close(flattened.state_dict(), separate.state_dict(), atol=1e-6, rtol=1e-5)
    assert not torch.equal(flat, start)
    torch.testing.assert_close(flatten(separate), flat, atol=1e-6, rtol=1e-5)


def test_loading_a_state_dict_writes_into_the_flat_tensor():
    source, target = build(0), build(1)
    flat = flatten(target)
    target.load_state_dict(source.state_dict())
    assert torch.equal(flat, flatten(source))


def test_tied_weights_are_laid_out_once():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    flat = flatten(nn.Sequential(first, second))
    flat.fill_(1.0)
    assert flat.shape == (16,) and second.weight.sum() == 16


def test_a_module_without_weights_is_empty():
    assert flatten(nn.Identity()).shape == (0,)


def test_other_precisions_are_refused():
    with pytest.raises(TypeError, match=r"weight is torch\.float64"):
        flatten(nn.Linear(2, 2).double())
