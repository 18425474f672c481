"""Adam against torch's own, and what it does not import."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from appo.algorithms.learning.adam import Adam


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def set_gradients(model, step, without=()):
    generator = torch.Generator().manual_seed(step)
    for index, weight in enumerate(model.parameters()):
        gradient = torch.randn(weight.shape, generator=generator)
        weight.grad = None if index in without else gradient


def test_it_steps_as_torchs_own_does():
    ours, theirs = network(), network()
    adam = Adam(list(ours.parameters()))
    adam.betas, adam.eps = (0.8, 0.95), 1e-4
    reference = torch.optim.Adam(theirs.parameters(), lr=0.1, betas=(0.8, 0.95), eps=1e-4, fused=True)
    for step in range(6):
        without = (1,) if step in (2, 3) else ()  # a weight without a gradient is left out
        for model in (ours, theirs):
            set_gradients(model, step, without)
        lr = 0.1 / (step + 1)
        reference.param_groups[0]["lr"] = lr
        adam.step(lr)
        reference.step()
        for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, expected)
    for mine, state in zip(adam.second_moments, reference.state.values(), strict=True):
        assert torch.equal(mine, state["exp_avg_sq"]) and mine.any()


def test_it_goes_on_from_saved_moments_and_refuses_those_of_another_network():
    model = network()
    adam = Adam(list(model.parameters()))
    for step in range(3):
        set_gradients(model, step)
        adam.step(0.1)
    copied = copy.deepcopy(model)
    resumed = Adam(list(copied.parameters()))
    resumed.load_state_dict(copy.deepcopy(adam.state_dict()))
    for both in ((model, adam), (copied, resumed)):
        set_gradients(both[0], 9)
        both[1].step(0.1)
    for mine, expected in zip(copied.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, expected)
    with pytest.raises(ValueError, match="exp_avg of Adam has the shapes"):
        Adam([nn.Parameter(torch.zeros(2))]).load_state_dict(adam.state_dict())
    with pytest.raises(ValueError, match=r"exp_avg of Adam has the shapes \[\]"):
        adam.load_state_dict({"state": {}, "param_groups": []})


def test_a_learner_does_not_bring_torchs_compiler_in():
    code = (
        "import sys, torch; from appo.algorithms.learning import learner; "
        "from appo.algorithms.workers import learner_worker; "
        "from torch import nn; weight = nn.Parameter(torch.zeros(2)); weight.sum().backward(); "
        "adam = learner.Adam([weight]); adam.step(0.1); assert (weight < 0).all(); "
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
