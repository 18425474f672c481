"""A learner's core, without a process: full batches in, published weights and checkpoints out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from appo.algorithms import checkpoints
from appo.algorithms.checkpoint_names import OPPONENT
from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.learner import Learner
from appo.algorithms.memory.collate import Staging, allocate_staging, observation_names
from appo.algorithms.memory.counters import EventCounter, Timer, WorkerCounters
from appo.algorithms.memory.layout import AnswerColumns, SharedArrays
from appo.algorithms.memory.weights import PolicyBuffers, WeightsBuffer
from appo.algorithms.messages import (
    AdoptionRefused,
    AdoptPolicy,
    HyperparametersChanged,
    HyperparametersRefused,
    PolicyAdopted,
    PolicyRecovered,
    PolicyRestored,
    Report,
    SaveCheckpoint,
    SetHyperparameters,
    TrainingReport,
    TrainingRolledBack,
)
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.parameters import flatten
from appo.algorithms.workers import checkpoint_fit
from appo.algorithms.workers.checkpoint_writer import CheckpointFolder
from appo.algorithms.workers.jobs import LearnerJob
from appo.algorithms.workers.snapshots import LearnerSnapshot
from appo.utils.failpoints import failpoint
from appo.utils.options import ConfigError

log = logging.getLogger(__name__)
_PARTS = {
    "prepare": Timer.LEARNER_PREPARE,
    "loss": Timer.LEARNER_LOSS,
    "backward": Timer.LEARNER_BACKWARD,
    "optimize": Timer.LEARNER_OPTIMIZE,
}


class TrainingDiverged(RuntimeError):
    """Numbers are not finite, and returning to the last good ones has not helped."""

    retryable = False


class LearnerCore:
    """Trains one policy on the batches it is given."""

    def __init__(
        self,
        arrays: SharedArrays,
        weights: WeightsBuffer,
        snapshot: WeightsBuffer,
        counters: WorkerCounters,
        job: LearnerJob,
        between_minibatches: Callable[[], None] | None = None,
        buffers_of: Callable[[int], PolicyBuffers] | None = None,
    ) -> None:
        """Builds the network from the seed; `begin` may replace its weights.

        `snapshot`: for a successor. `buffers_of`: those of another policy, to adopt. `between_minibatches`: called when
        a checkpoint may be taken in the middle of an iteration; it may raise to abandon that, and all further training.
        """
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
            between_minibatches=self._after_minibatch,
            on_part=lambda part: counters.part(_PARTS[part]),
            uses_cuda_graphs=self._model.uses_cuda_graphs,
        )
        self._columns = AnswerColumns.of(arrays.sizes.actions)
        self._snapshot = LearnerSnapshot(snapshot, self._flat, self._learner)
        self._next_snapshot = 0.0
        self._has_rolled_back = False  # since the last snapshot
        self._rollbacks = 0
        self._between_minibatches = between_minibatches
        self._reports: list[Report] = []
        self._buffers_of = buffers_of
        self._pending: list[SetHyperparameters | AdoptPolicy] = []  # for the next iteration
        self._untold: list[Report] = []  # of changes that no snapshot has yet
        self.folder = CheckpointFolder(job.policy, job.checkpoint_dir, job.keep_checkpoints)
        # On the CPU the weights are published from where they lie.
        self._published = self._flat
        if self._device.type != "cpu":
            self._published = torch.empty(self._flat.shape, pin_memory=True)

    @property
    def policy_version(self) -> int:
        """Optimizer steps taken, over all runs."""
        return self._learner.policy_version

    def staging(self) -> Staging:
        """Arrays for one iteration's trajectories, in memory that the device can copy from quickly."""
        pin = self._device.type == "cuda"
        return allocate_staging(
            self._arrays,
            self.job.trajectories,
            lambda shape, dtype: torch.zeros(shape, dtype=_TORCH_DTYPES[dtype], pin_memory=pin).numpy(),
        )

    def begin(self) -> PolicyRestored | PolicyRecovered:
        """Go on where a lost predecessor was, or else as `restore` says.

        Raises:
            CheckpointError: there are checkpoints and none can be read.
        """
        if not self._snapshot.exists:
            return self.restore()
        recovered = self._recover()
        if self._arrays["policy_begun"][self.job.policy]:
            return recovered
        return self._restored(self._find())  # what the predecessor restored was lost before the driver heard of it

    def restore(self) -> PolicyRestored:
        """Go on from the newest valid checkpoint, if there is any.

        Raises:
            CheckpointError: there are checkpoints and none can be read, or it is of another network.
        """
        found = self._find()
        if found is not None:
            checkpoint_fit.require_fit(found, self._model.state_dict())
            try:
                self._model.load_state_dict(found.payload["model"])
                self._learner.load_state_dict(found.payload["learner"])
            except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
                raise checkpoints.CheckpointError(f"{found.path} does not fit the learner ({error!r})") from error
        self.publish()
        self.keep_snapshot()
        return self._restored(found)

    def train(self, staging: Staging, *, with_metrics: bool = True) -> TrainingReport:
        """One iteration over a full batch; publishes what it learned, step by step."""
        self._change_options()
        progress = float(self._arrays["progress"][self.job.policy])
        batch = self._batch(staging)
        rollbacks = self._rollbacks
        failpoint("learner-step")
        result = self._learner.train(batch, self.policy_version, progress, with_metrics=with_metrics)
        self._counters.count(EventCounter.LEARNER_BATCHES)
        self._counters.count(EventCounter.LEARNER_SKIPPED_STEPS, result.num_bad_steps)
        self._counters.lap(Timer.LEARNER_TRAIN)
        bad_in_a_row = self._learner.bad_steps_in_a_row
        if bad_in_a_row > self.job.max_bad_steps:
            self._roll_back(f"the loss or its gradient was not finite in {bad_in_a_row} optimizer steps in a row")
        elif bad_in_a_row == 0 and self._rollbacks == rollbacks and time.monotonic() >= self._next_snapshot:
            self.keep_snapshot()
        return TrainingReport(self.job.policy, self.policy_version, result.metrics)

    def set_hyperparameters(self, command: SetHyperparameters) -> None:
        """Use other options from the next iteration on, and tell when a successor would as well."""
        try:
            self._learner.checked(command.values)
        except ConfigError as error:
            self._reports.append(HyperparametersRefused(*command, str(error)))
        else:
            self._pending.append(command)

    def adopt_policy(self, command: AdoptPolicy) -> None:
        """Go on as another policy from the next iteration on, and tell when a successor would as well."""
        try:
            self._learner.checked(command.values)
        except ConfigError as error:
            self._refuse(command, str(error))
        else:
            self._pending.append(command)

    def _adopt(self, command: AdoptPolicy) -> None:
        """Read another policy's newest weights, and the rest from its snapshot; keep them as the own one, publish.

        Wherever the learner dies in this, its successor has the weights of one member: before the own snapshot holds
        what was adopted, the old one; from then on the new one, since its version is above that of the published
        weights.
        """
        if command.request > self._learner.adoption:
            assert self._buffers_of is not None
            source = self._buffers_of(command.source)
            try:
                self._learner.checked(command.values)  # again: others may have changed since it was asked for
                taken = self._snapshot.adopt(source.snapshot, command.values, command.request)
            except ConfigError as error:
                self._refuse(command, str(error))
                return
            except ValueError as error:
                self._refuse(command, f"policy {command.source} has nothing to copy yet ({error})")
                return
            self._read_newer(source.weights, taken)
            failpoint("adopt-read")
            self.keep_snapshot()
            failpoint("adopt-kept")
            self.publish()
        self._reports.append(
            PolicyAdopted(command.policy, command.source, command.values, self.policy_version, command.request)
        )

    def _refuse(self, command: AdoptPolicy, reason: str) -> None:
        self._reports.append(AdoptionRefused(command.policy, command.source, reason, command.request))

    def _change_options(self) -> None:
        """Between two iterations, where weights, moments and options can be kept together."""
        for command in self._pending:
            if isinstance(command, AdoptPolicy):
                self._adopt(command)
                continue
            try:
                self._learner.change(command.values)
            except ConfigError as error:  # with others that were changed before
                self._reports.append(HyperparametersRefused(*command, str(error)))
            else:
                self._untold.append(HyperparametersChanged(*command))
        self._pending.clear()
        if self._untold and self._learner.bad_steps_in_a_row == 0:
            self.take_snapshot()  # which does not say that the weights are better than those rolled back to
            self._reports += self._untold
            self._untold.clear()

    def keep_snapshot(self) -> None:
        """Let a successor go on from here, after an iteration whose numbers were finite."""
        self.take_snapshot()
        self._has_rolled_back = False

    def take_snapshot(self) -> None:
        """Keep what others may adopt, and a successor goes on from, as it is now."""
        self._snapshot.take()
        self._next_snapshot = time.monotonic() + self.job.snapshot_every_sec
        self._counters.lap(Timer.LEARNER_SAVE)

    def pop_reports(self) -> list[Report]:
        """What happened since the last call that the driver should know."""
        reports, self._reports = self._reports, []
        return reports

    def publish(self) -> None:
        """Hand the newest weights to the policy workers; weights that are not finite are rolled back first.

        Raises:
            TrainingDiverged: they were rolled back already, to no avail.
        """
        # One product instead of a look at every number; that one only where its squares overflow.
        squares = torch.dot(self._flat, self._flat)
        if self._published is not self._flat:
            self._published.copy_(self._flat)
        if not math.isfinite(float(squares)) and not bool(torch.isfinite(self._flat).all()):
            self._roll_back("a weight is not finite")
            return
        self._weights.publish(self._published.numpy(), self.policy_version)
        self._arrays["train_steps"][self.job.policy] = self.policy_version
        self._counters.lap(Timer.LEARNER_PUBLISH)

    def encode(self, command: SaveCheckpoint) -> checkpoints.Encoded:
        """Everything that a checkpoint holds, as it is now.

        Raises:
            CheckpointError: a number is not finite; what is on disk is worth more.
        """
        payload: dict[str, Any] = {"model": self._model.state_dict()}
        if command.kind != OPPONENT:
            payload["learner"] = self._learner.state_dict()
        bad = checkpoints.where_not_finite(payload, "checkpoint")
        if bad is not None:
            raise checkpoints.CheckpointError(
                f"policy {self.job.policy} is not saved at train step {self.policy_version}: {bad}; the older "
                "checkpoints are untouched"
            )
        if command.kind != OPPONENT:
            payload["run_state"] = command.run_state
        kind, metric, name = command.kind, command.metric, command.metric_name
        version, frames = self.policy_version, command.env_frames
        return checkpoints.encode(kind, version, frames, payload, metric=metric, metric_name=name)

    def save(self, command: SaveCheckpoint) -> Report:
        """Write a checkpoint now; a failure is reported, not raised."""
        try:
            return self.folder.write(command, self.encode(command))
        except checkpoints.CheckpointError as error:
            return self.folder.failed(command, str(error))
        finally:
            self._counters.lap(Timer.LEARNER_SAVE)

    def _after_sgd_step(self, policy_version: int) -> None:
        """Publishing every step keeps the policy lag a third lower than once an iteration, at the same speed."""
        del policy_version
        self._counters.lap(Timer.LEARNER_TRAIN)
        self.publish()

    def _after_minibatch(self) -> None:
        self._counters.beat()
        if self._between_minibatches is not None:
            self._between_minibatches()

    def _find(self) -> checkpoints.Checkpoint | None:
        """What this policy begins with; None: nothing, it is new."""
        return checkpoint_fit.find(self.job.checkpoint_dir, self.job.load_kind, self.job.best_metric)

    def _restored(self, found: checkpoints.Checkpoint | None) -> PolicyRestored:
        policy, version = self.job.policy, self.policy_version
        if found is None:
            return PolicyRestored(policy, "", version, {}, math.nan, [], {}, 0)
        best = checkpoints.best_metric(
            self.job.checkpoint_dir, self.job.best_metric, found, checkpoint_fit.why_unusable
        )
        state, values = found.payload["run_state"], self._learner.changed_options
        warnings, adoption = found.warnings, self._learner.adoption
        return PolicyRestored(policy, str(found.path), version, state, best, warnings, values, adoption)

    def _recover(self) -> PolicyRecovered:
        """Weights are those published last, the optimizer's moments those of the snapshot."""
        taken = self._snapshot.load(self._weights.version)
        self._read_newer(self._weights, taken)
        self.publish()
        return PolicyRecovered(self.job.policy, self.policy_version, taken)

    def _read_newer(self, weights: WeightsBuffer, taken: int) -> None:
        """Published weights that are not older than a snapshot of policy version `taken`, which was read before."""
        if weights.version >= taken:
            weights.read_into(self._published.numpy())
            if self._published is not self._flat:
                self._flat.copy_(self._published)

    def _roll_back(self, reason: str) -> None:
        """Return to the last good snapshot; the policy version goes on counting.

        Raises:
            TrainingDiverged: that was done already since it was taken.
        """
        if self._has_rolled_back or not self._snapshot.exists:
            raise TrainingDiverged(
                f"policy {self.job.policy}: {reason}, and so it was after returning to the last good weights; look for "
                f"extreme rewards or observations, or lower --learning_rate (now {self.job.learning.learning_rate:g})"
            )
        self._has_rolled_back = True
        self._rollbacks += 1
        options = self._learner.changed_options
        self._snapshot.load(self.policy_version)
        self._learner.change(options)  # newer than the snapshot
        self._learner.bad_steps_in_a_row = 0
        self._counters.count(EventCounter.LEARNER_ROLLBACKS)
        self._reports.append(TrainingRolledBack(self.job.policy, self.policy_version, reason))
        self.publish()

    def _batch(self, staging: Staging) -> Batch:
        on_device = {name: self._move(torch.from_numpy(array)) for name, array in staging.arrays.items()}
        answers, columns = on_device["answers"], self._columns
        return Batch(
            observations={name: on_device[stored] for name, stored in observation_names(staging).items()},
            is_first=on_device["is_first"],
            is_last=on_device["is_last"],
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
