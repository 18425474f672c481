"""Exported policies: files that answer as the policy does, for every encoder, memory and action space; refusals."""

import itertools
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from appo.algorithms.evaluation import export
from appo.algorithms.evaluation.export import Exported, ExportError, export_policy
from appo.algorithms.evaluation.exported_policy import ExportedPolicy
from appo.algorithms.evaluation.loading import RestoredPolicy
from appo.algorithms.evaluation.model_card import example
from appo.algorithms.models.config import ModelConfig
from appo.envs.action_layout import ActionLayout
from appo.envs.observation_layout import ObservationLayout
from appo.envs.specs import complete_spec
from appo.utils.options import ConfigError
from tests.models.test_actor_critic import trained_model

IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
SMALL_IMAGE = spaces.Box(0, 255, (2, 13, 14, 3), np.uint8)
NUMBERS = spaces.Box(-np.inf, np.inf, (5,))
NESTED = spaces.Dict(
    a=spaces.Discrete(5, start=1),
    b=spaces.MultiDiscrete([3, 3]),
    c=spaces.Dict(d=spaces.Box(-1, 1, (2, 2), np.float64), image=SMALL_IMAGE),
    e=spaces.MultiBinary(3),
)
OBSERVATIONS: dict[str, Any] = {
    "mlp": NUMBERS,
    "conv_simple": IMAGE,
    "conv_medium": IMAGE,
    "conv_nature": spaces.Box(0, 255, (36, 40), np.uint8),
    "conv_small": SMALL_IMAGE,
    "resnet_impala": spaces.Box(0, 255, (3, 9, 8), np.uint8),
    "minigrid_tiny": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "auto": NESTED,
}
ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([3, 2, 4]),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, np.inf], np.float32)),
    "tenths": spaces.Box(
        np.array([-3.0, -1.7, -0.1], np.float32), np.array([0.4, 2.9, 2.6], np.float32)
    ),  # half of their sum and half of their difference are rounded
    "mixed": spaces.Tuple(
        [
            spaces.Box(-3.0, 5.0, (2,)),
            spaces.Discrete(3),
            spaces.Dict(a=spaces.MultiBinary(2), b=spaces.Box(-1.0, 1.0, (1,), np.float64)),
        ]
    ),
}
CORES: dict[str, dict[str, Any]] = {
    "none": {"use_rnn": False},
    "gru": {"rnn_type": "gru"},
    "lstm": {"rnn_type": "lstm", "rnn_num_layers": 2},
}
MASKED = "masked"  # by the infos
FORMATS = (".onnx", ".pt2")
QUICK = [
    ("mlp", "none", "discrete", "", ".onnx"),
    ("mlp", "gru", "mixed", MASKED, ".onnx"),
    ("conv_simple", "none", "multi", MASKED, ".pt2"),
    ("conv_nature", "none", "discrete", MASKED, ".pt2"),
    ("mlp", "lstm", "box", "", ".pt2"),
    ("minigrid_tiny", "none", "box", "", ".pt2"),
    ("auto", "none", "mixed", "", ".pt2"),
    ("mlp", "gru", "multi", "", ".pt2"),
]
ALL = [
    case
    for case in itertools.product(OBSERVATIONS, CORES, ACTIONS, ("", MASKED), FORMATS)
    if not (case[2] == "box" and case[3]) and case not in QUICK
]


def restored_policy(encoder, core, actions, masked="", observations=None, **options):
    """A policy that never was on disk. Masked ones have two networks, and spectral norms in them."""
    both = (observations or OBSERVATIONS[encoder], ACTIONS[actions])
    spec = complete_spec(gymnasium.Env(), ObservationLayout(both[0]), ActionLayout(both[1]), [], bool(masked))
    config = ModelConfig(
        encoder=encoder,
        hidden_size=8,
        mlp_layers="8",
        obs_scale=255.0,
        normalize_input=True,
        normalize_returns=True,
        actor_critic_share_weights=not masked,
        critic_sees_time=bool(masked),
        use_spectral_norm=bool(masked),
        **CORES[core],
        **options,
    )
    model = trained_model(config, spec)
    for normalizer in model.preprocessor.normalizers:
        if not isinstance(normalizer, nn.Identity):
            shape = normalizer.mean.shape
            normalizer.update(3.0 + 2.0 * torch.randn(50, *shape), torch.ones(50))
    if model.returns_normalizer is not None:
        model.returns_normalizer.update(10.0 * torch.randn(50), torch.ones(50))
    return RestoredPolicy(model, both, spec, None, None)  # type: ignore[arg-type]  # nothing but a card reads them


