"""Watching runs from their files: finished, going on, silent, several, and folders that hold none."""

import json
import os
import subprocess
import sys
import time

import pytest

from appo.algorithms.reporting.view import as_text
from appo.algorithms.run import folder_lock
from appo.tools import view as module
from appo.tools.view import EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, WatchedRun, main, stacked
from appo.utils.files import NewLines
from tests.architecture.source_tree import ROOT
from tests.reporting.terminal_emulator import PseudoTerminal, Screen

STATUS = {
    "state": "training",
    "env_frames": 26192,
    "train_seconds": 20.6,
    "fps": {"10": 1283.0, "60": 1331.0, "300": 1331.0},
    "seconds_left": 30.0,
    "budget_spent": 0.4,
    "faults": {"restarts": 0},
    "blocks": {"FREE": 2},
    "policies": [
        {
            "env_frames": 26192,
            "train_steps": 370,
            "episodes": 404,
            "avg_reward": 151.38,
            "avg_true_reward": 151.38,
            "policy_lag": 15.9,
        }
    ],
}


class Experiment:
    """Files as a run writes them."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.points = 0

    def status(self, **changed):
        told = json.dumps(STATUS | {"time": time.time()} | changed)
        new = self.folder / "new"
        new.write_text(told)
        new.replace(self.folder / "status.json")

    def point(self, value, end="\n"):
        self.points += 1
        line = {"policy": 0, "time": time.time(), "train_seconds": 1.0, "env_frames": self.points}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line | {"0_aux/avg_reward": value, "0_aux/avg_len": 77.0, "train/lr": None}) + end)


@pytest.fixture
def experiment(tmp_path):
    made = Experiment(tmp_path / "first")
    made.status()
    return made


def command(*words, **options):
    return subprocess.Popen([sys.executable, "-m", "appo.tools.view", *map(str, words)], cwd=ROOT, text=True, **options)


def test_a_finished_run_is_printed_once_without_escapes(experiment):
    experiment.point(1.0)
    experiment.point(2.0)
    experiment.status(state="ended", seconds_left=0.0, budget_spent=1.0, time=time.time() - 1e6)
    with command(experiment.folder, stdout=subprocess.PIPE) as process:
        told = process.communicate(timeout=30)[0]
    assert process.returncode == EXIT_OK and "\x1b" not in told
    first, *lines = told.splitlines()
    assert first.startswith("first ─") and first.endswith("─ ended 0:00:21") and len(first) == 80
    assert any(line.startswith("policy 0     2.00") and line.endswith("▁█") for line in lines)
    assert told.count("first ") == 1


def test_a_run_that_goes_on_is_drawn_in_place_until_it_ends(experiment):
    terminal = PseudoTerminal(60, 20)
    process = command(experiment.folder, stdout=terminal.descriptor, env=os.environ | {"TERM": "xterm"})
    try:
        terminal.read(20.0, until=lambda: b"26.19k" in terminal.received)
        experiment.point(5.0)
        experiment.status(env_frames=50_000)
        terminal.read(10.0, until=lambda: b"50.00k" in terminal.received)
        experiment.status(env_frames=60_000, state="ended")
        terminal.read(10.0, until=lambda: process.poll() is not None)
        assert process.wait(10) == EXIT_OK
    finally:
        process.kill()
        process.wait()
    screen = Screen(60, 20)
    screen.feed(terminal.read(0.2))
    terminal.close()
    text = "\n".join(screen.lines)
    assert "60.00k" in text and "50.00k" not in text and "26.19k" not in text
    assert text.count("first ─") == 1 and len(screen.shown) >= 3
    assert all(lines[-1] == "" for lines in screen.shown)


def test_ctrl_c_ends_it_with_130(experiment, monkeypatch, capsys):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupted)
    assert main([str(experiment.folder)]) == EXIT_INTERRUPTED
    assert capsys.readouterr().out.count("first ─") == 1


def test_a_pipe_gets_a_plain_frame_at_intervals_and_its_end_is_no_error(experiment, monkeypatch, capsys):
    slept = []

    def ends_soon(seconds):
        slept.append(seconds)
        experiment.status(state="training" if len(slept) < 3 else "ended")

    monkeypatch.setattr(module.time, "sleep", ends_soon)
    assert main([str(experiment.folder)]) == EXIT_OK
    assert slept == [10.0] * 3 and capsys.readouterr().out.count("first ─") == 4
    experiment.status()
    with command(experiment.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith("first")
        process.stdout.close()
        process.send_signal(2)
        assert process.wait(20) == EXIT_INTERRUPTED and process.stderr.read() == ""


def test_a_run_that_tells_nothing_any_more_is_named_silent_unless_it_has_ended(experiment):
    run = WatchedRun(experiment.folder)
    experiment.status(time=1000.0)
    run.read()
    assert run.state(1004.0).silent_s == 0.0 and run.state(1042.0).silent_s == 42.0
    experiment.status(time=1000.0, state="ended")
    run.read()
    assert run.state(1042.0).silent_s == 0.0


def test_only_new_lines_are_read_and_each_once_it_is_whole(experiment, tmp_path):
    path = experiment.folder / "metrics.jsonl"
    lines = NewLines(path)
    assert list(lines.read()) == []
    experiment.point(1.0)
    experiment.point(2.0, end="")
    assert [json.loads(line)["env_frames"] for line in lines.read()] == [1]
    with path.open("a") as file:
        file.write("\n")
    assert [json.loads(line)["env_frames"] for line in lines.read()] == [2]
    assert list(lines.read()) == []
    path.rename(tmp_path / "aside")
    assert list(lines.read()) == []
    experiment.point(3.0)
    assert [json.loads(line)["env_frames"] for line in lines.read()] == [3], "a new file is read from its beginning"


def test_lines_that_are_no_points_are_passed_over(experiment):
    (experiment.folder / "metrics.jsonl").write_text(
        '{"policy": 0, "env\n[]\n{}\n{"policy":0,"env_frames":1,"a/b":"c"}\n'
    )
    experiment.point(4.0)
    run = WatchedRun(experiment.folder)
    run.read()
    assert run.state(0.0).returns == ((4.0,),)
    (experiment.folder / "status.json").unlink()
    run.read()
    assert run.state(0.0).snapshot.env_frames == 26192, "what was known stays"


def test_several_runs_are_below_each_other_each_with_its_share(experiment, tmp_path, capsys):
    other = Experiment(tmp_path / "second")
    other.status(env_frames=7)
    assert main([str(experiment.folder), str(other.folder), "--once"]) == EXIT_OK
    told = capsys.readouterr().out
    assert told.index("first ─") < told.index("26.19k") < told.index("second ─") < told.index("frames 7 ")
    runs = [WatchedRun(experiment.folder), WatchedRun(other.folder)]
    for run in runs:
        run.read()
    states = [run.state(time.time()) for run in runs] * 2
    for height in range(1, 40):
        lines = as_text(stacked(states, 60, height), 60, is_terminal=False)
        assert len(lines) <= height
        shown = sum("training" in line for line in lines)
        assert shown == (4 if height >= 12 else (height - 1) // 3)
        assert (f"and {4 - shown} more" in lines[-1]) == (shown < 4)


def test_a_frame_is_saved_as_a_picture(experiment, tmp_path, capsys):
    experiment.point(3.0)
    picture = tmp_path / "view.svg"
    assert main([str(experiment.folder), f"--svg={picture}"]) == EXIT_OK
    assert capsys.readouterr().out == f"{picture}\n"
    narrow = picture.read_text()
    assert narrow.startswith("<svg") and ">3.00<" in narrow.replace("&#160;", "")
    assert main([str(experiment.folder), f"--svg={picture}", "--width=120"]) == EXIT_OK
    pixels = [float(text.partition('viewBox="0 0 ')[2].split()[0]) for text in (narrow, picture.read_text())]
    assert pixels[1] > 1.4 * pixels[0]
    assert main([str(experiment.folder), f"--svg={tmp_path / 'none' / 'view.svg'}"]) == EXIT_REFUSED


def test_a_printed_frame_is_as_wide_as_asked(experiment, capsys):
    widths = []
    for words in ([], ["--width=60"], ["--width=120"]):
        assert main([str(experiment.folder), "--once", *words]) == EXIT_OK
        widths.append(max(map(len, capsys.readouterr().out.splitlines())))
    assert widths == [80, 60, 120]


def test_words_that_make_no_sense_are_refused_in_one_line(experiment, capsys):
    for words, part in (
        ([], "view: the following arguments are required: folder"),
        ([str(experiment.folder), "--once", "--width=5"], "a frame needs 20 columns or more"),
        ([str(experiment.folder), "--width=wide"], "invalid int value"),
    ):
        assert main(words) == EXIT_REFUSED
        told = capsys.readouterr()
        assert part in told.err and told.err.count("\n") == 1 and told.out == ""


@pytest.fixture
def locked():
    """Hold the lock of a folder as a run does."""
    locks = []
    yield lambda folder: locks.append(folder_lock.take(folder))
    for lock in locks:
        os.close(lock)


def test_a_run_that_starts_is_shown_before_it_has_told_anything(locked, tmp_path, capsys):
    locked(tmp_path / "new")
    assert main([str(tmp_path / "new"), "--once"]) == EXIT_OK
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("new ─") and first.endswith(" starting 0:00:00") and lines[0] == "frames 0"
    run = WatchedRun(tmp_path / "new")
    for _ in range(2):
        run.read()
        state = run.state(time.time())
        assert state.snapshot.time >= time.time() - 1.0 and state.silent_s == 0.0, "its lock tells that it lives"
        assert not run.has_ended


def test_a_run_that_starts_again_does_not_look_as_it_did_at_its_end(experiment, locked, capsys):
    experiment.status(state="ended", time=time.time() - 100.0)
    run = WatchedRun(experiment.folder)
    run.read()
    assert run.has_ended
    locked(experiment.folder)
    run.read()
    shown = run.state(time.time()).snapshot
    assert (shown.state, run.has_ended, shown.env_frames) == ("starting", False, 26192)
    experiment.status(time=time.time() + 1.0)
    run.read()
    assert run.state(time.time()).snapshot.state == "training"


def test_folders_without_a_run_are_refused_in_one_line(experiment, tmp_path, capsys):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "status.json").write_text("[]")
    for folder, part in (
        (
            tmp_path / "none",
            "none/status.json cannot be read (No such file or directory); there are bad, first; name the folder",
        ),
        (tmp_path / "none", "a run makes it once its checks are through"),
        (tmp_path, "holds bad, first"),
        (tmp_path / "bad", "is not what a run writes"),
        (experiment.folder / "status.json", "Not a directory"),
    ):
        assert main([str(experiment.folder), str(folder)]) == EXIT_REFUSED
        told = capsys.readouterr()
        assert part in told.err and told.err.count("\n") == 1 and told.out == ""
