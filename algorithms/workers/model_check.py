"""Builds the networks of a run once before it starts: what cannot be built, or cannot act, is refused before that.

Runs in a process of its own, which has torch, as the driver has not. The learners build theirs anew.

Shape letters:  N = agent rows,  T = time steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from appo.algorithms.checkpoints import Checkpoint, CheckpointError
from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.learner import Learner
from appo.algorithms.models.actor_critic import ActorCritic, build_actor_critic, build_trunks
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.run_state import Spent
from appo.algorithms.specs import action_spec, observed
from appo.algorithms.workers import checkpoint_fit
from appo.algorithms.workers.jobs import ModelJob
from appo.envs.api import ObservationLeaf
from appo.envs.faults import FAILURES
from appo.envs.own_code import told
from appo.utils.files import require_file_size
from appo.utils.options import ConfigError

_ROWS, _STEPS = 2, 2
_MOST_COLUMNS = 8  # trajectories that an auxiliary loss is tried with
_BYTES = 4
_COPIES_PER_SNAPSHOT = 2 * 3  # two halves, each with both moments of the gradient
# Of what a policy needs: in its learner the weights, their gradient and two moments of it; two halves of what it
# publishes; its snapshot; a checkpoint that is being written.
_COPIES_PER_POLICY = 4 + 2 + _COPIES_PER_SNAPSHOT + 3
_COPIES_PER_POLICY_WORKER = 2  # as they were received, and as the layers multiply with them


def check_model(job: ModelJob) -> Spent:
    """Build, act, unroll; compare with the checkpoints that the run would go on from, and tell what these have spent.

    Raises:
        ConfigError: it cannot be; in one line.
    """
    with torch.random.fork_rng(devices=[]):  # the random numbers of a process that trains stay as they were
        _require_room(job)
        with _explained("built"):
            model = build_actor_critic(job.model, job.spec)
        _check_encoders(model)
        with _explained("trained"):
            _learner(model, job, job.learning)
        leaves, rng = observed(job.spec, job.model.critic_sees_time), np.random.default_rng(0)
        observations = _observations(leaves, _ROWS, rng)
        with _explained("applied to observations"), torch.no_grad():
            state = torch.zeros(_ROWS, model.state_size)
            is_first = torch.zeros(_STEPS, _ROWS, dtype=torch.uint8)
            model.unroll({name: torch.stack([value] * _STEPS) for name, value in observations.items()}, state, is_first)
        if job.learning.auxiliary_loss:
            _check_auxiliary_loss(model, job)
        own = {name: tensor.to("meta") for name, tensor in model.state_dict().items()}
        with _explained("used to act"):
            inference = PolicyInference(model, _ROWS, "cpu", seed=0)
            inference.act(torch.arange(_ROWS), observations, torch.ones(_ROWS, dtype=torch.uint8))
        spent = Spent()
        for folder in job.checkpoint_dirs:
            if found := _check_checkpoint(folder, job, own):
                spent = spent.with_policy(found.payload["run_state"])
        return spent


def _require_room(job: ModelJob) -> None:
    """Refuse weights that do not fit into memory, before there are any."""
    try:
        with torch.device("meta"):
            trunks = build_trunks(job.model, job.spec)
    except ConfigError:
        raise
    except (Exception, SystemExit):  # of a user's encoder, maybe only of tensors without numbers: building it tells
        return
    heads = trunks[0].output_size * action_spec(job.spec).num_parameters + trunks[-1].output_size
    numbers = sum(tensor.numel() for trunk in trunks for tensor in trunk.state_dict().values()) + heads
    copies = job.num_policies * (_COPIES_PER_POLICY + job.policy_workers * _COPIES_PER_POLICY_WORKER)
    copies += job.frozen_policies * _COPIES_PER_POLICY_WORKER
    needed_mb = numbers * _BYTES * copies / 1e6
    if needed_mb > job.available_mb:
        raise ConfigError(
            f"this run needs about {needed_mb:.0f} MB of networks, {copies} times {numbers / 1e6:.0f} million numbers, "
            f"and {job.available_mb:.0f} MB are available beside its rollouts and processes; lower hidden_size, "
            "rnn_num_layers, mlp_layers, num_policies or self_play_pool_size"
        )
    require_file_size(numbers * _BYTES * _COPIES_PER_SNAPSHOT)


def _check_encoders(model: ActorCritic) -> None:
    """Let each encoder be asked, from now on, whether it gives what it says."""
    for trunk in model.trunks:
        for encoder in trunk.encoder.encoders:
            encoder.register_forward_hook(_require_output_size)


def _require_output_size(encoder: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
    expected = (len(inputs[0]), encoder.output_size)
    shape = tuple(getattr(output, "shape", ()))
    if shape != expected:
        name = f"{type(encoder).__module__}:{type(encoder).__qualname__}"
        raise ConfigError(
            f"encoder={name!r} gave {shape} for {expected[0]} rows; expected {expected}, as its output_size says"
        )


def _learner(model: ActorCritic, job: ModelJob, learning: LearningConfig) -> Learner:
    return Learner(model, learning, "cpu", action_spec=action_spec(job.spec), auxiliary_options=job.auxiliary_options)


def _check_auxiliary_loss(model: ActorCritic, job: ModelJob) -> None:
    """Take one step from made-up trajectories without the loss, and one with it, which is a user's own code."""
    learning, name = job.learning, job.learning.auxiliary_loss
    columns = math.lcm(learning.batch_size, learning.rollout) // learning.rollout
    if columns > _MOST_COLUMNS:
        columns = _MOST_COLUMNS
        learning = dataclasses.replace(learning, batch_size=columns * learning.rollout)
    learning = dataclasses.replace(learning, num_batches_per_iteration=1, ppo_epochs=1)
    with _explained("trained"):
        batch = _made_up_batch(model, job, learning, columns)
        plain = dataclasses.replace(job, auxiliary_options=None)
        _learner(model, plain, dataclasses.replace(learning, auxiliary_loss="")).train(batch, 0, 0.0)
    learner = _learner(model, job, learning)
    try:
        learner.train(batch, 0, 0.0)
    except FAILURES as error:
        raise ConfigError(
            f"auxiliary_loss={name!r} failed with a made-up batch before the start: {told(error)}"
        ) from error


