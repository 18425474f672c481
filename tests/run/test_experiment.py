"""An experiment's folder: created, resumed, moved aside or replaced, by one process at a time."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import types

import pytest

from appo import train_appo
from appo.algorithms.config import resolve
from appo.algorithms.run import experiment as module
from appo.algorithms.run import folder_lock, session
from appo.algorithms.run.config import MOVED_ASIDE
from appo.algorithms.run.experiment import LOG_BYTES, Experiment
from appo.algorithms.train_config import from_json
from appo.utils.cli import VERSION
from appo.utils.options import ConfigError
from tests.reporting.reporting_cases import Clock

ARGV = ["train_appo.py", "--experiment=a b"]


def resolved(tmp_path, *words):
    return resolve(["--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=first", *words])


def open_and_close(tmp_path, *words):
    """A start that works."""
    experiment = Experiment.open(resolved(tmp_path, *words), ARGV)
    experiment.accept()
    experiment.close()
    return experiment


def start_in_vain(tmp_path, *words):
    """A start that ends before it trains."""
    experiment = Experiment.open(resolved(tmp_path, *words), ARGV)
    experiment.close()
    return experiment


def test_without_a_repository_the_version_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SOURCE_FOLDER", tmp_path)
    assert module._git_state() == f"no git repository; appo {VERSION}\n"


def test_a_new_experiment_has_its_folders_and_its_record(tmp_path):
    config = resolved(tmp_path, "--num_policies=2", "--gamma=0.5")
    experiment = Experiment.open(config, ARGV)
    assert experiment.folder == tmp_path / "first" and not experiment.config_file.exists()
    experiment.accept()
    assert from_json(experiment.config_file.read_text()) == config.config
    assert "gamma" in json.loads(experiment.config_file.read_text())["typed"]
    assert experiment.command_lines_file.read_text().endswith("  train_appo.py '--experiment=a b'\n")
    assert experiment.git_diff_file.read_text().startswith(("commit ", "no git repository"))
    assert experiment.log_file("driver") == tmp_path / "first" / "log" / "driver.txt"
    for folder in ("log", "checkpoint_p0", "checkpoint_p1", ".summary/0", ".summary/1"):
        assert (tmp_path / "first" / folder).is_dir()
    assert experiment.checkpoint_dir(1) == tmp_path / "first" / "checkpoint_p1"
    assert experiment.summary_dir(1) == tmp_path / "first" / ".summary" / "1"
    assert experiment.starts == 0
    experiment.close()
    experiment.close()


def test_experiments_root_lies_below_the_train_dir(tmp_path):
    assert open_and_close(tmp_path, "--experiments_root=group").folder == tmp_path / "group" / "first"


def test_resume_keeps_what_is_there_and_records_the_new_start(tmp_path):
    first = open_and_close(tmp_path, "--gamma=0.5")
    (first.folder / "checkpoint_p0" / "kept").touch()
    first.summary_file.touch()
    second = start_in_vain(tmp_path, "--learning_rate=0.5")
    assert from_json(second.config_file.read_text()).learning.learning_rate != 0.5  # it may not fit what is there
    second.accept()
    assert (first.folder / "checkpoint_p0" / "kept").exists()
    assert not second.summary_file.exists()  # it told how the first start ended
    config = from_json(second.config_file.read_text())
    assert (config.learning.gamma, config.learning.learning_rate) == (0.5, 0.5)
    assert {"gamma", "learning_rate"} <= set(json.loads(second.config_file.read_text())["typed"])
    assert second.starts == 1
    assert len(second.command_lines_file.read_text().splitlines()) == 2


def test_restart_moves_the_old_folder_aside_each_time(tmp_path):
    open_and_close(tmp_path)
    for number in range(3):
        (tmp_path / "first" / f"mark{number}").touch()
        again = open_and_close(tmp_path, "--restart_behavior=restart")
        assert again.starts == 0
        assert again.moved_to is not None and (again.moved_to / f"mark{number}").exists()
    moved = [path for path in tmp_path.iterdir() if path.name != "first"]
    assert len(moved) == 3
    names = [MOVED_ASIDE.fullmatch(path.name) for path in moved]
    assert [name and name["name"] for name in names] == ["first"] * 3
    assert {mark.name for path in moved for mark in path.glob("mark*")} == {"mark0", "mark1", "mark2"}
    assert not list((tmp_path / "first").glob("mark*"))


def test_overwrite_of_nothing_deletes_nothing(tmp_path):
    assert not open_and_close(tmp_path, "--restart_behavior=overwrite").was_emptied


def test_restart_of_nothing_makes_nothing_to_move(tmp_path):
    assert open_and_close(tmp_path, "--restart_behavior=restart").moved_to is None
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_overwrite_deletes_the_old_experiment_only(tmp_path):
    folder = open_and_close(tmp_path).folder
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (folder / "link").symlink_to(outside)
    (folder / "checkpoint_p0" / "old").touch()
    (folder / "notes.txt").touch()
    again = open_and_close(tmp_path, "--restart_behavior=overwrite")
    assert again.starts == 0 and again.was_emptied
    assert not (folder / "checkpoint_p0" / "old").exists()
    assert not (folder / "notes.txt").exists()
    assert (outside / "precious").exists()


def test_overwrite_refuses_a_folder_that_is_no_experiment(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"holds no config\.json, so it may not be an experiment and is not deleted"):
        open_and_close(tmp_path, "--restart_behavior=overwrite")
    assert (tmp_path / "first" / "thesis.txt").exists()


TRAINS = """
import sys
from appo.algorithms.config import resolve
from appo.algorithms.run.experiment import Experiment
experiment = Experiment.open(resolve(sys.argv[1:]), sys.argv)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path):
    """Another live process that trains in the same folder."""
    words = ["--env=CartPole-v1", f"--train_dir={tmp_path}", "--experiment=first"]
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(TRAINS), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline() == b"open\n"
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize("behavior", ["resume", "restart", "overwrite"])
def test_a_folder_in_which_another_process_trains_is_refused_untouched(tmp_path, other_process, behavior):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "first").rglob("*") if path.is_file()}
    config = resolved(tmp_path, f"--restart_behavior={behavior}")
    with pytest.raises(ConfigError, match=f"another process .process {other_process.pid} on .* trains in .*first"):
        Experiment.open(config, ARGV)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "first").rglob("*") if path.is_file()}
    assert after == before
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_folder_in_which_another_process_trains_is_refused_before_anything_else(
    tmp_path, other_process, monkeypatch, capsys
):
    """No tuning, no check of the environment: the command ends where its words have been read."""
    monkeypatch.setattr(session, "train", lambda *_: pytest.fail("the lock was not looked at"))
    for name in ("signals.StopSignals", "processes.end_with_caller"):  # of a process of its own
        monkeypatch.setattr(f"appo.utils.{name}", lambda: types.SimpleNamespace(received=None))
    place = [f"--train_dir={tmp_path}", "--experiment=first", "--env=CartPole-v1"]
    for more in ([], ["--autotune"]):
        assert train_appo.main(["train_appo.py", *place, *more]) == 2
        told = capsys.readouterr().err
        assert f"error: another process (process {other_process.pid} on" in told and told.count("\n") == 1


