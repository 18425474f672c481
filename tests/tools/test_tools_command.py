"""`appo-tools`: every command around runs under one name."""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import appo.tools
from appo.algorithms.reporting.timing import TimingNode
from appo.tools.__main__ import COMMANDS, main
from appo.utils.cli import VERSION
from tests.architecture.source_tree import ROOT
from tests.tools.experiment_files import write_experiment, write_status


def write_whole(folder):
    """An experiment with every file that a command reads."""
    write_experiment(folder.parent, folder.name, [(500, 9.0)], pbt_target_objective="reward")
    write_status(folder, frames=500, returns=(9.0,))
    status = json.loads((folder / "status.json").read_text())
    told = {"seconds_left": 9.0, "budget_spent": 0.5, "faults": {}, "blocks": {}}
    numbers = {"train_steps": 1, "episodes": 4, "avg_true_reward": 9.0, "policy_lag": 1.0}
    status |= told | {"policies": [each | numbers for each in status["policies"]]}
    (folder / "status.json").write_text(json.dumps(status))
    tree = TimingNode("learner", 1, 1.5, False, (TimingNode("train", 4, 1.5, False),))
    (folder / "timing.json").write_text(json.dumps({"processes": [tree.as_json()]}))
    row = {"policy": 0, "env_frames": 0, "all_env_frames": [0], "kind": "begin", "source": 0, "values": {"gamma": 0.9}}
    (folder / "pbt_history.jsonl").write_text(json.dumps(row) + "\n")
    return folder


def test_every_module_with_a_main_is_a_command():
    modules = [module.name for module in pkgutil.iter_modules(appo.tools.__path__) if module.name != "__main__"]
    found = {name for name in modules if hasattr(importlib.import_module(f"appo.tools.{name}"), "main")}
    assert set(COMMANDS) == found


def test_words_go_to_the_command_and_others_are_refused(tmp_path, capsys):
    assert main(["timing", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["tining"]) == 2
    error = capsys.readouterr().err
    assert "there is no command 'tining'; nearest: timing" in error and error.count("\n") == 1
    assert main([]) == 0 and main(["--help"]) == 0
    assert "population" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["timing", "NAME"], "learner"),
        (["view", "NAME", "--once"], "first ─"),
        (["population", "NAME"], "policy 0 (best)"),
        (["plot", "NAME", "x.csv"], "x.csv"),
        (["runs", "NAME"], "CartPole-v1"),
    ],
)
@pytest.mark.parametrize("name", ["first", "train_dir/first", "group/second"])
def test_an_experiment_is_named_by_its_folder_or_by_its_name_below_train_dir(
    tmp_path, monkeypatch, capsys, words, shown, name
):
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "train_dir" / name.removeprefix("train_dir/"))
    assert main([word.replace("NAME", name) for word in words]) == 0
    assert shown.replace("first", name.rpartition("/")[2]) in capsys.readouterr().out
    (tmp_path / name).mkdir(parents=True, exist_ok=True)  # what a path names comes first
    is_refused = name != "train_dir/first"
    assert main([word.replace("NAME", name) for word in words]) == (2 if is_refused else 0)


@pytest.mark.parametrize(
    "words", [["timing", "frst"], ["view", "frst"], ["population", "frst"], ["plot", "frst", "x.csv"]]
)
def test_for_a_name_that_no_experiment_has_the_nearest_one_is_told(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "train_dir" / "first")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{words[0]}: frst") and "; nearest: first" in error and error.count("\n") == 1


def test_for_a_name_unlike_all_others_some_experiments_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "train_dir" / "first")
    (tmp_path / "train_dir" / "notes").mkdir()
    assert main(["view", "xyz"]) == 2
    assert "; there are first; name the folder" in capsys.readouterr().err


def test_folders_that_others_keep_to_themselves_are_no_experiments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "train_dir" / "first")
    (tmp_path / "train_dir" / "private").mkdir()
    usual = Path.is_file

    def is_file(path):
        if path.parent.name == "private":  # what a superuser, as in a container, is never told
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert main(["timing", "xyz"]) == 2
    assert "; there are first; name the folder" in capsys.readouterr().err
    assert main(["runs", "train_dir"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_version_and_completion_are_answered_in_one_line(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"appo {VERSION}\n"
    assert main(["--completion=bash"]) == 2
    error = capsys.readouterr().err
    assert "`appo-train --completion=bash`" in error and error.count("\n") == 1


@pytest.mark.parametrize("name", ["export", "hub", "plot", "population", "timing", "view", "wandb"])
def test_a_command_without_its_words_is_refused_in_one_line(capsys, name):
    assert main([name]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"{name}: ") and told.err.count("\n") == 1 and told.out == ""


def test_an_output_on_a_full_disk_is_told_in_one_line_and_by_the_exit_code(tmp_path):
    folder = write_whole(tmp_path / "first")
    command = [sys.executable, "-m", "appo.tools.runs", str(folder), "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    assert (done.stderr, done.returncode) == ("the output is not whole: No space left on device\n", 1)
    closed = subprocess.run(["bash", "-c", 'exec "$@" >&-', "bash", *command], cwd=ROOT, timeout=60)
    assert closed.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["appo.tools", "--help"],
        ["appo.tools", "runs", "HERE"],
        ["appo.tools.runs", "HERE", "--json"],
        ["appo.tools", "timing", "HERE"],
        ["appo.tools.timing", "HERE"],
        ["appo.tools", "view", "HERE"],
        ["appo.tools.view", "HERE"],  # of a run that goes on: it has nobody to tell of it
        ["appo.tools.population", "HERE"],
        ["appo.tools.plot", "--help"],
        ["appo.tools.wandb", "--help"],
        ["appo.tools.export", "--help"],
        ["appo.tools.hub", "--help"],
    ],
)
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word(tmp_path, words):
    folder = write_whole(tmp_path / "first")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *(word.replace("HERE", str(folder)) for word in words)]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    finally:
        os.close(writer)
    assert (done.stderr, done.returncode) == ("", 0)
