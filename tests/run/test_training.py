"""`train(...)`: a run from Python, as from the command line."""

from typing import Any

import pytest

from appo.algorithms.evaluation import load_policy
from appo.algorithms.run.training import TrainingFailed, train
from appo.utils.options import ConfigError


def make_env():
    """For a name that other processes import."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


def test_a_run_is_trained_resumed_and_loaded(tmp_path, capsys):
    options: dict[str, Any] = {"num_workers": 1, "num_envs_per_worker": 4, "device": "cpu", "use_rnn": False}
    first = train("CartPole-v1", "x", train_dir=tmp_path, train_for_env_steps=4000, **options)
    assert first.exit_code == 0 and first.folder == tmp_path / "x"
    assert first.summary["env_frames"] >= 4000 and "fps" in capsys.readouterr().out
    again = train("CartPole-v1", "x", train_dir=tmp_path, train_for_env_steps=6000, quiet=True, **options)
    assert again.summary["env_frames"] >= 6000 and not capsys.readouterr().out
    policy = load_policy(again.folder)
    assert policy.act(policy.observation_space.sample()) in (0, 1)


@pytest.mark.parametrize(
    ("env", "options", "why"),
    [
        ("CartPole-v1", {"learning_rat": 1.0}, "learning_rat"),
        ("CartPole-v1", {"num_envs_per_worker": 3}, "cannot be divided"),
        (lambda: None, {}, "cannot be imported"),
    ],
)
def test_what_the_command_line_refuses_is_refused(tmp_path, env, options, why):
    with pytest.raises(ConfigError, match=why):
        train(env, "x", train_dir=tmp_path, quiet=True, **options)
    assert not (tmp_path / "x").exists()


def test_a_run_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("def make_env():\n    raise ZeroDivisionError('as told')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TrainingFailed, ConfigError), match="as told"):
        train("broken_module:make_env", "x", train_dir=tmp_path, quiet=True)
