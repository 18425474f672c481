"""The printed tree of times: from the file of a run, or a refusal that says what was wrong."""

import json
import subprocess
import sys

import pytest

from appo.algorithms.reporting.timing import TimingNode
from appo.tools.timing import EXIT_OK, EXIT_REFUSED, main
from tests.architecture.source_tree import ROOT


def test_the_tree_of_an_experiment_is_printed(tmp_path):
    parts = (TimingNode("train", 4, 1.5, False, (TimingNode("loss", 4, 1.0, False),)),)
    kind = TimingNode("learner", 1, 1.5, False, parts)
    (tmp_path / "timing.json").write_text(json.dumps({"processes": [kind.as_json()]}))
    command = [sys.executable, "-m", "appo.tools.timing", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["1", "x", "learner:", "1.5", "s"],
        ["train", "1.5", "s", "100.0%", "4", "x", "0.5", "s", "itself"],
        ["loss", "1.0", "s", "66.7%", "4", "x"],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read (No such file or directory)"), ("{", "is not what a run writes"), ("[]", "is not what")],
)
def test_a_folder_without_times_is_refused_in_one_line(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "timing.json").write_text(content)
    assert main([str(tmp_path)]) == EXIT_REFUSED
    told = capsys.readouterr().err
    assert told.startswith("timing: ") and message in told and told.count("\n") == 1


def test_what_is_no_name_of_a_folder_is_refused_in_one_line(capsys):
    assert main(["x" * 300]) == EXIT_REFUSED
    told = capsys.readouterr().err
    assert "File name too long" in told and told.count("\n") == 1


def test_its_help_says_what_it_does(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == EXIT_OK and "timing.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"), [([], "are required: folder"), (["a", "b"], "unrecognized arguments: b")]
)
def test_without_a_folder_or_with_several_it_is_refused_in_one_line(capsys, words, message):
    assert main(words) == EXIT_REFUSED
    told = capsys.readouterr()
    assert told.err.startswith("timing: ") and message in told.err and told.err.count("\n") == 1 and told.out == ""