def _made_up_batch(model: ActorCritic, job: ModelJob, learning: LearningConfig, columns: int) -> Batch:
    """Trajectories of random observations in which the policy acts and every reward is 1."""
    steps = learning.rollout
    leaves, rng = observed(job.spec, job.model.critic_sees_time), np.random.default_rng(0)
    observations = [_observations(leaves, columns, rng) for _ in range(steps + 1)]
    stacked = {name: torch.stack([row[name] for row in observations]) for name in observations[0]}
    is_first = torch.zeros(steps + 1, columns, dtype=torch.uint8)
    is_first[0] = 1
    with torch.no_grad():
        output = model.unroll(stacked, torch.zeros(columns, model.state_size), is_first)
        parameters = output.parameters[:steps]
        actions = model.distribution.sample(parameters)
        log_prob = model.distribution.log_prob(parameters, actions)
    return Batch(
        observations=stacked,
        is_first=is_first,
        is_last=torch.zeros_like(is_first),
        active=torch.ones_like(is_first),
        own=torch.ones_like(is_first, dtype=torch.bool),
        recurrent_state=torch.zeros(steps // learning.rows_per_chunk, columns, model.state_size),
        actions=actions,
        behaviour_log_prob=log_prob,
        behaviour_parameters=parameters,
        behaviour_value=torch.zeros(steps, columns),
        policy_version=torch.zeros(steps, columns, dtype=torch.int64),
        rewards=torch.ones(steps, columns),
        terminated=torch.zeros(steps, columns, dtype=torch.uint8),
    )


def _observations(leaves: tuple[ObservationLeaf, ...], rows: int, rng: np.random.Generator) -> dict[str, Tensor]:
    """Random numbers [N, ...] as a policy worker gathers them, images with their channels last; masks allow all."""
    observations = {}
    for leaf in leaves:
        if leaf.kind == "image":
            channels, height, width = leaf.shape
            image = torch.from_numpy(_random(leaf, (rows, height, width, channels), rng))
            observations[leaf.name] = image.permute(0, 3, 1, 2)
        else:
            observations[leaf.name] = torch.from_numpy(_random(leaf, (rows, *leaf.shape), rng))
    return observations


def _random(leaf: ObservationLeaf, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    if leaf.kind == "mask":
        return np.ones(shape, leaf.dtype)
    if np.issubdtype(leaf.dtype, np.floating):
        return rng.random(shape).astype(leaf.dtype)
    upper = {"image": 256, "categorical": leaf.num_categories}.get(leaf.kind, 2)
    return rng.integers(0, upper, shape).astype(leaf.dtype)


def _check_checkpoint(folder: Path, job: ModelJob, own: dict[str, Tensor]) -> Checkpoint | None:
    try:
        found = checkpoint_fit.find(folder, job.load_kind, job.best_metric)
        if found is not None:
            checkpoint_fit.require_fit(found, own)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    return found


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Whatever a user's own encoder raises, in one line that says where."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the network of these options cannot be {what}: {told(error)}") from error
