"""Ours beside Stable-Baselines3 on the suite: what a peer tells, when it cannot run, and the cells of the table."""

import json
import math
import os
import re

import psutil
import pytest

from benchmarks.learning import table, unseen_beside_sb3
from benchmarks.learning.table import Outcome
from benchmarks.learning.unseen.tasks import UNSEEN
from benchmarks.learning.unseen_beside_sb3 import (
    CannotRunError,
    Comparison,
    Run,
    main,
    noise,
    ours,
    peers,
    row,
    verdict,
)

PEER = """#!/bin/sh
case "$1" in
-I) echo 2.9.2;;
*) echo "$@" > arguments.txt
{body};;
esac
"""
RESULT = """echo 'result: {{"frames": 300000, "episodes": {episodes}, "score": 0.5}}'; echo 'closed'"""
TASK = UNSEEN["near_or_far"]  # 0.27 at random, 0.93 is good: 5 % are 0.033


@pytest.fixture
def python(tmp_path):
    """A program in the place of the peer's Python."""

    def says(body):
        program = tmp_path / "python"
        program.write_text(PEER.format(body=body))
        program.chmod(0o755)
        return program

    return says


def runs(scores, seconds=10.0):
    return [Run(score, seconds, 300_000) for score in scores]


def compared(mine, theirs, **more):
    return Comparison("near_or_far", runs(mine, 4.0), runs(theirs), **more)


def refused(argv, capsys):
    """The one line of the error."""
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_the_peer_gets_the_environment_the_algorithm_the_budget_and_the_seed(python, tmp_path):
    (run,) = peers("taxi", UNSEEN["taxi"], [2], tmp_path, python(RESULT.format(episodes=100)))
    assert run.score == 0.5 and run.frames == 300_000 and 0.0 < run.seconds < 10.0
    program, *options = (tmp_path / "arguments.txt").read_text().split()
    assert program.endswith("stable_baselines3_unseen.py")
    assert options == ["--env=Taxi-v4", "--algorithm=maskable", "--frames=1000000", "--seed=2"]
    declared = re.findall(r'add_argument\("(--\w+)"', unseen_beside_sb3.PROGRAM.read_text())
    assert [option.partition("=")[0] for option in options] == declared


def test_less_than_a_hundred_episodes_are_no_score(python, tmp_path):
    (run,) = peers("taxi", UNSEEN["taxi"], [1], tmp_path, python(RESULT.format(episodes=99)))
    assert run.score == -math.inf


