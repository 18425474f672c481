"""What cannot run is refused in one line with exit code 2: nothing is written, nothing stays, and the corrected command
runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import ROOT, SMALL

# What a user may bring: encoders and losses that are not what they should be.
MINE = """
import sys
from torch import nn

class NoAttributes(nn.Module):
    def __init__(self, leaf, config):
        super().__init__()

class NoSize(NoAttributes):
    kind, minimum_size = "vector", 1

class Raises(NoSize):
    def __init__(self, leaf, config):
        raise ArithmeticError("seven is no size")

class Ends(NoSize):
    def __init__(self, leaf, config):
        sys.exit("I would rather not")
"""


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's own modules, in which the run is started."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "own").mkdir()
    for name, text in [("__init__", ""), ("more", "import nothing_that_is_installed"), ("no_loss", "LOSS = 3")]:
        (tmp_path / "own" / f"{name}.py").write_text(text)
    return tmp_path


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def refusal_of(run, folder):
    """Its one line, which is all that it leaves."""
    before = content(folder)
    assert run.end() == 2, run.output
    lines = run.output.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("train_appo.py: error: "), run.output
    assert content(folder) == before
    return lines[0]


@pytest.mark.parametrize(
    "option, message",
    [
        (
            "--encoder=conv_simpel",
            "encoder='conv_simpel' does not exist; did you mean conv_simple? There are auto, conv_medium, conv_nature",
        ),
        ("--encoder=conv_simple", "encoder='conv_simple' reads observations of kind image"),
        ("--encoder=mine:NoAttributes", "encoder='mine:NoAttributes' needs a class attribute kind"),
        ("--encoder=mine:Raises", "ArithmeticError: seven is no size (mine.py, line 14)"),
        ("--encoder=mine:Ends", "SystemExit: I would rather not"),
        ("--auxiliary_loss=own.more", "auxiliary_loss='own.more' cannot be imported: ModuleNotFoundError: No module"),
        ("--auxiliary_loss=own.no_loss", "own.no_loss must define LOSS = AuxiliaryLoss("),
        ("--hidden_size=32768 --mlp_layers=32768,32768,32768", "MB of networks"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused(start, mine, option, message):
    run = start(*SMALL, *option.split())
    assert message in refusal_of(run, mine)
    assert not run.folder.exists()


def test_a_refused_start_leaves_the_experiment_as_it_was(start, tmp_path):
    """The wrong value of a first start, and one that does not fit the checkpoint, do not outlive their command."""
    assert "hidden_size" in refusal_of(start(*SMALL, "--hidden_size=0"), tmp_path)
    assert "does not exist" in refusal_of(start(*SMALL, "--encoder=conv_simpel"), tmp_path)
    first = start(*SMALL, "--mlp_layers=16", "--use_rnn=False", "--train_for_env_steps=4000")
    assert first.end() == 0, first.output
    line = refusal_of(start(*SMALL, "--mlp_layers=32", "--train_for_env_steps=9000"), tmp_path)
    assert "is of another network" in line and "--mlp_layers" in line
    assert line.endswith(". Changed since the last start: mlp_layers 16 -> 32, train_for_env_steps 4000 -> 9000")
    corrected = start(*SMALL, "--train_for_env_steps=9000")
    assert corrected.end() == 0, corrected.output
    assert "goes on from" in corrected.output


@pytest.mark.slow
def test_options_that_never_trained_are_forgotten(start):
    run = start(*SMALL, "--batch_size=1024000", "--gamma=0.5")
    run.wait_for(lambda: run.status().get("env_frames", 0) > 100)
    run.signal(signal.SIGUSR1)  # there is nothing to save yet
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert not (run.folder / "config.json").exists() and not list(run.folder.rglob("*.pth"))
    corrected = start(*SMALL, "--train_for_env_steps=8000")
    assert corrected.end() == 0, corrected.output
    options = json.loads((run.folder / "config.json").read_text())["options"]
    assert options["batch_size"] != 1024000 and options["gamma"] != 0.5
    assert len((run.folder / "command_lines.txt").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_budget_too_small_to_learn_from_is_an_experiment_all_the_same(start):
    run = start(*SMALL, "--batch_size=1024000", "--train_for_env_steps=100")
    assert run.end() == 0, run.output
    assert (run.folder / "config.json").exists() and list(run.folder.rglob("checkpoint_*.pth"))


def test_serial_runs_refuse_the_same(start, tmp_path):
    line = refusal_of(start(*SMALL, "--serial_mode=True", "--encoder=conv_simple"), tmp_path)
    assert "reads observations of kind image" in line


def run_in(folder: Path, shell: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "train_appo.py"), "--env=CartPole-v1", "--experiment=run", *SMALL, *options]
    command = ["bash", "-c", f'{shell} exec "$@"', "bash", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "shell, options, message",
    [
        ("mkdir gone; cd gone; rmdir ../gone;", ["--train_dir=/tmp"], "the working directory does not exist any more"),
        ("ulimit -f 100;", [], "ulimit -f"),
        ("", [os.fsdecode(b"--train_dir=\xff")], "which is no text in UTF-8"),
        ("", ["--train_dir=~nobody_of_this_name/x"], "there is no home folder of that user"),
        ("", ["--train_dir=" + "x" * 256], "file systems allow 255"),
        ("", ["batch_size=2048"], "did you mean --batch_size=2048?"),
        ("", ["foo", "bar"], "holds 'foo', which belongs to no option"),
    ],
    ids=["working directory", "ulimit -f", "bytes", "home", "path", "no hyphens", "words"],
)
def test_what_a_shell_can_do_wrong_is_refused(tmp_path, shell, options, message):
    done = run_in(tmp_path, shell, *options)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1 and message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "shell", ["exec >&- 2>&- <&-;", "exec > /dev/full 2> /dev/full;", "export TMPDIR=$(pwd)/long;"]
)
def test_what_a_shell_may_do_ends_no_run(tmp_path, shell):
    long = tmp_path / "long"
    long.mkdir()
    long = long.rename(tmp_path / ("l" * 120))
    done = run_in(tmp_path, shell.replace("long", long.name), "--train_for_env_steps=3000", "--train_dir=here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "run" / "summary.json").exists() and not list(long.glob("appo-*"))
