"""Runs whose files cannot be written for a while, or vanish: they go on, say so once, and save again when they can."""

from __future__ import annotations

import json
import os
import resource
import signal
import time

import psutil

from appo.algorithms import checkpoints
from appo.algorithms.run.driver import SAVE_S
from appo.algorithms.train_config import from_json
from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import SMALL


def warnings_of(run, *words):
    return [line for line in run.read().splitlines() if all(word in line for word in words)]


def newest(folder):
    found = checkpoints.list_checkpoints(folder)
    return found[0].name if found else ""


def wait_for_frames(run, more):
    before = run.status()["env_frames"]
    run.wait_for(lambda: run.status().get("env_frames", 0) >= before + more)


def test_a_run_outlives_a_checkpoint_folder_that_is_none_and_an_experiment_folder_that_vanishes(start, tmp_path):
    run = start(*SMALL, "--save_every_sec=0.5", "--gamma=0.9")
    folder = run.folder / "checkpoint_p0"
    run.wait_for_training()
    run.wait_for(lambda: newest(folder))

    folder.rename(tmp_path / "aside")
    folder.touch()
    before = newest(tmp_path / "aside")
    time.sleep(1.5)
    wait_for_frames(run, 2000)
    assert newest(tmp_path / "aside") == before
    folder.unlink()
    (tmp_path / "aside").rename(folder)
    run.wait_for(lambda: newest(folder) > before)

    before = newest(folder)
    run.folder.rename(tmp_path / "gone")
    run.wait_for(lambda: run.status() and newest(folder) > before)
    wait_for_frames(run, 2000)
    run.signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM, run.output

    assert len(warnings_of(run, "checkpoint_p0", "could not be written", "older checkpoints are untouched")) == 1
    assert len(warnings_of(run, "was missing from", "is there again")) == 1
    saved = run.saved()
    assert saved.env_frames == run.status()["env_frames"] and not saved.warnings
    assert from_json((run.folder / "config.json").read_text()).learning.gamma == 0.9
    assert list(read_json_lines(run.folder / "metrics.jsonl")) and list((run.folder / ".summary" / "0").iterdir())


def test_a_last_checkpoint_that_cannot_be_written_is_the_last_line_and_the_exit_code(start):
    run = start(*SMALL)
    run.wait_for_training()
    folder = run.folder / "checkpoint_p0"
    folder.rmdir()
    folder.touch()
    run.signal(signal.SIGTERM)
    assert run.end() == 1
    last_line = run.output.strip().splitlines()[-1]
    assert "run failed: the last checkpoint could not be written: " in last_line and str(folder) in last_line


def test_a_slow_disk_is_waited_for_at_the_end_of_a_budget(start, monkeypatch):
    monkeypatch.setenv("APPO_FAILPOINTS", "checkpoint-before-fsync=stop@1")
    run = start(*SMALL, "--train_for_env_steps=3000")

    def stopped():
        learner = run.tree().get("learner-0")
        return learner is not None and learner.status() == psutil.STATUS_STOPPED

    run.wait_for(stopped)
    time.sleep(SAVE_S + 1.0)
    run.kill("learner-0", signal.SIGCONT)
    assert run.end() == 0, run.output
    assert "the last checkpoint is still being written" in run.output
    assert run.saved().env_frames == run.status()["env_frames"]


