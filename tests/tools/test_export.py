"""The command `export`: files, cards whose programs run as printed, the whole way from training, and refusals."""

import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch

from appo.algorithms.evaluation import load_policy
from appo.tools.export import main
from tests.architecture.source_tree import ROOT
from tests.evaluation.conftest import experiment  # noqa: F401 - a fixture

EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def printed_by(page, folder):
    """What the program of a page prints, in another process."""
    (code,) = EXAMPLE.findall(page)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "appo" not in code
    return code, done.stdout.splitlines()


def test_the_program_of_the_page_is_that_of_the_card_and_runs(experiment, tmp_path):  # noqa: F811
    _, folder = experiment("CartPole-v1", "--use_rnn=True", weights=4)
    assert main([str(folder), str(tmp_path / "policy.onnx")]) == 0
    card = (tmp_path / "policy.onnx.md").read_text()
    code, printed = printed_by(card, tmp_path)
    assert EXAMPLE.findall((ROOT / "docs" / "export.md").read_text()) == [code]
    assert 20 <= code.count("\n") <= 30
    policy = load_policy(folder, deterministic=True)
    assert printed == [str(policy.act(np.zeros(4, np.float32))) for _ in range(3)]
    assert "| `recurrent_state` | [N, 8] | float32 |" in card and "| `hidden_size` | 8 |" in card
    assert f"`appo-tools export {folder} {tmp_path / 'policy.onnx'}`" in card and "`CartPole-v1`" in card


@pytest.mark.parametrize("env", ["synthetic_masked", "Pendulum-v1"])
def test_cards_of_masks_and_of_torch_run(experiment, tmp_path, env):  # noqa: F811
    _, folder = experiment(env, "--use_rnn=False", weights=2)
    assert main([str(folder), str(tmp_path / "policy.pt2")]) == 0
    _, printed = printed_by((tmp_path / "policy.pt2.md").read_text(), tmp_path)
    assert len(printed) == 3 and len(set(printed)) == 1


def test_a_trained_policy_is_exported_to_both_formats_and_plays_as_it_did(tmp_path):
    words = "--env=CartPole-v1 --experiment=run --device=cpu --serial_mode=True --seed=1 --train_for_env_steps=3000"
    command = [sys.executable, str(ROOT / "train_appo.py"), *words.split(), f"--train_dir={tmp_path}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    for suffix in (".onnx", ".pt2"):
        assert main([str(tmp_path / "run"), str(tmp_path / f"policy{suffix}")]) == 0
        assert "mean" in (tmp_path / f"policy{suffix}.md").read_text()
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    program = torch.export.load(tmp_path / "policy.pt2").module()
    policy = load_policy(tmp_path / "run", deterministic=True)
    with gymnasium.make("CartPole-v1") as env:
        observation, _ = env.reset(seed=3)
        for _ in range(30):
            action = policy.act(observation)
            assert session.run(["action"], {"obs": observation[None]})[0].tolist() == [action]
            assert program({"obs": torch.from_numpy(observation[None])})["action"].tolist() == [action]
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                observation, _ = env.reset()


def refused(capsys, *words):
    assert main([str(word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("export: ")
    return line


def test_what_cannot_be_exported_is_refused_in_one_line_and_nothing_is_written(experiment, tmp_path, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1", "--use_rnn=False")
    target = tmp_path / "out"
    target.mkdir()
    assert "policy.onnx or as policy.pt2" in refused(capsys, folder, target / "policy.h5")
    assert "there is no folder" in refused(capsys, folder, target / "nowhere" / "policy.pt2")
    assert "is no experiment" in refused(capsys, tmp_path / "nothing", target / "policy.pt2")
    assert f"{folder} has no policy 3; it has only 0" in refused(
        capsys, folder, target / "policy.pt2", "--policy_index=3"
    )
    for path in folder.glob("checkpoint_p0/*"):
        path.unlink()
    assert "there is no checkpoint in" in refused(capsys, folder, target / "policy.pt2")
    assert not list(target.iterdir())


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    line = refused(capsys, tmp_path, tmp_path / "policy.onnx")
    assert "needs onnxscript, not installed here: pip install onnx onnxscript onnxruntime" in line
    assert "policy.pt2 needs none of them" in line


def test_of_a_damaged_experiment_its_path_is_told_and_no_advice_to_train_anew(experiment, tmp_path, capsys):  # noqa: F811
    _, folder = experiment("CartPole-v1")
    words = [str(folder), str(tmp_path / "policy.onnx")]
    for file in (folder / "checkpoint_p0").iterdir():
        file.write_bytes(b"")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "Nothing was changed; put back a copy\n" in told and told.count("\n") == 1
    (folder / "config.json").write_text("{")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert f"export: {folder / 'config.json'} is not JSON" in told and told.endswith("; repair it\n")
