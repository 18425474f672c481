"""The benchmark that makes bottlenecks on purpose, with a program in place of ours that says what it is told to."""

import json
import sys

import psutil
import pytest

from appo.algorithms.config import resolve
from appo.algorithms.reporting import bottleneck
from benchmarks import bottlenecks
from benchmarks.bottlenecks import CASES, COMMON
from benchmarks.ours import OurRun

WRITE = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
(folder / "summary.json").write_text(sys.argv[2])
"""


@pytest.fixture
def program(monkeypatch):
    """Let each run say that it has been limited by this."""
    monkeypatch.setattr(bottlenecks, "wait_until_quiet", lambda _: True)

    def says(kind, code=WRITE):
        found = {"bottleneck": {"kind": kind, "said": f"it was {kind}"} if kind else None}

        def run_of(_, train_dir):
            folder = train_dir / "run"
            return OurRun([sys.executable, "-c", code, str(folder), json.dumps(found)], folder)

        monkeypatch.setattr(bottlenecks, "our_run", run_of)

    return says


def test_every_kind_of_finding_has_a_case_whose_options_are_accepted(tmp_path):
    kinds = {value for name, value in vars(bottleneck).items() if name.isupper() and isinstance(value, str)}
    assert len(kinds) == 7 and {case.expected for case in CASES} == kinds
    for case in CASES:
        assert not resolve([*case.options.split(), *COMMON, f"--train_dir={tmp_path}"]).config.workers.serial_mode


@pytest.mark.parametrize(("kind", "code"), [("learner", 0), ("balanced", 1), ("", 1)])
def test_the_exit_code_says_whether_what_was_named_is_right(program, capsys, kind, code):
    program(kind)
    assert bottlenecks.main(["--cases=slow learner"]) == code
    assert ("| slow learner | learner | right |" in capsys.readouterr().out) == (code == 0)


def test_a_run_that_fails_is_no_answer(program, capsys):
    program("learner", code="raise SystemExit('no memory')")
    assert bottlenecks.main(["--cases=slow learner", "--tries=1"]) == 1
    assert "the run ended with 1: no memory" in capsys.readouterr().out


def test_neighbours_compute_while_the_block_lasts():
    before = set(psutil.Process().children())
    with bottlenecks.spinning(2):
        spinners = set(psutil.Process().children()) - before
        assert len(spinners) == 2 and all(spinner.is_running() for spinner in spinners)
    assert not any(spinner.is_running() for spinner in spinners)


@pytest.mark.parametrize("word", ["--cases=slow", "--seconds=5", "--tries=0"])
def test_what_cannot_be_measured_is_refused(word, capsys):
    with pytest.raises(SystemExit) as ended:
        bottlenecks.main([word])
    assert ended.value.code == 2 and "--" in capsys.readouterr().err
