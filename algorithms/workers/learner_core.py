"""A learner's core, without a process: full batches in, published weights and checkpoints out."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from algorithms import checkpoints
from algorithms.learning.batch import Batch
from algorithms.learning.learner import Learner
from algorithms.memory.collate import Staging, allocate_staging, observation_names
from algorithms.memory.counters import Tally, Timer, WorkerCounters
from algorithms.memory.layout import AnswerColumns, SharedArrays
from algorithms.memory.weights import WeightsBuffer
from algorithms.messages import (
    CheckpointFailed,
    CheckpointSaved,
    PolicyRestored,
    Report,
    SaveCheckpoint,
    TrainingReport,
)
from algorithms.models.actor_critic import build_actor_critic
from algorithms.models.parameters import flatten
from algorithms.workers.jobs import LearnerJob

log = logging.getLogger(__name__)


class LearnerCore:
    """Trains one policy on the batches it is given."""

    def __init__(self, arrays: SharedArrays, weights: WeightsBuffer, counters: WorkerCounters, job: LearnerJob) -> None:
        """Builds the network from the seed; `restore` may replace its weights."""
        torch.manual_seed(job.seed)
        self.job = job
        self._arrays = arrays
        self._weights = weights
        self._counters = counters
        self._device = torch.device(job.device)
        self._model = build_actor_critic(job.model, job.spec, self._device)
        assert self._model.state_size == arrays.sizes.state_size, "blocks hold another recurrent state than the model"
        self._flat = flatten(self._model)
        self._learner = Learner(
            self._model,
            job.learning,
            self._device,
            action_spec=arrays.sizes.actions,
            auxiliary_options=job.auxiliary_options,
            seed=job.seed,
            on_step=self._after_sgd_step,
        )
        self._columns = AnswerColumns.of(arrays.sizes.actions)
        # On the CPU the weights are published from where they lie.
        self._published = self._flat
        if self._device.type != "cpu":
            self._published = torch.empty(self._flat.shape, pin_memory=True)

    @property
    def policy_version(self) -> int:
        """Optimizer steps taken, over all runs."""
        return self._learner.num_updates

    def staging(self) -> Staging:
        """Arrays for one iteration's trajectories, in memory that the device can copy from quickly."""
        pin = self._device.type == "cuda"
        return allocate_staging(
            self._arrays,
            self.job.trajectories,
            lambda shape, dtype: torch.zeros(shape, dtype=_TORCH_DTYPES[dtype], pin_memory=pin).numpy(),
        )

    def restore(self) -> PolicyRestored:
        """Go on from the newest valid checkpoint, if there is any.

        Raises:
            CheckpointError: there are checkpoints and none can be read.
        """
        found = checkpoints.load_newest_valid(self.job.checkpoint_dir, self.job.load_kind)
        restored = PolicyRestored(self.job.policy, "", 0, {}, [])
        if found is not None:
            self._model.load_state_dict(found.payload["model"])
            self._learner.load_state_dict(found.payload["learner"])
            restored = PolicyRestored(
                self.job.policy, str(found.path), self.policy_version, found.payload["run_state"], found.warnings
            )
        self.publish()
        return restored

    def train(self, staging: Staging, *, with_metrics: bool = True) -> TrainingReport:
        """One iteration over a full batch; publishes what it learned, step by step."""
        progress = float(self._arrays["progress"][self.job.policy])
        batch = self._batch(staging)
        result = self._learner.train(batch, self.policy_version, progress, with_metrics=with_metrics)
        self._counters.count(Tally.LEARNER_BATCHES)
        self._counters.lap(Timer.LEARNER_TRAIN)
        return TrainingReport(self.job.policy, self.policy_version, result.metrics)

    def publish(self) -> None:
        """Hand the newest weights to the policy workers."""
        if self._published is not self._flat:
            self._published.copy_(self._flat)
        self._weights.publish(self._published.numpy(), self.policy_version)
        self._arrays["train_steps"][self.job.policy] = self.policy_version
        self._counters.lap(Timer.LEARNER_PUBLISH)

    def save(self, command: SaveCheckpoint) -> Report:
        """Write a checkpoint; a failure is reported, not raised."""
        payload: dict[str, Any] = {
            "model": self._model.state_dict(),
            "learner": self._learner.state_dict(),
            "run_state": command.run_state,
        }
        policy = self.job.policy
        try:
            path = checkpoints.save(
                self.job.checkpoint_dir,
                command.kind,
                self.policy_version,
                command.env_frames,
                payload,
                keep=self.job.keep_checkpoints,
                metric=command.metric,
            )
        except checkpoints.CheckpointError as error:
            log.error("%s", error)
            return CheckpointFailed(policy, command.kind, str(error), command.request)
        finally:
            self._counters.lap(Timer.LEARNER_SAVE)
        return CheckpointSaved(policy, command.kind, str(path), command.request)

    def _after_sgd_step(self, num_updates: int) -> None:
        """Publishing every step keeps the policy lag a third lower than once an iteration, at the same speed."""
        del num_updates
        self._counters.beat()
        self._counters.lap(Timer.LEARNER_TRAIN)
        self.publish()

    def _batch(self, staging: Staging) -> Batch:
        on_device = {name: self._move(torch.from_numpy(array)) for name, array in staging.arrays.items()}
        answers, columns = on_device["answers"], self._columns
        return Batch(
            observations={name: on_device[stored] for name, stored in observation_names(staging).items()},
            fresh=on_device["fresh"],
            final=on_device["final"],
            active=on_device["active"],
            own=on_device["policy_id"] == self.job.policy,
            recurrent_state=on_device["recurrent_state"],
            actions=answers[..., columns.actions],
            behaviour_log_prob=answers[..., columns.log_prob],
            behaviour_parameters=answers[..., columns.parameters],
            behaviour_value=answers[..., columns.value],
            policy_version=on_device["policy_version"],
            rewards=on_device["rewards"],
            terminated=on_device["terminated"],
        )

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)


_TORCH_DTYPES = {
    "u1": torch.uint8,
    "i4": torch.int32,
    "i8": torch.int64,
    "f4": torch.float32,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bool": torch.bool,
}
