"""Whether a learner can go on from a checkpoint that was verified: it holds everything, and is of the same network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from appo.algorithms import run_state
from appo.algorithms.checkpoints import OR_BEGIN_ANEW, REMEDY, Checkpoint, CheckpointError, load_newest_valid

# What a training checkpoint holds besides the run state.
_PARTS = {"model": dict, "learner": dict}
# Part of a network -> what decides about its shapes.
_SHAPED_BY = {
    "encoder": "--encoder, --mlp_layers, --hidden_size, --encoder_extra_fc_layers, --use_spectral_norm, "
    "--actor_critic_share_weights, --critic_sees_time, or what the environment observes",
    "core": "--use_rnn, --rnn_type, --rnn_num_layers, --hidden_size, --actor_critic_share_weights, --critic_sees_time",
    "policy_head": "--hidden_size, --adaptive_stddev, or the actions of the environment",
    "value_head": "--hidden_size",
    "preprocessor": "--normalize_input, --critic_sees_time, or what the environment observes",
    "returns_normalizer": "--normalize_returns",
}


def why_unusable(found: Checkpoint) -> str:
    """What keeps a run from going on with the driver's part of a checkpoint, in words; empty when nothing does."""
    return run_state.why_unusable(found.payload.get("run_state"))


def find(folder: Path, kind: str, best_metric: str) -> Checkpoint | None:
    """The checkpoint that a policy goes on from, see `checkpoints.load_newest_valid`; None: there is none at all.

    Raises:
        CheckpointError: there are checkpoints, and none can be used.
    """
    return load_newest_valid(folder, kind, metric_name=best_metric, why_unusable=why_unusable)


def require_fit(found: Checkpoint, own: Mapping[str, torch.Tensor]) -> None:
    """Refuse a checkpoint of another network than the one whose tensors are `own`.

    Raises:
        CheckpointError: names the first tensor that differs, and the options that decide about it.
    """
    for part, kind in _PARTS.items():
        if not isinstance(found.payload.get(part), kind):
            told = f"{found.path} holds no {part!r}, so training cannot go on from it; {REMEDY}"
            raise CheckpointError(told, OR_BEGIN_ANEW)
    saved = found.payload["model"]
    for name in dict.fromkeys([*own, *saved]):  # each once, in the order of the network
        theirs, ours = _shape(saved, name), _shape(own, name)
        if theirs != ours:
            options = next((options for part, options in _SHAPED_BY.items() if part in name), "the model's")
            raise CheckpointError(
                f"{found.path} is of another network: {name} is {theirs} there and {ours} with the options in force; "
                f"compare {options}. Nothing was changed; leave out the options that differ from training, or {REMEDY}",
                OR_BEGIN_ANEW,
            )


def _shape(tensors: Mapping[str, Any], name: str) -> str:
    if name not in tensors:
        return "missing"
    return str(tuple(tensors[name].shape)) if isinstance(tensors[name], torch.Tensor) else "no tensor"
