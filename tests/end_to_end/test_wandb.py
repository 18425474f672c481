"""Runs with Weights & Biases: their points, and what happens when it fails."""

import json
import signal
import time

from tests.end_to_end.conftest import SMALL, Run
from tests.tools.wandb_files import kept_config, kept_ends, kept_points


def mirror_of(run: Run):
    """The process that sends; None before it has started, and after its end."""
    return next((process for title, process in run.tree().items() if "wandb" in title and "core" not in title), None)


def points_of(run: Run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def test_every_point_and_the_end_of_a_run_and_of_its_resume_are_kept(start, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    options = ["--with_wandb=True", "--wandb_project=cart", "--wandb_tags=a,b", "--experiment_summaries_interval=1"]
    first = start(*SMALL, *options, "--train_for_env_steps=20000")
    assert first.end() == 0 and "`wandb sync" in first.output
    second = start(*SMALL, *options, "--train_for_env_steps=40000")
    assert second.end() == 0
    kept = kept_points(second.folder)
    assert [point["env_frames"] for point in kept] == [point["env_frames"] for point in points_of(second)]
    assert kept_config(second.folder)["with_wandb"] is True
    assert kept_ends(second.folder) == [f"reached train_for_env_steps={frames}" for frames in (20000, 40000)]


def test_a_killed_mirror_is_told_of_once_and_costs_the_run_nothing(start, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = start(*SMALL, "--with_wandb=True", "--train_for_env_steps=100000000")
    run.wait_for_training()
    run.wait_for(lambda: mirror_of(run)).kill()
    run.wait_for(lambda: mirror_of(run) is None)
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames + 5000)
    run.signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM
    assert run.read().count("nothing more is sent") == 1


def test_an_unreachable_server_delays_neither_the_run_nor_its_end(start, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    run = start(*SMALL, "--with_wandb=True", "--train_for_env_steps=100000000")
    run.wait_for_training(frames=20_000)
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM and time.monotonic() - began < 10
    assert "`wandb sync`" in run.read() and (run.folder / "wandb").is_dir()
