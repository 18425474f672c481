"""`make train`: a run that was ended and has saved is no error of make's, and one that failed is."""

import os
import signal
import subprocess
import time

import pytest

from tests.architecture.source_tree import ROOT

# Stands in for the interpreter of the virtual environment: pip does nothing, the program does as the test says.
PYTHON = """#!/bin/sh
case "$1" in -m) exit 0 ;; esac
{does}
"""
WAITS = "trap 'sleep 0.2; exit 130' INT; echo started; while :; do sleep 0.05; done"


@pytest.fixture
def make(tmp_path):
    """Starts `make train` in a process group of its own, as a shell does."""

    def begin(does):
        program = tmp_path / "bin" / "python"
        program.parent.mkdir()
        program.write_text(PYTHON.format(does=does))
        program.chmod(0o755)
        words = ["make", "train", f"VENV={tmp_path}"]
        return subprocess.Popen(
            words, cwd=ROOT, text=True, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    return begin


def test_ctrl_c_ends_it_without_a_line_of_make(make):
    run = make(WAITS)
    assert run.stdout is not None
    assert any(line == "started\n" for line in run.stdout)
    time.sleep(0.5)  # make waits for its child by now
    os.killpg(run.pid, signal.SIGINT)
    said = run.communicate(timeout=20)[0]
    assert "***" not in said and "Error" not in said


@pytest.mark.parametrize(("code", "is_error"), [(0, False), (130, False), (143, False), (1, True), (2, True)])
def test_only_a_run_that_failed_or_was_refused_is_an_error_and_nothing_is_told_twice(make, code, is_error):
    run = make(f"echo told by the program; exit {code}")
    said = run.communicate(timeout=20)[0]
    assert (run.returncode != 0) == is_error and ("***" in said) == is_error, said
    assert "What to do next" not in said and said.count("told by the program") == 1
