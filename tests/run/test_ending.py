"""What a run says at its end, and whether its commands are ones that go on."""

import sys
from pathlib import Path

import pytest

from appo.algorithms.checkpoints import save
from appo.algorithms.config import resolve
from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.snapshot import PolicySnapshot, RunSnapshot
from appo.algorithms.run import ending
from appo.algorithms.train_config import to_json


@pytest.fixture(autouse=True)
def _active_environment(monkeypatch):
    """`python` is the interpreter that runs this."""
    monkeypatch.setattr(ending.shutil, "which", lambda name: sys.executable)


def snapshot(*rewards, episodes=70):
    policies = tuple(PolicySnapshot(50_000, 1, episodes, reward, None, None) for reward in rewards)
    return RunSnapshot("ended", 0.0, 50_000 * len(rewards), 25.0, {10: 1.0}, None, 0.5, {}, {}, policies)


def config_of(tmp_path, *words):
    return resolve(["--env=CartPole-v1", "--experiment=x", f"--train_dir={tmp_path}", *words]).config


def told(tmp_path, last, *words, reason="stopped by SIGINT", program="train_appo.py", unsaved=()):
    config = config_of(tmp_path, *words)
    return ending.lines(config, config.run.folder, last, reason, program, unsaved)


@pytest.fixture
def _has_a_checkpoint(tmp_path):
    resolved = resolve(["--env=CartPole-v1", "--experiment=x", f"--train_dir={tmp_path}"])
    save(resolved.config.run.checkpoint_dir(0), "latest", 3, 40_000, {})
    (resolved.config.run.folder / "config.json").write_text(to_json(resolved.config, resolved.typed))


def test_returns_frames_and_time_are_told_for_each_policy(tmp_path):
    config = config_of(tmp_path, "--num_policies=2")
    save(config.run.checkpoint_dir(1), "best", 3, 40_000, {}, metric=480.0, metric_name="reward")
    lines = ending.lines(config, config.run.folder, snapshot(None, 471.25), "stopped by SIGINT", "train_appo.py")
    assert lines[0] == "policy 0: no episode has ended yet, so there is no return"
    assert lines[1] == (
        "policy 1: mean return of the last 70 episodes 471.2; best checkpoint 480 (reward) after 40,000 frames"
    )
    assert lines[2] == "100,000 env frames in 0:00:25, 4,000 per second"


def test_of_several_policies_the_best_one_is_watched(tmp_path):
    config = config_of(tmp_path, "--num_policies=3")
    for policy in (0, 2):
        save(config.run.checkpoint_dir(policy), "latest", 3, 40_000, {})
    lines = ending.lines(config, config.run.folder, snapshot(32.0, 500.0, 213.0), "stopped by SIGINT", "train_appo.py")
    assert lines[-2].endswith(f"enjoy_appo.py --experiment=x --train_dir={tmp_path} --policy_index=2")
    lines = ending.lines(config, config.run.folder, snapshot(None, 500.0, None), "stopped by SIGINT", "train_appo.py")
    assert lines[-2].endswith("--policy_index=0")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("stopped by SIGINT", ""),
        ("reached train_for_env_steps=150000", " --train_for_env_steps=300000"),
        ("reached train_for_seconds=30", " --train_for_seconds=60"),
        ("reached stop_when=reward>=5: reward is 6", " --stop_when="),
        ("reached stop_after_no_progress=1000: the best", " --stop_after_no_progress=0"),
        ("callback: seen enough", " --callback="),
    ],
)
def test_the_command_to_train_on_sets_what_has_ended_the_run(tmp_path, reason, words):
    limits = ["--train_for_env_steps=150000", "--train_for_seconds=30", "--stop_when=reward>=5"]
    lines = told(tmp_path, snapshot(1.0), *limits, reason=reason)
    start = f"train on:  python train_appo.py --env=CartPole-v1 --experiment=x --train_dir={tmp_path}"
    assert start + words in lines
    again = resolve(next(line for line in lines if line.startswith("train on:")).split()[4:])
    assert again.config.run.experiment == "x"


def test_what_limited_the_speed_is_told_where_it_is_known(tmp_path):
    last = snapshot(1.0)
    assert not [line for line in told(tmp_path, last) if line.startswith("bottleneck")]
    found = Finding("learner", "the learner works 99% of its time", {})
    assert told(tmp_path, last._replace(bottleneck=found))[2] == "bottleneck: the learner works 99% of its time"


@pytest.mark.usefixtures("_has_a_checkpoint")
def test_an_installed_program_is_called_by_its_name(tmp_path):
    lines = told(tmp_path, snapshot(1.0), program="/usr/bin/appo-train")
    assert any(line.startswith("watch:     appo-enjoy --experiment=x") for line in lines)
    assert lines[-1] == f"curves:    tensorboard --logdir {tmp_path}/x"


@pytest.mark.usefixtures("_has_a_checkpoint")
def test_a_run_that_python_code_began_in_a_package_goes_on_with_its_program(tmp_path, monkeypatch):
    package = tmp_path / "site" / "appo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    beside, module = str(Path(sys.executable).with_name("appo-train")), "python -m appo.train_appo"
    for found, start in [(beside, "appo-train"), ("/opt/other/bin/appo-train", module), (None, module)]:
        commands = {"python": sys.executable, "appo-train": found}
        monkeypatch.setattr(ending.shutil, "which", commands.get)
        lines = told(tmp_path, snapshot(1.0), program=str(package / "train_appo.py"))
        assert any(line.startswith(f"train on:  {start} --") for line in lines)


@pytest.mark.usefixtures("_has_a_checkpoint")
def test_the_interpreter_of_an_environment_that_is_not_active_is_called_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(ending.shutil, "which", lambda name: "/usr/bin/python")
    for folder, path in [("/", Path(sys.executable).relative_to("/")), (tmp_path, Path(sys.executable))]:
        monkeypatch.chdir(folder)
        assert any(line.startswith(f"watch:     {path} enjoy_appo.py ") for line in told(tmp_path, snapshot(1.0)))


def test_what_no_file_keeps_is_repeated_and_nothing_is_to_be_watched_without_a_checkpoint(tmp_path):
    typed = ["--env=CartPole-v1", "--experiment=x", "--train_for_env_steps=9000"]
    lines = told(tmp_path, snapshot(None), unsaved=typed)
    assert f"train on:  python train_appo.py {' '.join(typed)}" in lines
    assert [line.partition(":")[0] for line in lines[-2:]] == ["train on", "curves"]


def test_a_return_of_earlier_starts_says_so(tmp_path):
    last = snapshot(20.0)
    (policy,) = last.policies
    told_once = told(tmp_path, last._replace(policies=(policy._replace(has_new_episodes=False),)))[0]
    assert told_once == "mean return of the last 70 episodes 20 (of earlier starts: none has ended since)"
    assert told(tmp_path, last)[0] == "mean return of the last 70 episodes 20"
