"""The tutorial, as it stands: its files are saved, and its commands are run, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.end_to_end.conftest import ROOT

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
# Each block is a file that is to be saved, or commands.
BLOCKS = re.findall(r"(?:[Ss]ave this as `([\w.]+)`[^`]*)?```(python|sh)\n(.*?)```", TEXT, re.DOTALL)
PROGRAMS = {
    "python": [sys.executable],
    "appo-train": [sys.executable, str(ROOT / "train_appo.py")],
    "appo-enjoy": [sys.executable, str(ROOT / "enjoy_appo.py")],
    "appo-tools": [sys.executable, "-m", "appo.tools"],
}


def test_every_block_is_a_file_or_commands():
    assert len(BLOCKS) >= 12
    assert all(bool(name) == (language == "python") for name, language, _ in BLOCKS)
    assert {words[0] for words in commands()} == set(PROGRAMS)


def commands():
    lines = [line for _, language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


def reward_of(printed):
    """The mean return with which a run has ended."""
    return float(re.findall(r"mean return of the last \d+ episodes ([-\d.]+)", printed)[-1])


def frames_of(printed):
    """The frames of all starts when a run has ended."""
    return int(re.findall(r"^([\d,]+) env frames", printed, re.MULTILINE)[-1].replace(",", ""))


@pytest.mark.timeout(300)
def test_the_tutorial_runs_as_it_stands(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    printed = {}
    for name, language, text in BLOCKS:
        if language == "python":
            (tmp_path / name).write_text(text)
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line, comments=True)
            done = subprocess.run(
                [*PROGRAMS[program], *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            printed[line.partition("#")[0].strip()] = done.stdout + done.stderr
    assert {"first.png", "both.png", "policy.pt2", "policy.pt2.md"} <= {path.name for path in tmp_path.iterdir()}
    first, going_on = [
        text for command, text in printed.items() if "--experiment=first --train_for_env_steps" in command
    ]
    goal = float(TEXT.partition("--stop_when='reward>=")[2].partition("'")[0])
    assert reward_of(first) < goal, "or there would be nothing left to learn"
    assert f"reached stop_when=reward>={goal:g}" in going_on and frames_of(going_on) > frames_of(first)
    (returned,) = re.findall(r"return ([-\d.]+)", printed["python play.py"])
    assert float(returned) > 0.8, "it has learned to walk to the end"
    metrics = (tmp_path / "train_dir" / "second" / "metrics.jsonl").read_text()
    assert "train/aux_calm_square" in metrics
    compared = printed["appo-tools runs train_dir --compare first second"]
    assert "encoder" in compared and "wide" in compared
