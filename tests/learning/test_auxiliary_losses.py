"""Every file of the folder of auxiliary losses, and how a name finds one."""

import dataclasses
import sys
import types

import pytest
import torch

from appo.algorithms.learning.auxiliary_loss import (
    AuxiliaryInputs,
    AuxiliaryLoss,
    AuxiliaryResult,
    available,
    load,
    register,
)
from appo.algorithms.learning.minibatches import whole_batch
from appo.utils.options import ConfigError, check_value, options_of
from tests.learning.learning_cases import TinyModel, acted_out, config_for


def inputs_for(parameters, batch):
    data = whole_batch(batch, config_for(*batch.rewards.shape), 0)
    return AuxiliaryInputs(data, parameters, parameters.sum(-1), TinyModel().distribution)


def test_the_folder_is_not_empty():
    assert "action_smoothness" in available()


@pytest.mark.parametrize("name", available())
def test_a_loss_is_documented_finite_and_pulls_on_valid_rows_only(name):
    loss = load(name)
    assert sys.modules[f"appo.algorithms.learning.auxiliary.{name}"].__doc__
    for field, rule in options_of(loss.config):
        check_value(field.name, field.default, rule, "default")
        assert rule.help
    batch = acted_out(TinyModel())
    parameters = torch.randn(6, 4, 3, requires_grad=True)
    result = loss.compute(inputs_for(parameters, batch), loss.config())
    assert result.loss.shape == ()
    assert all(value.shape == () and value.isfinite() for value in result.metrics.values())
    result.loss.backward()
    valid = whole_batch(batch, config_for(6, 4), 0).valid
    assert parameters.grad is not None
    assert parameters.grad[valid].abs().max() > 0.0
    assert parameters.grad[~valid].abs().max() == 0.0


@pytest.mark.parametrize("name", available())
def test_a_loss_over_no_valid_row_is_zero(name):
    loss = load(name)
    batch = acted_out(TinyModel())
    batch.own[:] = False
    parameters = torch.randn(6, 4, 3, requires_grad=True)
    result = loss.compute(inputs_for(parameters, batch), loss.config())
    result.loss.backward()
    assert result.loss.item() == 0.0
    assert parameters.grad is not None and parameters.grad.abs().max() == 0.0


def test_action_smoothness_compares_neighbours_of_one_episode():
    loss = load("action_smoothness")
    batch = acted_out(TinyModel(), 4, 1, ends=False)
    batch.terminated[1], batch.is_first[2] = 1, 1
    parameters = torch.zeros(4, 1, 3)
    parameters[2:] = torch.tensor([3.0, 0.0, 0.0])  # the policy jumps where the episode changes
    assert loss.compute(inputs_for(parameters, batch), loss.config()).loss.item() == 0.0
    parameters[3] = 0.0
    log_p = torch.log_softmax(torch.tensor([3.0, 0.0, 0.0]), 0)
    jump = (log_p.exp() * (log_p - torch.tensor(1 / 3).log())).sum()
    result = loss.compute(inputs_for(parameters, batch), loss.config(action_smoothness_coeff=0.5))
    assert result.loss.item() == pytest.approx(0.5 * jump.item() / 2)  # two pairs, one of them steady


def test_action_smoothness_leaves_out_pairs_with_different_action_masks():
    loss = load("action_smoothness")
    parameters = torch.zeros(3, 1, 3)
    parameters[1, 0, 0] = -1e9
    parameters.requires_grad_()
    result = loss.compute(inputs_for(parameters, acted_out(TinyModel(), 3, 1, ends=False)), loss.config())
    result.loss.backward()
    assert result.loss.item() < 1.0
    assert parameters.grad is not None and parameters.grad.isfinite().all()


def test_action_smoothness_needs_two_rows():
    loss = load("action_smoothness")
    pair = torch.eye(3)[:2].unsqueeze(1).requires_grad_()
    assert loss.compute(inputs_for(pair, acted_out(TinyModel(), 2, 1, ends=False)), loss.config()).loss > 0.0
    with pytest.raises(ValueError, match="set --recurrence=-1"):
        loss.compute(inputs_for(torch.zeros(1, 2, 3), acted_out(TinyModel(), 1, 2, ends=False)), loss.config())


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No options."""


def zero(inputs, options):
    return AuxiliaryResult(inputs.values.sum() * 0.0, {})


def test_a_loss_from_elsewhere_is_found_by_module_or_by_registered_name(monkeypatch):
    own = AuxiliaryLoss(Nothing, zero)
    module = types.ModuleType("my_losses.zero")
    module.__dict__["LOSS"] = own
    monkeypatch.setitem(sys.modules, "my_losses", types.ModuleType("my_losses"))
    monkeypatch.setitem(sys.modules, "my_losses.zero", module)
    assert load("my_losses.zero") is own
    register("registered_zero", own)
    assert load("registered_zero") is own
    with pytest.raises(ConfigError, match="not yet taken"):
        register("registered_zero", own)
    del sys.modules["appo.algorithms.learning.auxiliary.registered_zero"]


@pytest.mark.parametrize("name", ["action_smoothness", "not a word"])
def test_a_taken_or_impossible_name_cannot_be_registered(name):
    with pytest.raises(ConfigError, match="cannot be registered"):
        register(name, AuxiliaryLoss(Nothing, zero))


@pytest.mark.parametrize("name", ["curiousity", "no_such_package.loss"])
def test_an_unknown_name_is_refused_with_those_that_exist(name):
    with pytest.raises(ConfigError, match="action_smoothness"):
        load(name)


def test_a_module_without_a_loss_is_refused():
    with pytest.raises(ConfigError, match="must define LOSS"):
        load("importlib.util")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_that_is_installed", "cannot be imported: ModuleNotFoundError: No module named 'nothing_that"),
        ("LOSS = = 3", "cannot be imported: SyntaxError: invalid syntax"),
        ("LOSS = 3", r"must define LOSS = AuxiliaryLoss\("),
        (
            "from appo.algorithms.learning.auxiliary_loss import *; LOSS = AuxiliaryLoss(int, print)",
            "a dataclass of options",
        ),
        ("from appo.algorithms.learning.auxiliary_loss import *; LOSS = AuxiliaryLoss(int, None)", "must define LOSS"),
    ],
)
def test_a_module_that_cannot_be_used_is_refused_in_words(tmp_path, monkeypatch, text, told):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_losses", "my_losses.broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "my_losses").mkdir()
    (tmp_path / "my_losses" / "broken.py").write_text(text)
    with pytest.raises(ConfigError, match=r"auxiliary_loss='my_losses.broken'.* " + told):
        load("my_losses.broken")
