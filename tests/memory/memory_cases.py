"""Small shared arrays, and actors and learners that hand each other blocks whose content can be recognised."""

from __future__ import annotations

import gc
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from appo.algorithms.memory.layout import SharedArrays, Sizes
from appo.algorithms.specs import ActionSpec, TensorSpec
from appo.envs.api import ActionLeaf

OBSERVATIONS = {"obs": TensorSpec((2,), "float32"), "pixels": TensorSpec((1, 2, 3), "uint8")}
ACTIONS = ActionSpec((ActionLeaf("discrete", 3), ActionLeaf("continuous", 2)))
ROW_ARRAYS = ("obs/obs", "obs/pixels", "is_first", "is_last", "active", "policy_id")
STEP_ARRAYS = ("rewards", "terminated", "answers", "policy_version")  # of those that a learner reads
PRIVATE_MOUNTS = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])


def small_sizes(policies: int = 1, frozen: int = 0, **changes) -> Sizes:
    """Every size differs from the others, as far as it can, so that no two axes can be confused.

    `policies` learn, and as many more as are `frozen` only act.
    """
    return Sizes(
        actors=2,
        splits=3,
        blocks=2,
        rollout=4,
        recurrence=2,
        rows=5,
        acting_policies=policies + frozen,
        learning_policies=policies,
        processes=7,
        state_size=3,
        observations=OBSERVATIONS,
        actions=ACTIONS,
    )._replace(**changes)


def shared(**changes) -> SharedArrays:
    return SharedArrays.create(small_sizes(**changes))


def fill_with_noise(arrays: SharedArrays, names, cell, rng: np.random.Generator) -> None:
    """Numbers that fit every dtype and differ from their neighbours."""
    for name in names:
        target = arrays[name][cell]
        target[...] = rng.integers(0, 200, target.shape)


def open_descriptors() -> int:
    gc.collect()  # what earlier tests left to the collector goes now, not while somebody counts
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped_files_with_a_name() -> set[str]:
    """What this process maps and a stranger could find by name, libraries aside: it would stay after a kill."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    folders = ("/dev/shm/", tempfile.gettempdir() + "/")
    return {path for path in paths if path.startswith(folders) and Path(path).exists()}


def private_mounts() -> list[str] | None:
    """How this user starts a program that may mount what only it sees; None: not at all."""
    for command in PRIVATE_MOUNTS if shutil.which("unshare") else ():
        mount = [*command, "sh", "-c", "mount -t tmpfs -o size=64k none /dev/shm"]
        if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            return command
    return None