def test_a_free_folder_is_looked_at_without_being_made(tmp_path):
    folder_lock.require_free(tmp_path / "first")
    assert not list(tmp_path.iterdir())
    folder = open_and_close(tmp_path).folder
    folder_lock.require_free(folder)
    with contextlib.closing(Experiment.open(resolved(tmp_path), ARGV)), pytest.raises(ConfigError, match="another"):
        folder_lock.require_free(folder)


def test_the_lock_vanishes_with_its_process_however_it_ends(tmp_path, other_process):
    os.kill(other_process.pid, signal.SIGKILL)
    other_process.wait()
    assert open_and_close(tmp_path).starts == 1


def test_one_process_locks_its_own_folder_against_itself(tmp_path):
    experiment = Experiment.open(resolved(tmp_path), ARGV)
    with pytest.raises(ConfigError, match="another process"):
        Experiment.open(resolved(tmp_path), ARGV)
    experiment.close()
    open_and_close(tmp_path)


def test_a_failure_while_opening_releases_the_lock(tmp_path):
    config = resolved(tmp_path)
    (tmp_path / "first" / "log").parent.mkdir()
    (tmp_path / "first" / "log").touch()
    with pytest.raises(ConfigError, match=r"cannot be used: .*log"):
        Experiment.open(config, ARGV)
    (tmp_path / "first" / "log").unlink()
    open_and_close(tmp_path)


def test_what_vanishes_is_made_again_locked_and_can_be_resumed(tmp_path, caplog):
    open_and_close(tmp_path)
    experiment = Experiment.open(resolved(tmp_path, "--num_policies=2", "--gamma=0.5"), ARGV)
    experiment.accept()
    shutil.rmtree(experiment.folder)
    experiment.restore_missing()
    assert "git.diff was missing from" in caplog.text and len(caplog.records) == 1
    assert from_json(experiment.config_file.read_text()).learning.gamma == 0.5
    assert all((experiment.folder / name).is_dir() for name in ("log", "checkpoint_p0", "checkpoint_p1", ".summary/1"))
    with pytest.raises(ConfigError, match="another process"):
        open_and_close(tmp_path)
    experiment.restore_missing()  # nothing is missing any more
    assert len(caplog.records) == 1
    experiment.close()
    assert open_and_close(tmp_path).starts == 2  # so the third start draws other random numbers than the first two


def test_only_what_is_missing_is_written_again(tmp_path):
    experiment = Experiment.open(resolved(tmp_path), ARGV)
    experiment.accept()
    experiment.git_diff_file.write_text("mine")
    experiment.config_file.unlink()
    experiment.restore_missing()
    assert experiment.config_file.exists() and experiment.git_diff_file.read_text() == "mine"
    experiment.close()


