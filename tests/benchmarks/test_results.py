"""Results of known tasks: runs are made once, go on where they stopped, and the page says what is kept."""

import json
import os
import subprocess
import sys

import pytest

from appo.tools.curves import Series
from benchmarks.learning import results
from benchmarks.learning.results import KEPT, KNOWN, MOST_POINTS, KnownTask, Result, main, read, row, thinned
from tests.architecture.source_tree import ROOT

PAGE = ROOT / "docs" / "results.md"


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "KNOWN", {"identity": KnownTask("synthetic_identity", 6000)})
    monkeypatch.setattr(results, "EPISODES", 8)
    return ["--tasks=identity", f"--train_dir={tmp_path / 'runs'}"]


def test_a_run_goes_on_where_it_stopped_is_kept_drawn_and_not_made_again(words, tmp_path, capsys, monkeypatch):
    begun = ["--env=synthetic_identity", "--seed=1", "--experiment=identity_1", "--train_for_env_steps=2000"]
    command = [sys.executable, "train_appo.py", *begun, f"--train_dir={tmp_path / 'runs'}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert main(words) == 0, capsys.readouterr().out
    (kept,) = read(tmp_path / "runs" / "results.json")
    assert (kept.task, kept.seed, kept.starts) == ("identity", 1, 2)
    assert 6000 <= kept.frames < 12_000 and kept.points[-1][0] <= kept.frames and kept.seconds > 0
    assert kept.last == pytest.approx(kept.points[-1][1], abs=1e-3) and 0.0 < kept.played <= 20.0
    monkeypatch.setattr(results, "train", lambda *_: pytest.fail("the run is there"))
    assert main(words) == 0
    assert main([*words, f"--plot={tmp_path / 'curves.png'}"]) == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert " | ".join(row("identity", [kept])) in capsys.readouterr().out


def test_a_run_that_fails_is_told_of_and_not_kept(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(results.KNOWN, "identity", KnownTask("synthetic_nonsense", 6000))
    assert main(words) == 1
    assert "identity, seed 1 failed with exit code 2: " in capsys.readouterr().out
    assert not (tmp_path / "runs" / "results.json").exists()


def test_only_the_episodes_afterwards_are_played_where_only_they_are_missing(words, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "play", lambda *_: "exit code 1: no window")
    assert main(words) == 1
    monkeypatch.undo()
    monkeypatch.setattr(results, "KNOWN", {"identity": KnownTask("synthetic_identity", 6000)})
    monkeypatch.setattr(results, "EPISODES", 8)
    assert main(words) == 0
    (kept,) = read(tmp_path / "runs" / "results.json")
    assert kept.starts == 1


def run_folder(tmp_path, name="breakout_1"):
    """What a run leaves that was begun twice, where a life pays 5 and a game 20."""
    folder = tmp_path / name
    (folder / "evaluation").mkdir(parents=True)
    points = [
        {"policy": 0, "env_frames": frames, "0_aux/avg_reward": 5.0, "0_aux/avg_true_reward": 20.0 + frames}
        for frames in (100, 200)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    (folder / "status.json").write_text(json.dumps({"env_frames": 210, "train_seconds": 90.0}))
    (folder / "command_lines.txt").write_text("first\nsecond\n")
    for step, (life, game) in enumerate([(1.0, 2.0), (6.0, 24.0)]):
        of = {kind: {"mean": mean, "sem": 0.5} for kind, mean in (("return", life), ("true_return", game))}
        path = folder / "evaluation" / f"policy0_step{step}.json"
        path.write_text(json.dumps({"summary": of}))
        os.utime(path, (1000 + step, 1000 + step))


def test_the_score_of_a_game_counts_where_an_episode_is_a_life_and_the_newest_evaluation(tmp_path):
    run_folder(tmp_path)
    found = results.result_of("breakout", 1, tmp_path)
    assert (found.last, found.played, found.played_error) == (220.0, 24.0, 0.5)
    assert (found.frames, found.seconds, found.starts) == (210, 90.0, 2)
    assert found.points == [[100.0, 120.0], [200.0, 220.0]]
    run_folder(tmp_path, "doom_basic_1")
    of_lives = results.result_of("doom_basic", 1, tmp_path)
    assert (of_lives.last, of_lives.played) == (5.0, 6.0)


def test_two_budgets_of_one_environment_are_two_groups():
    one = Result("hopper_1m", 1, 1_000_300, 60.0, 1, "", 0.0, 0.0, 0.0, [[1e5, 1.0], [1_000_300, 2.0]])
    three = one._replace(task="hopper", points=[[1e5, 1.0], [3_000_500, 2.0]])
    both = results.groups([one, one._replace(seed=2), three])
    assert [(group.label, group.num_runs, group.x[-1]) for group in both] == [
        ("1M frames", 2, 3_000_500),
        ("3M frames", 1, 3_000_500),
    ]
    assert [group.label for group in results.groups([one])] == [""]


def test_the_last_points_are_drawn_though_they_lie_behind_the_budget():
    one = Result("cartpole", 1, 300_467, 9.0, 1, "", 500.0, 500.0, 0.0, [[4e3, 14.0], [300_467, 500.0]])
    (group,) = results.groups([one, one._replace(seed=2, points=[[4e3, 20.0], [301_000, 480.0]])])
    assert group.summary.mean[-1] == 490.0


def test_what_cannot_be_drawn_is_refused_in_one_line(tmp_path, capsys):
    empty = f"--out={tmp_path / 'kept.json'}"
    assert main([empty, f"--plot={tmp_path / 'curves.png'}"]) == 2
    assert capsys.readouterr().err == "results: no run of these tasks is there yet: leave out --plot to make them\n"
    assert main(["--tasks=cartpole", f"--plot={tmp_path / 'nowhere' / 'curves.png'}"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_long_curve_keeps_its_ends():
    curve = Series([float(frames) for frames in range(1000)], [frames / 3 for frames in range(1000)])
    kept = thinned(curve)
    assert len(kept) == MOST_POINTS and kept[0] == [0.0, 0.0] and kept[-1] == [999.0, 333.0]
    assert thinned(Series([5.0], [1.0])) == [[5.0, 1.0]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tasks=chess"], "unknown tasks chess; there are cartpole, "),
        (["--seeds=0"], "--seeds=0: at least 1"),
        (["--out=benchmarks/learning/unseen_beside_sb3.json"], "holds no runs of this command"),
    ],
)
def test_what_cannot_be_made_is_refused(words, told, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert told in capsys.readouterr().err


def test_the_page_has_the_row_of_each_task_that_is_kept():
    kept, page = read(KEPT), PAGE.read_text()
    names = {result.task for result in kept}
    assert names and names <= KNOWN.keys()
    for name in names:
        cells = row(name, [result for result in kept if result.task == name])
        assert f"| {' | '.join(cells)} |\n" in page, name
