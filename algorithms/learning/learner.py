"""The learner of one policy: batches in, better weights out. Knows no process, no file and no environment.

One iteration consumes one batch: it is cut into minibatches, each of them makes one optimizer step, several times over
when there are several epochs. Order of events within an iteration:

1. Masks, discounts and scaled rewards are derived once.
2. Without V-trace, returns and advantages are fixed under the weights the iteration begins with. With V-trace each
   minibatch derives them from its own forward pass, so that its ratios are those of the weights being changed.
3. Each optimizer step is one new policy version.
4. Normalisers of observations and returns take in the batch at the end. So on weights that have not changed the ratio
   is exactly 1, and what is published last is what the next iteration begins with. A row counts if the first epoch's
   step on its minibatch was finite: what made a step non-finite would stay in the running statistics for ever, but the
   other minibatches have moved the weights, and the statistics follow the same data. The units of values are set by the
   first batch before anything is learned from it, so that no loss has the size of the rewards.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from appo.algorithms.learning.adam import Adam
from appo.algorithms.learning.auxiliary_loss import load, loss_options
from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig, changed, changing_options
from appo.algorithms.learning.gradients import Gradients
from appo.algorithms.learning.metrics import (
    ContinuousColumns,
    adam_metrics,
    batch_metrics,
    minibatch_metrics,
    ratio_range,
    to_floats,
)
from appo.algorithms.learning.minibatches import (
    Chosen,
    Minibatch,
    check_batch,
    columns_with,
    num_minibatches,
    put_together,
    split,
    whole_batch,
    with_estimates,
)
from appo.algorithms.learning.objective import AuxiliaryTerm, Objective, collected_returns, estimate_ahead
from appo.algorithms.learning.protocols import Model
from appo.algorithms.learning.schedules import LearningRate
from appo.algorithms.specs import ActionSpec
from appo.utils.options import ConfigError


class IterationResult(NamedTuple):
    """What one iteration did."""

    metrics: dict[str, float]  # tags without the `train/` prefix, every value finite; empty when not asked for
    num_sgd_steps: int  # optimizer steps taken, not counting skipped ones
    num_bad_steps: int  # steps skipped because the loss or its gradient was not finite


class _Change(NamedTuple):
    """Of one option, see `Learner.change`."""

    value: float  # in force
    base: float | None  # which the learner began with


class _Step(NamedTuple):
    """What is kept of a minibatch after its backward pass; its observations and activations are not."""

    columns: Tensor  # [M]
    valid: Tensor  # [R, M]
    log_ratio: Tensor  # [R, M]
    value_targets: Tensor  # [R, M]
    grad_norm: float
    kl: float  # may be NaN where nobody asked for it
    is_sound: bool  # loss and gradient are finite
    was_taken: bool
    metrics: dict[str, Tensor]  # of the last minibatch of an iteration that is described, else empty


class Learner:
    """Owns the optimizer, the schedule and the order of minibatches; the model is the caller's."""

    def __init__(
        self,
        model: Model,
        config: LearningConfig,
        device: torch.device | str,
        *,
        action_spec: ActionSpec | None = None,
        auxiliary_options: Any = None,
        seed: int = 0,
        on_step: Callable[[int], None] | None = None,
        between_minibatches: Callable[[], None] | None = None,
        on_part: Callable[[str], None] | None = None,
        uses_cuda_graphs: bool = False,
    ) -> None:
        """Prepare to train.

        Args:
            model: already on the device.
            config: may be exchanged later.
            device: where the model and every batch are.
            action_spec: tells which actions are continuous, for their statistics.
            auxiliary_options: an instance of the auxiliary loss's own config; None: its defaults.
            seed: of the order of minibatches.
            on_step: called with the policy version to publish the weights: after each optimizer step but the last of
                an iteration, and at the end of each iteration.
            between_minibatches: called after each minibatch, also one whose step is skipped, and after `on_step`. May
                raise to abandon the iteration; the learner is of no further use then.
            on_part: called with "prepare" when an iteration is prepared, and for each minibatch with "loss", "backward"
                and "optimize" when these are done, for those who measure time. On a GPU most of the work is only handed
                over by then; "backward" waits for it.
            uses_cuda_graphs: compute gradients as CUDA graphs, see `gradients`.
        """
        self.config = config
        self._model = model
        self._device = torch.device(device)
        self._on_step = on_step
        self._between_minibatches = between_minibatches or (lambda: None)
        self._on_part = on_part or (lambda part: None)
        self._columns = ContinuousColumns(action_spec)
        self._auxiliary_options = loss_options(config.auxiliary_loss, auxiliary_options)
        self._auxiliary = _bind_auxiliary(config.auxiliary_loss, self._auxiliary_options)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._gradients = Gradients(model, self._weights, self._device, uses_cuda_graphs=uses_cuda_graphs)
        self._schedule = LearningRate(config)
        self._optimizer = Adam(self._weights)
        self._apply_config()
        self._generator = torch.Generator().manual_seed(seed)
        self._policy_version = 0
        self._version_floor = 0  # rows of older policy versions are another policy's, see `adopt`
        self._adoption = 0  # the request that it was adopted for
        self._changed_options: dict[str, _Change] = {}
        self.bad_steps_in_a_row = 0
        """Steps skipped since the last one taken because the loss or its gradient was not finite."""

    @property
    def policy_version(self) -> int:
        """Optimizer steps behind the weights: the policy version."""
        return self._policy_version

    def set_config(self, config: LearningConfig) -> None:
        """Follow other hyperparameters from the next iteration on; the optimizer keeps its moments.

        Raises:
            ValueError: the auxiliary loss differs, which needs a new learner.
        """
        if config.auxiliary_loss != self.config.auxiliary_loss:
            raise ValueError(
                f"auxiliary_loss cannot change from {self.config.auxiliary_loss!r} to {config.auxiliary_loss!r} "
                f"while training; start the run again with it"
            )
        self.config = config
        self._schedule.set_config(config)
        self._apply_config()

    @property
    def changed_options(self) -> dict[str, float]:
        """Options whose values differ from those that the learner began with, see `change`."""
        return {name: change.value for name, change in self._changed_options.items()}

    def change(self, values: Mapping[str, float]) -> None:
        """Follow other values of some options from the next iteration on. They are part of `state_dict`.

        Raises:
            ConfigError: they cannot be in force, see `checked`.
        """
        if not values:
            return
        config, auxiliary = self.checked(values)
        for name, value in values.items():
            self._changed_options[name] = _Change(value, self._base_of(name))
        self.set_config(config)
        self._auxiliary_options = auxiliary
        self._auxiliary = _bind_auxiliary(config.auxiliary_loss, auxiliary)

    def checked(self, values: Mapping[str, float]) -> tuple[LearningConfig, Any]:
        """The options, and those of the auxiliary loss, that `change` would put in force.

        Raises:
            ConfigError: they cannot be, see `config.changed`.
        """
        return changed(self.config, self._auxiliary_options, values)

    @property
    def adoption(self) -> int:
        """Number of the newest request that `adopt` was called for; 0: never."""
        return self._adoption

    def adopt(self, state: Mapping[str, Any], values: Mapping[str, float], request: int) -> None:
        """Go on as another learner, whose weights and moments lie in the model and the optimizer already.

        The policy version goes on counting, and what older versions have chosen is not learned from.

        Args:
            state: the other learner's `state_dict`, of which the schedule is taken.
            values: options from now on, see `change`.
            request: see `adoption`.

        Raises:
            ConfigError: these values cannot be in force; call `checked` before.
        """
        self.change(values)
        self._schedule.load_state_dict(state["schedule"])
        self._policy_version += 1
        self._version_floor = self._policy_version
        self._adoption = request
        self.bad_steps_in_a_row = 0

    def train(
        self, batch: Batch, policy_version: int, progress: float, *, with_metrics: bool = True
    ) -> IterationResult:
        """Take every gradient step that the configuration makes of one batch.

        Args:
            batch: `num_batches_per_iteration * batch_size` steps, on the learner's device.
            policy_version: of the weights now; the lag of a row is counted from it.
            progress: fraction of the run's budget that is spent.
            with_metrics: describe the iteration, which costs about as much as a small network's gradient step.

        Raises:
            ValueError: the batch's arrays do not belong together, or do not make whole minibatches.
        """
        check_batch(batch)
        if batch.rewards.device.type != self._device.type:
            raise ValueError(f"the batch is on {batch.rewards.device}, the learner on {self._device}; move it first")
        whole, data, count = self._prepare(batch, policy_version)
        self._schedule.start_iteration(progress)
        self._on_part("prepare")
        total = count * self.config.ppo_epochs
        steps: list[_Step] = []
        data = self._gradients.begin(data, count)
        older = None  # columns with rows that older weights have chosen
        if self._schedule.needs_kl:
            older = columns_with(whole.valid & (batch.policy_version < policy_version), len(data.columns))
        for _ in range(self.config.ppo_epochs):
            kls = []
            order = self._generator if self.config.shuffle_minibatches else None
            for chosen in split(len(data.columns), count, order, self._device):
                is_last = len(steps) == total - 1
                # The divergence of rows from the weights that have chosen them is 0, and tells of no change.
                tells = older is not None and (any(s.was_taken for s in steps) or bool(older[chosen].any()))
                step = self._sgd_step(data, chosen, with_metrics=is_last and with_metrics)
                if tells and step.was_taken:
                    self._schedule.after_minibatch(step.kl)
                    kls.append(step.kl)
                steps.append(step)
                if not is_last:
                    self._announce(was_taken=step.was_taken)
            self._schedule.after_epoch(kls)
        self._update_normalizers(whole, steps[:count])
        self._announce(was_taken=True)  # if not, the statistics are new all the same
        num_taken, num_bad = sum(step.was_taken for step in steps), sum(not step.is_sound for step in steps)
        metrics = self._metrics(batch_metrics(batch, whole, policy_version), steps, num_taken) if with_metrics else {}
        return IterationResult(metrics, num_taken, num_bad)

    def state_dict(self) -> dict[str, Any]:
        """All that shapes what follows but the model itself. Refers to live tensors: save it before the next step."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "generator": self._generator.get_state(),
            "num_updates": self._policy_version,  # as it is called in every checkpoint there is
            "version_floor": self._version_floor,
            "adoption": self._adoption,
            "changed_options": {name: tuple(change) for name, change in self._changed_options.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, with the options that had been changed when it was saved.

        A change stays in force as long as what it replaced is still what the learner began with: a new value of such an
        option, typed on resuming, wins. So do options that cannot change any more.
        """
        for name, (value, base) in state.get("changed_options", {}).items():  # which older checkpoints do not have
            if base == self._base_of(name):
                with contextlib.suppress(ConfigError):
                    self.change({name: value})
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self._generator.set_state(state["generator"].cpu())
        self._policy_version = state["num_updates"]
        self._version_floor, self._adoption = state.get("version_floor", 0), state.get("adoption", 0)
        self._apply_config()

    def _base_of(self, name: str) -> float | None:
        change = self._changed_options.get(name)
        if change:
            return change.base
        option = changing_options(self.config, self._auxiliary_options).get(name)
        return option.value if option else None

    def _apply_config(self) -> None:
        self._optimizer.betas = (self.config.adam_beta1, self.config.adam_beta2)
        self._optimizer.eps = self.config.adam_eps

    def _prepare(self, batch: Batch, policy_version: int) -> tuple[Minibatch, Minibatch, int]:
        """Whole trajectories, what is cut into minibatches, and into how many."""
        oldest = max(policy_version - self.config.max_policy_lag, self._version_floor)
        whole = whole_batch(batch, self.config, oldest)
        normalizer = self._model.returns_normalizer
        if normalizer is not None and normalizer.is_new:
            returns = collected_returns(whole)
            self._model.update_returns_normalizer(returns, whole.valid & returns.isfinite())
        count = num_minibatches(whole, len(batch.recurrent_state), self.config.batch_size)
        # One forward pass is all there is in a single minibatch of whole trajectories, so its own values serve.
        is_single_pass = count * self.config.ppo_epochs == 1 and len(batch.recurrent_state) == 1
        if self.config.with_vtrace or is_single_pass:
            return whole, whole, count
        estimates = estimate_ahead(self._model, whole, self.config)
        return whole, with_estimates(whole, estimates, batch.recurrent_state), count

    def _sgd_step(self, data: Minibatch, chosen: Chosen, *, with_metrics: bool) -> _Step:
        gradient = self._gradients.compute(
            data,
            chosen,
            self.config,
            self._auxiliary,
            with_kl=with_metrics or self._schedule.needs_kl,
            on_part=self._on_part,
        )
        # The only wait for the device in a step: whether to take it is decided here.
        loss_value, norm_value, kl_value = gradient.numbers.tolist()
        self._on_part("backward")
        is_sound = math.isfinite(loss_value) and math.isfinite(norm_value)
        # Without a gradient there was no valid row, and momentum alone would move the weights.
        was_taken = is_sound and norm_value > 0.0
        if not is_sound:
            self.bad_steps_in_a_row += 1
        elif was_taken:
            self.bad_steps_in_a_row = 0
            self._apply_gradients(gradient.norm, norm_value)
            self._on_part("optimize")
            self._policy_version += 1
        self._gradients.forget()
        minibatch, objective = gradient.minibatch, gradient.objective
        kept = (minibatch.columns, minibatch.valid, objective.log_ratio, objective.estimates.value_targets)
        columns, valid, log_ratio, value_targets = self._gradients.kept(kept)
        return _Step(
            columns=columns,
            valid=valid,
            log_ratio=log_ratio,
            value_targets=value_targets,
            grad_norm=norm_value,
            kl=kl_value,
            is_sound=is_sound,
            was_taken=was_taken,
            metrics=self._describe(objective, minibatch) if with_metrics else {},
        )

    def _describe(self, objective: Objective, minibatch: Minibatch) -> dict[str, Tensor]:
        return minibatch_metrics(objective, minibatch, self.config, self._model.distribution, self._columns)

    def _apply_gradients(self, norm: Tensor, norm_value: float) -> None:
        limit = self.config.max_grad_norm
        if 0.0 < limit < norm_value:
            nn.utils.clip_grads_with_norm_(self._weights, limit, norm)
        self._optimizer.step(self._schedule.value)

    def _announce(self, *, was_taken: bool) -> None:
        if self._on_step is not None and was_taken:
            self._on_step(self._policy_version)
        self._between_minibatches()

    def _update_normalizers(self, whole: Minibatch, first_epoch: list[_Step]) -> None:
        seen, learned = whole.valid, torch.cat([step.valid for step in first_epoch], dim=1)
        if not all(step.is_sound for step in first_epoch):
            learned = torch.cat([step.valid & step.is_sound for step in first_epoch], dim=1)
            columns = torch.cat([step.columns for step in first_epoch])
            seen = put_together(learned, columns, whole.valid.shape[1])
        self._model.update_observation_normalizer(whole.observations, seen)
        if self._model.returns_normalizer is not None:
            targets = torch.cat([step.value_targets for step in first_epoch], dim=1)
            self._model.update_returns_normalizer(targets, learned)

    def _metrics(self, of_batch: dict[str, Tensor], steps: list[_Step], num_taken: int) -> dict[str, float]:
        last = steps[-1]
        ratios = ratio_range([step.log_ratio for step in steps], [step.valid for step in steps])
        metrics = to_floats(of_batch | last.metrics | ratios | adam_metrics(self._optimizer.second_moments))
        limit = self.config.max_grad_norm or math.inf
        norms = {"grad_norm": last.grad_norm, "grad_norm_clipped": min(last.grad_norm, limit)}
        metrics |= {name: norm for name, norm in norms.items() if math.isfinite(norm)}
        return metrics | {
            "lr": self._schedule.value,
            "num_sgd_steps": float(num_taken),
            "skipped_steps": float(len(steps) - num_taken),
        }


def _bind_auxiliary(name: str, options: Any) -> AuxiliaryTerm | None:
    if not name:
        return None
    loss = load(name)
    return AuxiliaryTerm(name.rpartition(".")[2], lambda inputs: loss.compute(inputs, options))
