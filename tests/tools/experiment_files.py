"""Folders of experiments with the files that a run would have written, and chosen numbers in them."""

import json

from appo.utils.files import JsonLines

DEFAULTS = {
    "experiment": "", "train_dir": "./train_dir", "seed": 0, "env": "CartPole-v1", "learning_rate": 0.001,
    "gamma": 0.99, "lr_schedule": "constant", "train_for_env_steps": 1000,
}  # fmt: skip


def write_experiment(place, name, points=(), *, typed=("env",), policy=0, **options):
    """`points`: frames, return; an hour for each 1000 frames."""
    folder = place / name
    folder.mkdir(parents=True)
    values = DEFAULTS | {"experiment": name} | options
    (folder / "config.json").write_text(json.dumps({"options": values, "typed": [*typed, *options]}))
    append_points(folder, points, policy)
    return folder


def append_points(folder, points, policy=0):
    lines = JsonLines(folder / "metrics.jsonl")
    for frames, value in points:
        point = {"policy": policy, "time": 0.0, "train_seconds": 3.6 * frames, "env_frames": frames}
        lines.append(point | {"0_aux/avg_reward": value, "0_aux/avg_len": 2.0 * value, "0_aux/_fps": 50.0})
    lines.close()


def write_status(folder, *, state="training", at=0.0, reason="", frames=0, returns=(None,)):
    """status.json, and summary.json where the run has ended for a reason."""
    policies = [{"env_frames": frames, "avg_reward": value} for value in returns]
    told = {"state": state, "time": at, "env_frames": frames, "train_seconds": 7200.0, "policies": policies}
    told["fps"] = {"10": 90.0, "60": 80.0}
    (folder / "status.json").write_text(json.dumps(told))
    if reason:
        (folder / "summary.json").write_text(json.dumps({"reason": reason}))
