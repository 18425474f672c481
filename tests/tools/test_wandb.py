"""Experiments at Weights & Biases, kept on disk: every point once, by the names that metrics.jsonl has."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from appo.algorithms.run import folder_lock, wandb_mirror
from appo.algorithms.run.wandb_mirror import Account, Mirror, follow
from appo.tools.arguments import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED
from appo.tools.wandb import main
from tests.architecture.source_tree import ROOT
from tests.tools.experiment_files import append_points, write_experiment, write_status
from tests.tools.wandb_files import kept_config, kept_points


def send(*words, **environment):
    """The command in a process of its own, as Weights & Biases leaves processes and handlers behind."""
    command = [sys.executable, "-m", "appo.tools.wandb", *map(str, words)]
    given = os.environ | {"WANDB_MODE": "offline"} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given, timeout=120, check=False)


def test_every_point_is_sent_once_with_its_frames(tmp_path):
    folder = write_experiment(tmp_path, "first", [(100, 1.0), (200, 2.0)], learning_rate=0.5)
    write_status(folder, reason="reached train_for_env_steps=200", state="ended")
    done = send(folder)
    assert done.returncode == EXIT_OK and "`wandb sync" in done.stdout, done.stderr
    assert kept_config(folder)["learning_rate"] == 0.5
    append_points(folder, [(300, 3.0)])
    assert send(folder).returncode == EXIT_OK
    sent = [(point["env_frames"], point["0_aux/avg_reward"]) for point in kept_points(folder)]
    assert sent == [(100, 1.0), (200, 2.0), (300, 3.0)]


def test_policies_of_a_population_have_names_of_their_own(tmp_path):
    folder = write_experiment(tmp_path, "many", [(100, 1.0)], num_policies=2)
    append_points(folder, [(50, 7.0)], policy=1)
    write_status(folder, reason="done", state="ended")
    assert send(folder).returncode == EXIT_OK
    first, second = kept_points(folder)
    assert first["policy_00/0_aux/avg_reward"] == 1.0 and first["policy_00/env_frames"] == 100
    assert second["policy_01/0_aux/avg_reward"] == 7.0 and second["policy_01/env_frames"] == 50


def test_a_run_that_is_followed_can_be_left_and_goes_on_being_sent(tmp_path):
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    write_status(folder, at=time.time() + 1000.0)
    lock = folder_lock.take(folder)
    command = [sys.executable, "-m", "appo.tools.wandb", str(folder)]
    environment = os.environ | {"WANDB_MODE": "offline"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    try:
        assert process.stdout is not None and "`wandb sync" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
        os.close(lock)
    assert (
        process.returncode == EXIT_INTERRUPTED and told.strip() == "wandb: interrupted; the same command sends the rest"
    )
    write_status(folder, reason="done", state="ended")
    append_points(folder, [(200, 2.0)])
    assert send(folder).returncode == EXIT_OK
    assert [point["env_frames"] for point in kept_points(folder)] == [100, 200]


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path):
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    write_status(folder, reason="done", state="ended")
    (folder / wandb_mirror.STATE_FILE).mkdir()
    done = send(folder)
    assert done.returncode == EXIT_FAILED and done.stderr.startswith("wandb: "), done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_begun_before_there_are_options(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    (folder / "config.json").rename(folder / "later")
    waits = iter([False, True])
    follow(Mirror(folder, Account("appo"), print), lambda _: next(waits))
    assert not (folder / wandb_mirror.STATE_FILE).exists()


def test_without_a_network_points_are_kept_and_the_user_is_told(tmp_path):
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    write_status(folder, reason="done", state="ended")
    program = (
        "import sys\nfrom appo.algorithms.run import wandb_mirror\nwandb_mirror.CONNECT_S = 2.0\n"
        "from appo.tools.wandb import main\nsys.exit(main(sys.argv[1:]))"
    )
    unreachable = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | unreachable,
        timeout=120,
        check=False,
    )
    assert done.returncode == EXIT_OK and time.monotonic() - began < 60, done.stderr
    assert "cannot be reached" in done.stdout and "`wandb sync" in done.stdout
    assert [point["env_frames"] for point in kept_points(folder)] == [100]


def test_who_has_not_logged_in_is_told_how(tmp_path):
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    write_status(folder, reason="done", state="ended")
    done = send(folder, WANDB_MODE="online", HOME=str(tmp_path), NETRC=str(tmp_path / "none"), WANDB_API_KEY="")
    assert done.returncode != EXIT_OK and "wandb login" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--project"], ["nowhere"], []])
def test_wrong_words_are_refused_in_one_line(tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert main(words) == EXIT_REFUSED
    told = capsys.readouterr().err
    assert told.startswith("wandb: ") and told.count("\n") == 1


def test_a_missing_package_is_refused_with_the_command_that_installs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([str(write_experiment(tmp_path, "first"))]) == EXIT_REFUSED
    assert "pip install wandb" in capsys.readouterr().err


def test_lines_that_a_crash_has_cut_are_passed_over(tmp_path):
    folder = write_experiment(tmp_path, "first", [(100, 1.0)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"policy": 0, "env_fr\n[]\n' + json.dumps({"policy": 0, "env_frames": 200, "a/b": None}) + "\n")
    write_status(folder, reason="done", state="ended")
    assert send(folder).returncode == EXIT_OK
    assert [point["env_frames"] for point in kept_points(folder)] == [100, 200]