def test_a_full_disk_costs_the_driver_its_numbers_and_nothing_else(start):
    run = start(*SMALL)
    run.wait_for_training()
    run.wait_for(lambda: (run.folder / "metrics.jsonl").exists())
    driver = run.tree()["appo driver"]
    before = driver.rlimit(resource.RLIMIT_FSIZE)
    driver.rlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    time.sleep(0.5)
    frozen, lines = run.status(), len(list(read_json_lines(run.folder / "metrics.jsonl")))
    time.sleep(3.0)
    assert run.status() == frozen  # so it could not be written indeed
    assert len(list(read_json_lines(run.folder / "metrics.jsonl"))) == lines
    driver.rlimit(resource.RLIMIT_FSIZE, before)
    run.wait_for(lambda: run.status()["env_frames"] > frozen["env_frames"])
    run.wait_for(lambda: len(list(read_json_lines(run.folder / "metrics.jsonl"))) > lines)
    run.signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM, run.output
    for kind in ("status.json", "metrics.jsonl", "TensorBoard events"):
        assert len(warnings_of(run, f"{kind} could not be written", "training goes on without it")) == 1


def test_options_of_another_network_are_refused_and_those_of_the_experiment_stay_in_force(start):
    run = start(*SMALL, "--mlp_layers=32", "--train_for_env_steps=5000")
    assert run.end() == 0, run.output
    kept = [run.folder / "config.json", *run.folder.rglob("*.pth")]
    before = {path: path.read_bytes() for path in kept}
    for mode in ("--serial_mode=False", "--serial_mode=True"):
        wrong = start("--mlp_layers=32,32", "--train_for_env_steps=9000", mode)
        assert wrong.end() == 2
        last_line = wrong.output.strip().splitlines()[-1]
        assert "is of another network" in last_line and "--mlp_layers" in last_line
        assert {path: path.read_bytes() for path in [kept[0], *run.folder.rglob("*.pth")]} == before


def test_a_resume_passes_over_what_is_no_file_and_what_keeps_no_usable_state_of_the_run(start):
    serial = ("--serial_mode=True", "--num_workers=1", "--num_envs_per_worker=4", "--worker_num_splits=2", "--seed=1")
    run = start(*serial, "--device=cpu", "--train_for_env_steps=3000")
    assert run.end() == 0, run.output
    folder = run.folder / "checkpoint_p0"
    good = run.saved()
    state = good.payload["run_state"]
    payload = good.payload | {"run_state": state | {"serial": {"environments": [1, 2]}}}
    checkpoints.save(folder, "latest", good.train_step, good.env_frames + 1, payload)
    payload = good.payload | {"run_state": state | {"episodes": {"finished": -5}}}
    checkpoints.save(folder, "latest", good.train_step, good.env_frames + 2, payload)
    os.mkfifo(folder / f"checkpoint_{good.train_step + 9:012d}_{good.env_frames + 9:015d}.pth")
    again = start(*serial, "--train_for_env_steps=5000")
    assert again.end() == 0, again.output
    assert len(warnings_of(again, "it is no regular file")) == 1
    assert len(warnings_of(again, "cannot be resumed from: run_state['episodes']")) == 1
    assert len(warnings_of(again, "random numbers are drawn anew")) == 1
    assert f"({state['env_frames']} env frames)" in again.output
    assert run.saved().env_frames >= 5000


def test_the_best_checkpoint_survives_a_kill_and_a_change_of_the_metric(start):
    options = (*SMALL, "--use_rnn=False", "--stats_avg=5", "--save_best_after=0", "--save_best_every_sec=0.2")
    run = start(*options, "--save_every_sec=10000")
    folder = run.folder / "checkpoint_p0"
    run.wait_for(lambda: checkpoints.list_checkpoints(folder, "best"))
    run.wait_for_training(frames=5000)
    run.signal(signal.SIGKILL)
    run.end()
    assert not checkpoints.list_checkpoints(folder)
    best = run.saved()
    assert best.metric_name == "reward"

    again = start(*options, "--save_best_metric=len", f"--train_for_env_steps={best.env_frames + 5000}")
    assert again.end() == 0, again.output
    assert f"goes on from {best.path}" in again.output
    by_metric = {checkpoints.load(path).metric_name: path for path in checkpoints.list_checkpoints(folder, "best")}
    assert by_metric["reward"] == best.path and "len" in by_metric
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["best"] == [checkpoints.load(by_metric["len"]).metric]
