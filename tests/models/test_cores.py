"""Recurrent cores against torch's own, step by step and through time, values and gradients."""

import pytest
import torch
from torch import nn

from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.cores import build_core
from appo.algorithms.models.sequences import GruSequence, LstmSequence

STEPS, ROWS, INPUTS, SIZE = 9, 4, 5, 6


def build(rnn_type, layers=1):
    torch.manual_seed(0)
    core = build_core(INPUTS, ModelConfig(hidden_size=SIZE, rnn_type=rnn_type, rnn_num_layers=layers))
    for parameter in core.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return core


def case(core, reset_probability):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, ROWS, INPUTS, generator=generator, requires_grad=True)
    state = torch.randn(ROWS, core.state_size, generator=generator, requires_grad=True)
    is_first = (torch.rand(STEPS, ROWS, generator=generator) < reset_probability).to(torch.uint8)
    return x, state, is_first


def slow_unroll(core, x, state, is_first):
    outputs = []
    for t in range(len(x)):
        output, state = core.step(x[t], state * (is_first[t] == 0).unsqueeze(1))
        outputs.append(output)
    return torch.stack(outputs)


def gradients(core, output, x, state):
    weights = torch.arange(output.numel()).view_as(output).cos()  # every output counts differently
    return torch.autograd.grad((output * weights).sum(), [x, state, *core.parameters()])


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("reset_probability", [0.0, 0.3, 1.0])
def test_unroll_equals_step_after_step_and_so_do_its_gradients(rnn_type, layers, reset_probability):
    core = build(rnn_type, layers)
    x, state, is_first = case(core, reset_probability)
    fast, slow = core.unroll(x, state, is_first), slow_unroll(core, x, state, is_first)
    torch.testing.assert_close(fast, slow, atol=1e-6, rtol=1e-5)
    for ours, theirs in zip(gradients(core, fast, x, state), gradients(core, slow, x, state), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_without_resets_a_layer_is_that_of_torch(rnn_type):
    core = build(rnn_type)
    x, state, is_first = case(core, 0.0)
    reference = (nn.GRU if rnn_type == "gru" else nn.LSTM)(INPUTS, SIZE)
    own = dict(
        zip(("input_weight", "recurrent_weight", "input_bias", "recurrent_bias"), core.parameters(), strict=True)
    )
    theirs = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    reference.load_state_dict(dict(zip(theirs, own.values(), strict=True)))
    initial = state[None] if rnn_type == "gru" else tuple(part[None].contiguous() for part in state.chunk(2, 1))
    torch.testing.assert_close(core.unroll(x, state, is_first), reference(x, initial)[0], atol=1e-6, rtol=1e-5)


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(2)

    def number(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    begins = torch.zeros(3, 2, 1, dtype=torch.bool)
    begins[1, 0] = True
    gru = (number(3, 2, 6), number(2, 2), begins, number(6, 2), number(6))
    lstm = (number(3, 2, 8), number(2, 2), number(2, 2), begins, number(8, 2))
    assert torch.autograd.gradcheck(lambda *tensors: GruSequence.apply(*tensors, torch.float64), gru)
    assert torch.autograd.gradcheck(lambda *tensors: LstmSequence.apply(*tensors, torch.float64), lstm)


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_nothing_crosses_an_episode_boundary(rnn_type):
    core = build(rnn_type, layers=2)
    x, state, is_first = case(core, 0.0)
    is_first[4, 1] = 1
    output = core.unroll(x, state, is_first)
    of_x, of_state = torch.autograd.grad(output[4:, 1].sum(), [x, state])
    assert not of_x[:4].any() and not of_state.any() and of_x[4, 1].all()
    of_x, of_state = torch.autograd.grad(core.unroll(x, state, is_first)[4:, 2].sum(), [x, state])
    assert of_x[:4, 2].any() and of_state[2].any()  # without a reset it does


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("loops_over_steps", [True, False])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_stored_state_that_is_not_finite_counts_for_nothing_where_an_episode_begins(rnn_type, loops_over_steps, bad):
    core = build(rnn_type, layers=2)
    core.loops_over_steps = loops_over_steps
    x, state, is_first = case(core, 0.0)
    is_first[0, 1] = 1
    poisoned = state.detach().index_fill(0, torch.tensor(1), bad).requires_grad_()
    clean, output = core.unroll(x, state, is_first), core.unroll(x, poisoned, is_first)
    torch.testing.assert_close(output, clean)
    of_poisoned, of_clean = gradients(core, output, x, poisoned), gradients(core, clean, x, state)
    torch.testing.assert_close(of_poisoned, of_clean)


@pytest.mark.parametrize("loops_over_steps", [True, False])
@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_a_step_that_is_not_finite_ends_with_its_episode(rnn_type, loops_over_steps):
    core = build(rnn_type, layers=2)
    core.loops_over_steps = loops_over_steps
    x, state, is_first = case(core, 0.0)
    is_first[4, 2] = 1
    poisoned = x.detach().clone()
    poisoned[2, 2] = torch.nan
    poisoned.requires_grad_()
    clean, output = core.unroll(x, state, is_first), core.unroll(poisoned, state, is_first)
    assert output[2:4, 2].isnan().all()
    torch.testing.assert_close(output[4:], clean[4:])
    (of_poisoned,) = torch.autograd.grad(output[4:].square().sum(), poisoned)
    (of_clean,) = torch.autograd.grad(clean[4:].square().sum(), x)
    torch.testing.assert_close(of_poisoned[4:], of_clean[4:])
    others = [0, 1, 3]
    torch.testing.assert_close(of_poisoned[:, others], of_clean[:, others])
    assert of_clean[:4, others].any()


def test_the_state_holds_every_layer():
    assert build("gru", 3).state_size == 3 * SIZE
    assert build("lstm", 2).state_size == 4 * SIZE
    assert build_core(INPUTS, ModelConfig(use_rnn=False)).state_size == 0


def test_without_memory_features_pass_through():
    core = build_core(INPUTS, ModelConfig(use_rnn=False))
    x, nothing = torch.randn(STEPS, ROWS, INPUTS), torch.zeros(ROWS, 0)
    assert torch.equal(core.unroll(x, nothing, torch.ones(STEPS, ROWS)), x)
    assert torch.equal(core.step(x[0], nothing)[0], x[0])
    assert core.output_size == INPUTS


@pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
def test_units_begin_with_memories_of_1_to_as_many_steps_as_asked(rnn_type):
    def kept_after_16_steps(longest):
        torch.manual_seed(0)
        config = ModelConfig(hidden_size=1000, rnn_type=rnn_type, rnn_chrono_init=longest)
        core = build_core(INPUTS, config)
        for name, parameter in core.named_parameters():
            if name.endswith("weight"):
                parameter.data.zero_()  # gates are their biases
        state = torch.ones(1, core.state_size)
        for _ in range(16):
            _, state = core.step(torch.zeros(1, INPUTS), state)
        return state[0, -1000:]  # of an LSTM the cells

    assert kept_after_16_steps(0).max() < 0.01
    assert kept_after_16_steps(1).max() < 0.01
    kept = kept_after_16_steps(64)
    # (u / (1 + u))^16 for u evenly from 1 to 63: half after 16 steps from u = 22.6 on, hardly anything below u = 3
    assert (kept > 0.5).float().mean() == pytest.approx(40.4 / 62, abs=0.06)
    assert kept.min() < 0.01 < kept.mean()
