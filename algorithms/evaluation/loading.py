"""From a checkpoint to a network that can play."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from appo.algorithms import checkpoints
from appo.algorithms.checkpoint_names import policy_folder
from appo.algorithms.checkpoints import Checkpoint, CheckpointError
from appo.algorithms.models.actor_critic import ActorCritic, build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.encoder_registry import require_encoder
from appo.envs.api import EnvSpec
from appo.utils.options import ConfigError

if TYPE_CHECKING:
    from appo.algorithms.train_config import TrainConfig

_KINDS = ("latest", "best")


class RestoredPolicy(NamedTuple):
    """A policy of an experiment with what it was trained for."""

    model: ActorCritic
    spaces: tuple[Any, Any]
    """Of observations and of actions, of one agent."""
    spec: EnvSpec
    checkpoint: Checkpoint
    config: TrainConfig


def restore_policy(folder: Path, *, policy: int = 0, kind: str = "latest", device: str = "cpu") -> RestoredPolicy:
    """A policy from the folder of its experiment.

    Args:
        folder: of the experiment.
        policy: which of several.
        kind: "latest" or "best" checkpoint; where no best one can be read, the latest with a warning in it.
        device: as --device has it.

    Raises:
        ConfigError: there is no such experiment, kind or device, no checkpoint that can be read, or its environment is
            not installed.
        EnvError: the environment, which is built to see its spaces, fails.
    """
    from appo.algorithms.config import resolve_evaluation
    from appo.envs.api import EnvContext
    from appo.envs.option_wrappers import env_of
    from appo.envs.registry import make_batch_env

    if kind not in _KINDS:
        raise ConfigError(f"kind={kind!r} is unknown; there are {', '.join(_KINDS)}")
    try:
        folder = folder.expanduser()
    except RuntimeError:
        raise ConfigError(f"{str(folder)!r}: there is no home folder of that user; name the whole path") from None
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no experiment: it has no config.json")
    # Absolute: of the folder that one stands in, the path `.` has no name.
    place = folder.absolute()
    try:
        config = resolve_evaluation([f"--experiment={place.name}", f"--train_dir={place.parent}"]).config
    except ConfigError as error:
        raise ConfigError(error.message) from error
    if not 0 <= policy < config.sampling.num_policies:
        last = config.sampling.num_policies - 1
        raise ConfigError(f"{folder} has no policy {policy}; it has {f'0 to {last}' if last else 'only 0'}")
    run = dataclasses.replace(config.run, device=str(device))
    run.check_combinations()
    on_device = run.torch_device
    require_encoder(config.model)
    batch = make_batch_env(env_of(config.env), config.family, [EnvContext(seed=0)])
    spec, spaces = batch.spec, batch.spaces
    batch.close()
    checkpoint = find_checkpoint(policy_folder(folder, policy), kind, config.run.save_best_metric)
    return RestoredPolicy(restore_model(checkpoint, config.model, spec, on_device), spaces, spec, checkpoint, config)


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
        raise ConfigError(error.message) from error
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