def test_seeds_at_once_share_the_threads_and_each_has_its_own_result(python, tmp_path):
    """Each waits until the other runs as well."""
    body = """for seed; do :; done
touch begun$seed; until [ -e begun--seed=4 ] && [ -e begun--seed=7 ]; do sleep 0.05; done
echo 'result: {"frames": '$OMP_NUM_THREADS', "episodes": 100, "score": '${seed#--seed=}'}'"""
    runs = peers("taxi", UNSEEN["taxi"], [4, 7], tmp_path, python(body))
    assert [run.score for run in runs] == [4.0, 7.0]
    assert {run.frames for run in runs} == {max(1, len(os.sched_getaffinity(0)) // 2)}


def test_one_of_several_that_fails_ends_the_others(python, tmp_path):
    failing = python("""case $* in *--seed=1) echo $$ > pid; exec sleep 1000;; esac
until [ -s pid ]; do sleep 0.05; done; echo 'killed for memory' >&2; exit 1""")
    with pytest.raises(CannotRunError, match=r"^killed for memory$"):
        peers("taxi", UNSEEN["taxi"], [1, 2], tmp_path, failing)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_peer_that_ends_with_an_error_tells_its_last_line(python, tmp_path):
    failing = python("echo 'AssertionError: such a space is not supported' >&2; exit 1")
    with pytest.raises(CannotRunError, match=r"^AssertionError: such a space is not supported$"):
        peers("taxi", UNSEEN["taxi"], [1], tmp_path, failing)


@pytest.mark.parametrize(("exit_code", "score"), [(0, 0.8), (1, -math.inf)])
def test_ours_trains_to_the_budget_and_a_run_that_failed_has_no_score(exit_code, score, tmp_path, monkeypatch, capsys):
    asked = []

    def fake(name, task, seed, folder):
        asked.append(task)
        (folder / f"{name}_{seed}.log").write_text("starts\nit cannot be built\n")
        return Outcome(name, seed, False, 300_100, 9.0, 0.9, exit_code, 0.8)

    monkeypatch.setattr(table, "run", fake)
    run = ours("near_or_far", TASK, 1, tmp_path)
    assert run.score == score and run.frames == 300_100
    assert math.isinf(run.seconds) == bool(exit_code)
    assert ("exit code 1: it cannot be built" in capsys.readouterr().out) == bool(exit_code)
    assert asked[0].bar == math.inf and asked[0].frames == TASK.frames and not asked[0].options


@pytest.mark.parametrize(
    ("mine", "theirs", "is_as_good"),
    [
        ([0.9, 0.9, 0.9], [0.9, 0.9, 0.9], True),
        ([0.87, 0.87, 0.87], [0.9, 0.9, 0.9], True),  # within 5 %
        ([0.86, 0.86, 0.86], [0.9, 0.9, 0.9], False),
        ([0.6, 0.9, 0.9], [0.9, 0.9, 0.9], True),  # within the standard error, 0.1
        ([0.5, 0.5, 0.9], [0.9, 0.9, 0.9], False),
        ([-math.inf, 0.9, 0.9], [0.3, 0.3, 0.3], False),  # a failed run is no noise
        ([-math.inf, 0.9, 0.9], [-math.inf, 0.3, 0.3], False),
    ],
)
def test_as_good_allows_for_noise_and_for_a_twentieth_of_the_way(mine, theirs, is_as_good):
    assert compared(mine, theirs).is_as_good == is_as_good


def test_the_noise_is_the_standard_error_of_the_difference():
    assert noise([0.0, 3.0, 6.0], [0.0, 4.0, 8.0]) == pytest.approx(math.sqrt(9 / 3 + 16 / 3))
    assert noise([1.0], [2.0]) == 0.0


def test_the_row_tells_both_scores_the_verdict_and_the_ratio_of_time():
    assert row(compared([0.8, 0.9, 1.0], [0.7, 0.7, 0.7])) == [
        "near_or_far", "0.27", "0.93", "0.9 (0.8 .. 1)", "ppo 0.7 (0.7 .. 0.7)", "yes", "0.40",
    ]  # fmt: skip
    slow = Comparison("near_or_far", runs([0.9], 6.0), runs([0.9], 10.0))
    assert row(slow)[-1] == "0.60 (above 0.5)"


def test_what_the_peer_cannot_run_has_our_score_only_and_counts_for_neither():
    cannot = Comparison("unbounded", runs([-5.0]), [], "no")
    assert row(cannot) == ["unbounded", "-133", "-8.6", "-5 (-5 .. -5)", "cannot", "", ""]
    told = verdict([cannot, compared([0.9], [0.9]), compared([0.3], [0.9])])
    assert told == "Of 2 tasks that both can run: at least as good on 1, at most 0.5 of the peer's time on 2."


@pytest.fixture
def turns(monkeypatch):
    """Who ran, in order: name, side and seed. Nobody trains."""
    turns = []

    def our_run(name, task, seed, folder):
        turns.append((name, "ours", seed))
        return Run(1.0, 2.0, task.frames)

    def peer_run(name, task, seeds, folder, python):
        turns.extend((name, "peer", seed) for seed in seeds)
        if name == "huge_rewards":
            raise CannotRunError("no such space")
        return [Run(0.5, 8.0, task.frames) for _ in seeds]

    monkeypatch.setattr(unseen_beside_sb3, "ours", our_run)
    monkeypatch.setattr(unseen_beside_sb3, "peers", peer_run)
    return turns


def test_they_take_turns_and_every_run_is_in_the_file(turns, python, tmp_path, capsys):
    out = tmp_path / "out.json"
    argv = [f"--peer_python={python('')}", "--tasks=far_goal,huge_rewards,leave_early", "--seeds=2", f"--out={out}"]
    assert main(argv) == 0
    assert turns == [
        ("far_goal", "ours", 1), ("far_goal", "peer", 1), ("far_goal", "ours", 2), ("far_goal", "peer", 2),
        ("huge_rewards", "ours", 1), ("huge_rewards", "peer", 1), ("huge_rewards", "ours", 2),
        ("leave_early", "ours", 1), ("leave_early", "ours", 2),
    ]  # fmt: skip
    told = capsys.readouterr().out
    assert "huge_rewards: Stable-Baselines3 cannot run it: no such space" in told
    assert "leave_early: Stable-Baselines3 cannot run it" in told
    assert "| far_goal | 0.045 | 0.9 | 1 (1 .. 1) | ppo 0.5 (0.5 .. 0.5) | yes | 0.25 |" in told
    assert "Of 1 tasks that both can run" in told
    written = json.loads(out.read_text())
    assert written["peer_version"] == "2.9.2"
    assert [len(task["ours"]) for task in written["tasks"]] == [2, 2, 2]
    assert written["tasks"][0]["peers"][0] == {"score": 0.5, "seconds": 8.0, "frames": 1_000_000}


def test_seeds_of_the_peer_run_at_once_after_ours(turns, python, tmp_path):
    argv = [f"--peer_python={python('')}", "--tasks=far_goal", f"--out={tmp_path / 'out.json'}", "--peers_at_once=2"]
    assert main([*argv, "--seeds=1"]) == 0
    assert main([*argv, "--seeds=5"]) == 0
    assert [(side, seed) for _, side, seed in turns] == [
        ("ours", 1), ("peer", 1), ("ours", 2), ("ours", 3), ("peer", 2), ("peer", 3), ("ours", 4), ("ours", 5),
        ("peer", 4), ("peer", 5),
    ]  # fmt: skip
    assert [len(task["peers"]) for task in json.loads((tmp_path / "out.json").read_text())["tasks"]] == [5]


def test_a_file_that_exists_is_gone_on_with(turns, python, tmp_path, capsys):
    out = tmp_path / "out.json"
    argv = [f"--peer_python={python('')}", f"--out={out}"]
    assert main([*argv, "--tasks=far_goal,huge_rewards", "--seeds=1"]) == 0
    told = json.loads(out.read_text())
    told["tasks"][0]["peers"][0] |= {"score": None, "seconds": None}  # a run that failed, as it is written
    told["tasks"].append(told["tasks"][0] | {"task": "taxi", "ours": told["tasks"][0]["ours"], "peers": []})
    out.write_text(json.dumps(told))
    turns.clear()
    capsys.readouterr()
    assert main([*argv, "--tasks=far_goal,huge_rewards,taxi", "--seeds=2"]) == 0
    assert turns == [
        ("far_goal", "ours", 2), ("far_goal", "peer", 2), ("huge_rewards", "peer", 1), ("huge_rewards", "ours", 2),
        ("taxi", "peer", 1), ("taxi", "ours", 2), ("taxi", "peer", 2),
    ]  # fmt: skip
    assert "| far_goal | 0.045 | 0.9 | 1 (1 .. 1) | ppo -inf (-inf .. 0.5) | yes |" in capsys.readouterr().out
    after = json.loads(out.read_text())["tasks"]
    assert [len(task["ours"]) for task in after] == [2, 2, 2] and after[0]["peers"][0]["score"] is None


def test_what_the_peer_could_not_run_is_tried_again_and_fewer_seeds_may_be_asked_for(turns, python, tmp_path, capsys):
    out = tmp_path / "out.json"
    argv = [f"--peer_python={python('')}", f"--out={out}", "--tasks=far_goal,taxi", "--seeds=1"]
    assert main([*argv[:3], "--seeds=2"]) == 0
    told = json.loads(out.read_text())
    told["tasks"][0]["peers"].pop()
    told["tasks"][1] |= {"peers": [], "cannot": "killed for memory"}
    out.write_text(json.dumps(told))
    turns.clear()
    capsys.readouterr()
    assert main(argv) == 0
    assert turns == [("taxi", "peer", 1)]
    assert "Of 2 tasks that both can run" in capsys.readouterr().out


def test_no_task_is_given_more_than_the_frames_named_and_the_file_tells_them(turns, python, tmp_path, capsys):
    out = tmp_path / "out.json"
    argv = [f"--peer_python={python('')}", "--tasks=far_goal,catch_drifting", "--seeds=1", f"--out={out}"]
    assert main([*argv, "--frames=400000"]) == 0
    written = json.loads(out.read_text())
    assert [task["peers"][0]["frames"] for task in written["tasks"]] == [400_000, 300_000]
    assert written["tasks"][0]["ours"][0]["frames"] == 400_000
    assert "holds runs with --frames=400000" in refused(argv, capsys)
    assert json.loads(out.read_text()) == written


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ("not JSON", "holds no runs of this command"),
        ('{"outcomes": []}', "holds no runs of this command"),
        ('{"tasks": []}', "holds no runs of this command"),
        ('{"tasks": [], "peer_version": "1.0"}', "holds runs of Stable-Baselines3 1.0, not 2.9.2"),
    ],
)
def test_a_file_with_something_else_is_refused_and_stays(held, reason, python, tmp_path, capsys):
    out = tmp_path / "out.json"
    out.write_text(held)
    assert reason in refused([f"--peer_python={python('')}", "--tasks=taxi", f"--out={out}"], capsys)
    assert out.read_text() == held


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tasks=nowhere"], "unknown tasks nowhere"),
        (["--tasks=frozen_lake"], "--half=report or --half=all does"),
        (["--tasks=taxi", "--seeds=0"], "--seeds=0: at least 1"),
        (["--tasks=taxi", "--peers_at_once=0"], "--peers_at_once=0: from 1 to"),
        (["--tasks=taxi", "--frames=0"], "--frames=0: at least 1"),
        (["--tasks=taxi", "--out=/nowhere/file.json"], "there is no folder /nowhere"),
        (["--tasks=taxi", "--out=/"], "--out=/ is a folder"),
        (["--tasks=taxi", "--peer_python=/nowhere/python"], "is not a program"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(options, reason, python, capsys):
    assert reason in refused([f"--peer_python={python('')}", *options], capsys)


def test_a_python_that_lacks_a_module_is_refused_by_its_name(python, capsys):
    lacking = python("true")
    lacking.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'sb3_contrib'\" >&2\nexit 1\n")
    error = refused([f"--peer_python={lacking}", "--tasks=swimmer"], capsys)
    assert "stable_baselines3 and sb3_contrib and mujoco" in error and "No module named 'sb3_contrib'" in error
