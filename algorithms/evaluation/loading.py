"""From a checkpoint to a network that can play."""

from __future__ import annotations

from pathlib import Path

from appo.algorithms import checkpoints
from appo.algorithms.checkpoints import Checkpoint, CheckpointError
from appo.algorithms.models.actor_critic import ActorCritic, build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.envs.api import EnvSpec
from appo.utils.options import ConfigError


def find_checkpoint(folder: Path, kind: str, best_metric: str = "") -> Checkpoint:
    """The newest checkpoint of a policy that can be trusted.

    Args:
        folder: of the policy's checkpoints.
        kind: "latest" or "best".
        best_metric: by which the best was picked, where there is one by each of several.

    Raises:
        ConfigError: there is none yet, or none that can be read.
    """
    try:
        found = checkpoints.load_newest_valid(folder, kind, metric_name=best_metric)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    if found is None:
        raise ConfigError(f"there is no checkpoint in {folder} yet; train_appo.py writes one every --save_every_sec")
    return found


def restore_model(checkpoint: Checkpoint, config: ModelConfig, spec: EnvSpec, device: str = "cpu") -> ActorCritic:
    """The network of a checkpoint, on a device.

    Raises:
        ConfigError: its weights belong to another network than these options and this environment ask for.
    """
    weights = checkpoint.payload.get("model")
    if not isinstance(weights, dict):
        raise ConfigError(f"{checkpoint.path} holds no network; play one that train_appo.py has written")
    model = build_actor_critic(config, spec, device)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        _, _, mismatches = str(error).partition("\n")
        first = mismatches.strip().partition("\n")[0]
        raise ConfigError(
            f"{checkpoint.path} holds another network than these options ask for ({first}); leave out the options of "
            f"the model and of the environment that differ from training"
        ) from error
    return model
