"""Memory of a run: of real processes, what a further policy adds, and what cannot be measured."""

import json
import os

import pytest

from benchmarks.speed import memory
from benchmarks.speed.memory import Memory, rows_of

SMALL = ["--env=CartPole-v1", "--num_workers=1", "--num_envs_per_worker=4"]


@pytest.mark.slow
def test_a_run_is_measured_with_all_its_processes(tmp_path, capsys):
    out = tmp_path / "memory.json"
    assert memory.main(["--policies=1,2", "--seconds=1", *SMALL, f"--out={out}"]) == memory.EXIT_OK, capsys.readouterr()
    one, two = json.loads(out.read_text())["runs"]
    assert {"driver", "actor", "policy", "learner"} <= set(one["pss_by_kind"])
    assert 0.0 < one["pss"] < one["rss"] and one["pss"] == pytest.approx(sum(one["pss_by_kind"].values()))
    assert 0.0 < two["pss"] - one["pss"] < 250.0 < two["rss"] - one["rss"]


def test_what_each_further_policy_adds_is_told_per_policy():
    rows = rows_of([Memory(1, 300.0, 600.0, {"actor": 300.0}), Memory(4, 420.0, 1800.0, {"actor": 420.0})])
    assert [row[3] for row in rows] == ["", "40"] and rows[1][4] == "actor 420"


def test_memory_is_that_of_a_process_and_its_children():
    found = memory.memory_of(os.getpid(), policies=1)
    assert 0.0 < found.pss <= found.rss


@pytest.mark.parametrize("words", [["--policies=2,1"], ["--policies=0"], ["--policies=x"], ["--out=/nowhere/x.json"]])
def test_what_cannot_be_measured_is_refused(words, capsys):
    assert memory.main([*words, *SMALL]) == memory.EXIT_REFUSED
    assert words[0] in capsys.readouterr().err


def test_a_run_that_is_refused_fails_the_measurement(capsys):
    assert memory.main(["--policies=1", "--env=NoSuchThing-v0"]) == memory.EXIT_FAILED
    assert "NoSuchThing-v0" in capsys.readouterr().err
