"""What is built before a run starts: every network that can be trained passes, what cannot is refused in one line."""

import dataclasses
import sys

import pytest
import torch
from torch import nn

from appo.algorithms import checkpoints
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.encoder_registry import register_encoder
from appo.algorithms.workers.jobs import ModelJob
from appo.algorithms.workers.model_check import check_model
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from appo.utils.options import ConfigError
from tests.workers.core_cases import run_state

VECTOR = ObservationLeaf("obs", (6,), "float32", "vector")
LEAVES = (
    VECTOR,
    ObservationLeaf("image", (3, 40, 44), "uint8", "image"),
    ObservationLeaf("kinds", (2,), "int64", "categorical", 7),
    ObservationLeaf("action_mask", (5,), "uint8", "mask"),
)
ACTIONS = (ActionLeaf("discrete", 5), ActionLeaf("continuous", 2, (-1.0, -1.0), (1.0, 1.0)))
SMALL = ModelConfig(hidden_size=16, mlp_layers="16", precision="fp32")

pytestmark = pytest.mark.usefixtures("one_thread")


def job(leaves=LEAVES, model=SMALL, **changes):
    made = ModelJob(EnvSpec(leaves, ACTIONS, 1), model, LearningConfig(), None, [], "latest", "reward", 1, 1, 0, 4000.0)
    return dataclasses.replace(made, **changes)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"use_rnn": False},
        {"rnn_type": "lstm", "rnn_num_layers": 2, "actor_critic_share_weights": False},
        {"normalize_input": True, "normalize_returns": True, "use_spectral_norm": True},
        {"encoder": "resnet_impala", "nonlinearity": "tanh", "adaptive_stddev": False},
        {"policy_initialization": "xavier_uniform", "obs_subtract_mean": 3.0, "encoder_extra_fc_layers": 0},
    ],
)
def test_what_can_be_trained_passes_and_leaves_no_trace(model):
    torch.manual_seed(5)
    check_model(job(model=dataclasses.replace(SMALL, **model)))
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def test_weights_that_do_not_fit_into_memory_are_refused_before_there_are_any():
    huge = dataclasses.replace(SMALL, hidden_size=32_768, rnn_num_layers=32)  # 825 GB of weights
    with pytest.raises(ConfigError, match=r"needs about \d+ MB of networks, 17 times \d+ million .* 4000 MB are avail"):
        check_model(job(model=huge))
    with pytest.raises(ConfigError, match="MB of networks"):
        check_model(job(available_mb=0.5))
    check_model(job(available_mb=10.0))


class Mine(nn.Module):
    """An encoder of a user's own, sound until a test changes it."""

    kind, minimum_size = "vector", 1

    def __init__(self, leaf, config):
        super().__init__()
        self.output_size = 6
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.scale


def raises(*_):
    raise ArithmeticError("seven\nis no size")


def looks_at_numbers(self, leaf, config):
    Mine.__init__(self, leaf, config)
    self.scale.data.mul_(self.scale.sum().item())  # impossible for a tensor without numbers


@pytest.fixture
def mine():
    """Register a changed `Mine` as the encoder of that name."""
    yield lambda change: register_encoder("mine", type("Changed", (Mine,), change))
    del sys.modules["appo.algorithms.models.encoders.mine"]


@pytest.mark.parametrize(
    "change, told",
    [
        ({"kind": "sound"}, "needs a class attribute kind, one of image, vector, and"),
        ({"minimum_size": None}, "needs a class attribute kind"),
        ({"__init__": nn.Module.__init__}, "cannot be built: TypeError: "),
        ({"__init__": lambda self, leaf, config: nn.Module.__init__(self)}, "Changed' needs an attribute output_size"),
        (
            {"__init__": raises},
            r"cannot be built: ArithmeticError: seven is no size \(tests/workers/test_model_check.py, line \d+\)$",
        ),
        ({"forward": raises}, "cannot be applied to observations: ArithmeticError: seven is no size"),
        ({"forward": lambda self, x: x[:, :5]}, r"Changed' gave \(4, 5\) for 4 rows; expected \(4, 6\)"),
        ({"forward": lambda self, x: x[:2] * self.scale}, r"Changed' gave \(2, 6\) for 4 rows; expected \(4, 6\)"),
        ({"forward": lambda self, x: (x, x)}, r"Changed' gave \(\) for 4 rows"),
    ],
)
def test_an_encoder_of_a_user_that_breaks_its_contract_is_refused_in_one_line(change, told, mine):
    mine(change)
    with pytest.raises(ConfigError, match=told) as caught:
        check_model(job((VECTOR,), dataclasses.replace(SMALL, encoder="mine")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{}, {"__init__": looks_at_numbers}])
def test_a_sound_encoder_of_a_user_passes(change, mine):
    mine(change)
    check_model(job((VECTOR,), dataclasses.replace(SMALL, encoder="mine")))


def test_the_checkpoints_of_every_policy_have_to_fit(tmp_path):
    model = build_actor_critic(SMALL, job().spec)
    payload = {"model": model.state_dict(), "learner": {}, "run_state": run_state(1)}
    for policy in (0, 1):
        checkpoints.save(tmp_path / str(policy), "latest", 1, 1, payload)
    folders = [tmp_path / name for name in ("0", "1", "of a policy that is new")]
    check_model(job(checkpoint_dirs=folders))
    wider = dataclasses.replace(SMALL, mlp_layers="24")
    with pytest.raises(ConfigError, match=r"is of another network: .* is .* there and .* with the options in force"):
        check_model(job(checkpoint_dirs=folders, model=wider))
    payload["model"] = build_actor_critic(wider, job().spec).state_dict()
    checkpoints.save(tmp_path / "1", "latest", 2, 2, payload)
    with pytest.raises(ConfigError, match=r"1/checkpoint_.* is of another network"):
        check_model(job(checkpoint_dirs=folders))
    for path in (tmp_path / "1").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no checkpoint in .* can be used"):
        check_model(job(checkpoint_dirs=folders))
