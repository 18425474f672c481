"""Our own program as something to be measured: how it is started, its processes, and what it reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.run.config import METRICS_FILE, STATUS_FILE
from appo.utils.files import read_json_lines

FOR_EVER = "10000000000"
# What frameworks are compared in: batches of 1024, rollouts of 32, one epoch, one batch per iteration, on the CPU.
COMPARISON = (
    "--device=cpu --num_workers=2 --rollout=32 --batch_size=1024 --num_batches_per_iteration=1 --ppo_epochs=1 "
    "--num_minibatches_to_accumulate=-1"
)
TASKS = {
    "cartpole": (
        "--env=CartPole-v1 --num_envs_per_worker=64 --use_rnn=False --mlp_layers=512,512 --encoder_extra_fc_layers=0"
    ),
    # V-trace and plain returns: what its figures were measured with, and what costs least.
    "breakout": "--env=atari_breakout --num_envs_per_worker=8 --with_vtrace=True --normalize_returns=False",
    "doom_basic": "--env=doom_basic --num_envs_per_worker=8",
}
_WORKER_KINDS = ("actor", "policy", "learner")


class StatusFrames:
    """The frames in our `status.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> int:
        """None yet before the file is there."""
        return int(json.loads(self._path.read_text())["env_frames"]) if self._path.exists() else 0


class OurRun(NamedTuple):
    """One start of `train_appo.py` that goes on until it is stopped."""

    command: list[str]
    folder: Path

    @property
    def frames(self) -> StatusFrames:
        """Reads how many frames it has counted."""
        return StatusFrames(self.folder / STATUS_FILE)

    def stages(self, seconds: float) -> dict[str, float]:
        """Shares of each stage and batch sizes, `stats/` tags averaged over the points of the last seconds."""
        points = list(read_json_lines(self.folder / METRICS_FILE))
        newest = points[-1]["time"]
        # The last point is written while everything stops.
        recent: list[dict[str, Any]] = [point for point in points[:-1] if point["time"] >= newest - seconds] or points
        names = [name for name in recent[-1] if name.startswith("stats/")]
        return {name.removeprefix("stats/"): sum(p.get(name, 0.0) for p in recent) / len(recent) for name in names}


def our_run(options: Sequence[str], train_dir: Path, experiment: str = "ours") -> OurRun:
    """Our program with these options, in a folder of its own."""
    place = [f"--train_dir={train_dir}", f"--experiment={experiment}", f"--train_for_env_steps={FOR_EVER}"]
    return OurRun([sys.executable, "train_appo.py", *place, *options], train_dir / experiment)


def kind_of_ours(process: psutil.Process) -> str:
    """Our processes have titles, but bear their parent's name until they have set theirs."""
    name, parent = process.name(), process.parent()
    parent_name = parent.name() if parent else ""
    if name == parent_name:
        return "starting"
    if "vizdoom" in name:
        return "engine"
    if name == "appo driver":
        return "driver"
    kind = name.partition("-")[0]
    if kind in _WORKER_KINDS:
        return kind
    # The forkserver and the guardian are the driver's own children; `appo probe` looks at an environment.
    return "helpers" if parent_name == "appo driver" or name.startswith("appo") else "starting"
