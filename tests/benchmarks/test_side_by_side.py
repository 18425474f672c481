"""Beside another framework: what is read from logs, the table, how each side is started, and what is refused."""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.measuring import Measurement, MeasurementError, Usage, markdown
from benchmarks.ours import TASKS, StatusFrames, kind_of_ours
from benchmarks.speed import side_by_side
from benchmarks.speed.side_by_side import (
    PEERS,
    PEERS_TASKS,
    LoggedNumber,
    Round,
    as_json,
    main,
    ours,
    sample_factory,
    stable_baselines3,
    summarise,
)

SAMPLE_FACTORY_LINE = (
    "\x1b[36m[2026-01-31 12:00:{second:02d},123][0815] Fps is (10 sec: 1638.4, 60 sec: nan, 300 sec: nan). "
    "Total num frames: {frames}. Throughput: 0: 400.1. Samples: 999999. Policy #0 lag: (min: 0.0, avg: 1.2, max: 3.0)"
    "\x1b[0m\n"
)


def measurement(fps, mb=100.0, cores=1.5, first=2.0):
    return Measurement(fps, 30.0, first, {"actor": Usage(2, 30.0 * cores, cores, mb)}, mb)


@pytest.fixture
def frameworks(tmp_path):
    """A Python that finds modules of the peers' names, and reports a version for them."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 2.1.1\n")
    python.chmod(0o755)
    return python


@pytest.fixture
def runs(monkeypatch):
    """What would have been measured, one after the other; nothing is started."""
    started, results = [], [measurement(40.0), measurement(10.0), measurement(60.0), measurement(20.0)]

    def fake(name, program, folder, seconds):
        started.append((name, program, folder, seconds))
        return results[len(started) - 1]

    monkeypatch.setattr(side_by_side, "run", fake)
    return started


def refused(argv, capsys):
    """The one line of the error."""
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_frames_are_the_last_that_a_coloured_log_tells(tmp_path):
    program = sample_factory("cartpole", tmp_path, tmp_path / "python", False)
    log = tmp_path / "log.txt"
    log.write_text("\x1b[37m[2026][0815] Worker 1 uses CPU cores [1]\x1b[0m\n")
    assert program.frames() == 0
    with log.open("a") as file:
        for second, frames in enumerate((0, 4096, 12288)):
            file.write(SAMPLE_FACTORY_LINE.format(second=second, frames=frames))
        file.flush()
        assert program.frames() == 12288
        file.write("\x1b[36mAvg episode reward: [(0, '21.3')]\x1b[0m\n")
        file.flush()
        assert program.frames() == 12288


def test_a_number_of_which_digits_are_missing_is_not_read_yet(tmp_path):
    log = tmp_path / "log.txt"
    frames = LoggedNumber(log, r"frames: (\d+)")
    with log.open("w") as file:
        file.write("frames: 512\nframes: 10")
        file.flush()
        assert frames() == 512
        file.write("24\n")
        file.flush()
        assert frames() == 1024


def test_only_a_line_of_its_own_tells_the_frames_of_stable_baselines3(tmp_path):
    program = stable_baselines3("breakout", tmp_path, tmp_path / "python", False)
    (tmp_path / "log.txt").write_text("Using cpu device\nframes: 2048\nwarning about frames: 7\n")
    assert program.frames() == 2048


def test_our_frames_are_those_of_the_status_once_it_is_there(tmp_path):
    frames = StatusFrames(tmp_path / "status.json")
    assert frames() == 0
    (tmp_path / "status.json").write_text(json.dumps({"env_frames": 77, "policies": []}))
    assert frames() == 77


@pytest.mark.parametrize(
    ("name", "parent", "kind"),
    [
        ("appo driver", "bash", "driver"),
        ("python", "appo driver", "helpers"),  # forkserver, guardian
        ("appo probe", "python", "helpers"),
        ("python", "python", "starting"),  # forked a moment ago
        ("python", "bash", "starting"),  # the driver before it has set its title
        ("actor-00", "python", "actor"),
        ("policy-0-0", "python", "policy"),
        ("learner-0", "python", "learner"),
        ("actor-00", "actor-00", "starting"),  # an engine to be
        ("vizdoom", "actor-00", "engine"),
        ("vizdoom", "appo driver", "engine"),  # its actor has died
    ],
)
def test_our_processes_are_told_apart_by_their_titles(name, parent, kind):
    process = SimpleNamespace(name=lambda: name, parent=lambda: SimpleNamespace(name=lambda: parent))
    assert kind_of_ours(process) == kind


def test_the_table_holds_medians_and_ratios_of_runs_that_were_neighbours():
    rounds = [
        Round(measurement(400, mb=50), measurement(100, mb=200)),
        Round(measurement(900, mb=60), measurement(300, mb=240)),
        Round(measurement(500, mb=55, cores=1.75), measurement(200, mb=100, first=8.26)),
    ]
    speed, memory, cores, start = summarise(rounds)
    assert speed == ["frames per second", "500 (400 .. 900)", "200 (100 .. 300)", "2.50 (2.50 .. 4.00)"]
    assert memory[1:] == ["55 (50 .. 60)", "200 (100 .. 240)", "0.28 (0.25 .. 0.55)"]
    assert cores[1:] == ["1.50 (1.50 .. 1.75)", "1.50 (1.50 .. 1.50)", ""]
    assert start[1:] == ["2.0 (2.0 .. 2.0)", "2.0 (2.0 .. 8.3)", ""]
    assert markdown(["a", "b"], [["1", ""]]) == "| a | b |\n| --- | --- |\n| 1 |  |"


def test_the_file_holds_every_number():
    (entry,) = as_json([Round(measurement(4.0), measurement(1.0))])
    again = json.loads(json.dumps(entry))
    assert again["ours"]["frames_per_second"] == 4.0
    assert again["peer"]["usage"]["actor"] == {"processes": 2, "cpu_seconds": 45.0, "cores": 1.5, "peak_mb": 100.0}
    assert again["peer"]["cores"] == 1.5


def test_ours_and_the_peer_take_turns_and_the_rest_of_the_line_is_ours(tmp_path, frameworks, runs, capsys):
    out = tmp_path / "out.json"
    argv = ["--peer=sample-factory", f"--peer_python={frameworks}", "--env=breakout", "--rounds=2", "--seconds=7"]
    assert main([*argv, f"--out={out}", "--precision=bf16", "--", "--seed=3"]) == 0
    assert [name for name, *_ in runs] == ["ours", "sample-factory"] * 2
    assert len({folder for _, _, folder, _ in runs}) == 4  # no run finds another's files
    assert {seconds for *_, seconds in runs} == {7.0}
    for _, program, _, _ in runs[0::2]:
        assert program.command[:2] == [sys.executable, "train_appo.py"]
        assert program.command[-2:] == ["--precision=bf16", "--seed=3"]  # last, so they win
    for _, program, _, _ in runs[1::2]:
        assert program.command[0] == str(frameworks)
        assert not {"--precision=bf16", "--seed=3"} & set(program.command)
    printed = capsys.readouterr().out
    assert "| frames per second | 50 (40 .. 60) | 15 (10 .. 20) | 3.33 (3.00 .. 4.00) |" in printed
    assert "Sample Factory 2.1.1" in printed
    written = json.loads(out.read_text())
    assert [pair["ours"]["frames_per_second"] for pair in written["rounds"]] == [40.0, 60.0]
    assert written["peer_version"] == "2.1.1" and written["options"] == ["--precision=bf16", "--seed=3"]


@pytest.mark.parametrize("peer", PEERS)
def test_sampling_alone_is_asked_of_both(peer, frameworks, runs):
    argv = [f"--peer={peer}", f"--peer_python={frameworks}", "--env=cartpole", "--rounds=1"]
    assert main([*argv, "--sampler_only"]) == 0
    (_, mine, *_), (_, theirs, *_) = runs
    assert mine.command[-1] == "--sampler_only=True"
    assert "--sampler_only" in theirs.command or theirs.command[1].endswith("sample_factory_sampler.py")


@pytest.mark.parametrize("task", TASKS)
def test_the_sampler_of_sample_factory_alone_has_the_configuration_of_its_training(task, tmp_path):
    training, alone = (sample_factory(task, tmp_path, tmp_path / "python", alone).command for alone in (False, True))
    assert alone[2] == task and alone[3:] == training[2:]
    source = Path(alone[1]).read_text()
    folder, _, module = PEERS_TASKS[task].sample_factory_examples.rpartition(".")
    assert f'"{task}": ({module}.' in source and f"from {folder} import {module}\n" in source


@pytest.mark.parametrize("task", TASKS)
def test_both_are_given_the_same_configuration(task, tmp_path):
    def value(words, *names):
        return {word.partition("=")[2] for word in words for name in names if word.startswith(f"--{name}=")}

    mine = ours(task, tmp_path, []).command
    theirs = sample_factory(task, tmp_path, tmp_path / "python", False).command
    same = ("num_workers", "num_envs_per_worker", "rollout", "batch_size", "device", "train_for_env_steps")
    pairs = [(name, name) for name in same]
    pairs += [("num_batches_per_iteration", "num_batches_per_epoch"), ("ppo_epochs", "num_epochs")]
    for our_name, their_name in pairs:
        assert len(value(mine, our_name)) == 1, our_name
        assert value(mine, our_name) == value(theirs, their_name), our_name


def test_the_workers_of_sample_factory_register_the_games_and_train_nothing(tmp_path):
    """They run the file under another name than `__main__`."""
    program = Path(sample_factory("breakout", tmp_path, tmp_path / "python", False).command[1])
    register, examples, start = ast.parse(program.read_text()).body
    assert ast.unparse(register) == "import ale_py"
    assert ast.unparse(examples) == "from sf_examples.atari.train_atari import main"
    assert isinstance(start, ast.If)
    assert ast.unparse(start.test) == "__name__ == '__main__'" and ast.unparse(start.body[-1]) == "main()"


def test_the_options_for_ours_are_understood(tmp_path):
    from appo.algorithms.config import reference

    known = reference()
    names = {word.partition("=")[0] for task in TASKS for word in ours(task, tmp_path, []).command[2:]}
    assert len(names) > 10
    assert not [name for name in names if f"`{name}`" not in known and name != "--env"]


def test_the_first_failure_ends_it_with_the_reason(frameworks, monkeypatch, capsys):
    def fake(*_, **__):
        raise MeasurementError("the program ended with 2")

    monkeypatch.setattr(side_by_side, "measure", fake)
    assert main([f"--peer_python={frameworks}", "--env=cartpole"]) == 1
    assert capsys.readouterr().err == "side_by_side: ours: the program ended with 2\n"


def test_a_task_that_the_peer_does_not_have_is_refused_with_those_it_has(frameworks, capsys):
    error = refused(["--peer=stable-baselines3", f"--peer_python={frameworks}", "--env=doom_basic"], capsys)
    assert "doom_basic" in error and "cartpole, breakout" in error


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--rounds=0"], "at least one round"),
        (["--seconds=-1"], "at least one round of some seconds"),
        (["--seconds=nan"], "at least one round of some seconds"),
        (["--out=/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["precision=bf16"], "precision=bf16: options of ours are typed --name=value"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(options, reason, frameworks, runs, capsys):
    assert reason in refused([f"--peer_python={frameworks}", "--env=cartpole", *options], capsys)
    assert not runs


@pytest.mark.parametrize("peer", PEERS)
def test_a_python_without_the_framework_is_refused_with_the_page_that_tells_how(peer, runs, capsys):
    error = refused([f"--peer={peer}", f"--peer_python={sys.executable}", "--env=cartpole"], capsys)
    assert f"cannot import {PEERS[peer].module}" in error and "No module named" in error
    assert "docs/benchmarks.md" in error
    assert not runs


def test_a_path_that_is_no_program_is_refused(tmp_path, capsys):
    text, broken = tmp_path / "text", tmp_path / "broken"
    text.write_text("not executable")
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    for path in (tmp_path / "missing", tmp_path, text):
        error = refused([f"--peer_python={path}", "--env=cartpole"], capsys)
        assert "is not a program" in error and "docs/benchmarks.md" in error
    assert "cannot be run" in refused([f"--peer_python={broken}", "--env=cartpole"], capsys)