def test_options_that_found_no_room_are_written_when_there_is_some(tmp_path, monkeypatch):
    """Although older ones lie there: a resume would begin from those."""
    open_and_close(tmp_path, "--gamma=0.5")
    experiment = Experiment.open(resolved(tmp_path, "--gamma=0.25"), ARGV)

    def is_full(path, text):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(module, "atomic_write_text", is_full)
        experiment.accept()
    assert from_json(experiment.config_file.read_text()).learning.gamma == 0.5
    experiment.restore_missing()
    assert from_json(experiment.config_file.read_text()).learning.gamma == 0.25
    experiment.close()


def test_a_folder_that_cannot_be_made_again_is_told_once_and_tried_again(tmp_path, caplog):
    experiment = Experiment.open(resolved(tmp_path), ARGV)
    shutil.rmtree(experiment.folder)
    experiment.folder.touch()
    for _ in range(3):
        experiment.restore_missing()
    [record] = caplog.records
    assert "first could not be written" in record.getMessage() and "goes on without it" in record.getMessage()
    experiment.folder.unlink()
    experiment.restore_missing()
    assert experiment.command_lines_file.exists() and not experiment.config_file.exists()
    experiment.accept()
    assert experiment.config_file.exists()
    experiment.close()


def test_a_folder_that_another_process_made_its_own_is_left_to_it(tmp_path, caplog):
    mine = Experiment.open(resolved(tmp_path, "--gamma=0.5"), ARGV)
    mine.folder.rename(tmp_path / "moved")
    theirs = Experiment.open(resolved(tmp_path, "--gamma=0.25"), ARGV)
    theirs.accept()
    (theirs.folder / "git.diff").unlink()
    mine.restore_missing()
    assert "was taken away from this run: another process" in caplog.text
    assert not theirs.git_diff_file.exists()
    assert from_json(theirs.config_file.read_text()).learning.gamma == 0.25
    mine.close()
    theirs.close()


def test_options_that_were_refused_do_not_take_the_place_of_those_in_the_folder(tmp_path):
    before = open_and_close(tmp_path, "--hidden_size=32").config_file.read_text()
    assert start_in_vain(tmp_path, "--hidden_size=64").config_file.read_text() == before
    assert resolved(tmp_path).config.model.hidden_size == 32


def test_every_log_is_bounded_with_its_newest_part_beside_it(tmp_path, monkeypatch):
    clock, experiment = Clock(), open_and_close(tmp_path)
    monkeypatch.setattr(module, "time", clock)
    logs = {experiment.log_file(name): size for name, size in (("driver", LOG_BYTES + 1), ("actor-00", 100))}
    for path, size in logs.items():
        path.write_bytes(b"x" * (size - 1) + b"y")
    experiment.maintain_files()
    assert {path.name: path.stat().st_size for path in experiment.log_dir.iterdir()} == {
        "driver.txt": 0, "driver.old.txt": LOG_BYTES, "actor-00.txt": 100
    }  # fmt: skip
    assert (experiment.log_dir / "driver.old.txt").read_bytes().endswith(b"xy")
    experiment.log_file("driver").write_bytes(b"z" * (LOG_BYTES + 1))
    experiment.maintain_files()
    assert experiment.log_file("driver").stat().st_size == LOG_BYTES + 1  # looked at a moment ago
    clock.now += 1.0
    experiment.maintain_files()
    assert experiment.log_file("driver").stat().st_size == 0
    shutil.rmtree(experiment.log_dir)
    clock.now += 1.0
    experiment.maintain_files()  # nothing there to bound


def test_options_of_a_first_start_that_never_trained_are_not_what_the_next_one_begins_from(tmp_path):
    folder = start_in_vain(tmp_path, "--hidden_size=64", "--seed=7").folder
    assert {"command_lines.txt", "git.diff", "log"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "config.json").exists()
    corrected = resolved(tmp_path, "--gamma=0.5")
    assert not corrected.resumed and "hidden_size" not in corrected.typed
    experiment = Experiment.open(corrected, ARGV)
    assert experiment.starts == 1  # so other random numbers are drawn than the first time
    experiment.accept()
    assert from_json(experiment.config_file.read_text()) == corrected.config
    experiment.close()


@pytest.mark.parametrize(
    "options, is_proven",
    [([], True), (["--train_for_env_steps=7", "--save_every_sec=1"], True), (["--gamma=0.5"], False)],
)
def test_options_that_an_earlier_start_trained_with_are_proven_whatever_the_run_s_end(tmp_path, options, is_proven):
    first = Experiment.open(resolved(tmp_path), ARGV)
    assert not first.is_proven
    first.accept()
    first.close()
    again = Experiment.open(resolved(tmp_path, *options), ARGV)
    assert again.is_proven == is_proven
    again.close()


@pytest.mark.parametrize("behavior", ["restart", "overwrite"])
def test_a_start_that_never_trained_can_be_moved_aside_or_overwritten(tmp_path, behavior):
    folder = start_in_vain(tmp_path).folder
    (folder / "mark").touch()
    assert open_and_close(tmp_path, f"--restart_behavior={behavior}").starts == 0
    assert not (folder / "mark").exists()