def check_case(tmp_path, encoder, core, actions, masked, suffix):
    restored = restored_policy(encoder, core, actions, masked)
    exported = export_policy(restored, tmp_path / f"policy{suffix}", lambda written: "a card")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"policy{suffix}", f"policy{suffix}.md"]
    assert exported.largest_difference <= 1e-5
    # What the export itself has compared is not all alike: rows differ, and so do the two batches.
    answer = export._opened(exported.path)
    inputs = exported.policy.random_inputs(9, restored.spaces, seed=99)
    outputs = answer(inputs)
    expected = export.expected_outputs(restored, exported.policy, inputs, outputs["distribution"])
    assert set(outputs) == set(expected)
    for name, value in outputs.items():
        assert value.dtype == expected[name].dtype
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
    assert outputs["distribution"].std(0).min() > 0.0
    assert ("value" in outputs) == (not masked) and ("next_recurrent_state" in outputs) == (core != "none")


@pytest.mark.parametrize(("encoder", "core", "actions", "masked", "suffix"), QUICK)
def test_the_file_answers_as_the_policy_does(tmp_path, encoder, core, actions, masked, suffix):
    check_case(tmp_path, encoder, core, actions, masked, suffix)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "core", "actions", "masked", "suffix"), ALL)
def test_the_file_of_any_policy_answers_as_it_does(tmp_path, encoder, core, actions, masked, suffix):
    check_case(tmp_path, encoder, core, actions, masked, suffix)


def test_rounding_takes_no_action_out_of_its_bounds():
    restored = restored_policy("mlp", "none", "tenths")
    policy = ExportedPolicy(restored.model, restored.spaces, restored.spec)
    (part,) = policy.action_parts
    for value in (-9.0, 9.0):
        action = part(torch.full((1, 3), value))[0].numpy()
        assert restored.spaces[1].contains(action), action.tolist()


def test_actions_of_the_exported_function_are_those_of_the_space():
    restored = restored_policy("mlp", "none", "mixed")
    policy = ExportedPolicy(restored.model, restored.spaces, restored.spec)
    inputs = policy.random_inputs(20, restored.spaces)
    outputs = policy({name: torch.from_numpy(array) for name, array in inputs.items()})
    names = ["action/0", "action/1", "action/2/a", "action/2/b"]
    assert [port.name for port in policy.outputs if port.name.startswith("action")] == names
    for row in range(20):
        box, choice, binary, number = (outputs[name][row].numpy() for name in names)
        assert restored.spaces[1].contains((box, np.int64(choice), {"a": binary, "b": number}))
    assert len({tuple(box) for box in outputs["action/0"].tolist()}) == 20


@pytest.mark.parametrize(
    "case", [("auto", "gru", "mixed", MASKED), ("auto", "none", "multi", ""), ("mlp", "lstm", "box", "")]
)
def test_the_program_of_a_card_acts_for_any_spaces(case, capsys):
    restored = restored_policy(*case)
    policy = ExportedPolicy(restored.model, restored.spaces, restored.spec)
    code = example(Exported(Path("policy.pt2"), policy, 0.0))
    found: dict[str, object] = {"opened": policy}
    exec(code.replace('torch.export.load("policy.pt2").module()', "opened"), found)
    assert restored.spaces[1].contains(found["action"])
    assert len(capsys.readouterr().out.splitlines()) >= 3


def test_a_file_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch):
    opened = export._opened

    def wrong(path):
        answer = opened(path)
        return lambda inputs: {
            name: value + (2e-5 if name == "value" else 0.0) for name, value in answer(inputs).items()
        }

    monkeypatch.setattr(export, "_opened", wrong)
    with pytest.raises(ExportError, match=r"another .* than the policy.*not kept"):
        export_policy(restored_policy("mlp", "none", "discrete"), tmp_path / "policy.pt2", lambda written: "")
    assert not list(tmp_path.iterdir())


class Undecided(nn.Module):
    """An encoder whose way depends on the numbers it reads, which no export can follow."""

    kind: ClassVar[Literal["image", "vector"]] = "vector"
    minimum_size: ClassVar[int] = 1

    def __init__(self, leaf, config):
        super().__init__()
        self.output_size = leaf.shape[0]

    def forward(self, x):
        return x + 1.0 if float(x.sum()) > 0.0 else x


def test_a_network_that_cannot_be_exported_is_refused_in_one_line(tmp_path):
    name = f"{Undecided.__module__}:Undecided"
    restored = restored_policy(name, "none", "discrete", observations=NUMBERS)
    with pytest.raises(
        ExportError, match=r"cannot be exported to \.pt2: .*operations that torch\.export knows"
    ) as error:
        export_policy(restored, tmp_path / "policy.pt2", lambda written: "")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_an_observation_that_takes_the_name_of_the_memory_is_refused():
    observations = spaces.Dict(recurrent_state=NUMBERS)
    restored = restored_policy("mlp", "gru", "discrete", observations=observations)
    with pytest.raises(ConfigError, match="'recurrent_state' has the name of the memory's input; rename"):
        ExportedPolicy(restored.model, restored.spaces, restored.spec)
