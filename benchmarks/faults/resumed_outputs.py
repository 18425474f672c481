"""Does the policy that goes on from a checkpoint act as the one that was saved?"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from appo.algorithms.checkpoints import load_newest_valid
from appo.algorithms.config import resolve_evaluation
from appo.algorithms.evaluation.loading import find_checkpoint, restore_model
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.run.config import CONFIG_FILE
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.registry import make_batch_env
from benchmarks.faults.run_watch import last_line
from benchmarks.measuring import started
from benchmarks.ours import OurRun

POLICY = "checkpoint_p0"
NUM_ENVS, STEPS = 64, 8
MORE_FRAMES = 20_000  # that the resumed run plays: policy workers have to act with the weights as well
LIMIT_S = 60.0


def outputs_of(folder: Path) -> Tensor:
    """What the newest checkpoint of an experiment says in a few steps of its environment, from fixed seeds.

    Returns:
        [STEPS, rows, P + 1] parameters of the action distribution, and the value; environments follow its actions.
    """
    env = json.loads((folder / CONFIG_FILE).read_text())["options"]["env"]
    place = [f"--env={env}", f"--train_dir={folder.parent}", f"--experiment={folder.name}", "--device=cpu"]
    config = resolve_evaluation(place).config
    contexts = [EnvContext(env_id=i, num_envs=NUM_ENVS, seed=i) for i in range(NUM_ENVS)]
    batch = make_batch_env(env, config.family, contexts)
    try:
        model = restore_model(find_checkpoint(folder / POLICY, "latest"), config.model, batch.spec)
        rows = torch.arange(NUM_ENVS * batch.spec.agents_per_env)
        policy, arrays = PolicyInference(model, len(rows), "cpu", seed=1), step_arrays(batch.spec, NUM_ENVS)
        batch.reset(arrays)
        said = []
        for _ in range(STEPS):
            observations = {name: torch.from_numpy(array) for name, array in arrays.observations.items()}
            result = policy.act(rows, observations, torch.from_numpy(arrays.is_first), deterministic=True)
            said.append(torch.cat([result.parameters, result.values.unsqueeze(1)], 1))
            batch.step(result.actions.numpy().astype(np.float32), arrays)
    finally:
        batch.close()
    return torch.stack(said)


def what_differs(run: OurRun, log: Path) -> list[str]:
    """Let a copy of an experiment go on without learning until it has saved again; what is not as before, in words."""
    before = load_newest_valid(run.folder / POLICY)
    assert before is not None  # the caller has just seen it
    copy = run.folder.with_name(f"{run.folder.name}_resumed")
    shutil.copytree(run.folder, copy)
    try:
        frames = before.env_frames + MORE_FRAMES
        more = [f"--experiment={copy.name}", "--sampler_only=True", f"--train_for_env_steps={frames}"]
        with started([*run.command, *more], log) as (process, _):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LIMIT_S)
            code = process.returncode
        after = load_newest_valid(copy / POLICY)
        if code != 0 or after is None:
            return [f"it did not go on: exit code {code}; {last_line(log)}"]
        if after.env_frames < frames or after.train_step != before.train_step:
            return [f"it went on from train step {after.train_step} instead of {before.train_step}"]
        is_same = torch.equal(outputs_of(run.folder), outputs_of(copy))
        return [] if is_same else ["the policy that went on acts otherwise than the one that was saved"]
    finally:
        shutil.rmtree(copy)
