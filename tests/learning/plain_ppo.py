"""Training by the textbook: loops over time, lists of valid rows, torch's own Adam. Shares no code with the learner.

Only the network's forward pass is the model's own. Minibatches are columns in the order of arrival.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig
from tests.learning.learning_cases import TinyModel


class Rows(NamedTuple):
    """What the flags of a batch mean."""

    acted: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    discounts: Tensor  # [T, B]
    has_delta: Tensor  # [T, B]


class Trace(NamedTuple):
    """What an iteration saw on its way."""

    rate: float  # in force at its end
    kls: list[dict[str, float]]  # of each step taken: the mean over its minibatch, and means that are wrong
    targets: Tensor  # of the first epoch, on the valid rows of minibatches whose loss was finite
    observations: Tensor  # of the same rows


class PlainPpo:
    """One policy's optimizer and learning rate."""

    def __init__(self, model: TinyModel, config: LearningConfig) -> None:
        self.model, self.config, self.rate = model, config, config.learning_rate
        betas = (config.adam_beta1, config.adam_beta2)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=betas, eps=config.adam_eps)

    def train(self, batch: Batch, progress: float) -> Trace:
        """One iteration."""
        config, steps = self.config, len(batch.rewards)
        rows = self.rows(batch)
        rewards = (batch.rewards * config.reward_scale).clamp(-config.reward_clip, config.reward_clip)
        width = config.batch_size // steps
        pieces = [slice(start, start + width) for start in range(0, rewards.shape[1], width)]
        if config.lr_schedule == "linear_decay":
            self.rate = config.learning_rate * (1.0 - progress)
        with torch.no_grad():
            ahead = self.gae(rows, rewards, self.in_rewards(self.unroll(batch).values))
        targets, observations, all_kls = [], [], []
        for epoch in range(config.ppo_epochs):
            kls = []
            for piece in pieces:
                estimates = None if config.with_vtrace else (ahead[0][:, piece], ahead[1][:, piece])
                mine = Rows(*(part[:, piece] for part in rows))
                loss, chosen, kl = self.loss(columns(batch, piece), mine, rewards[:, piece], estimates)
                if not math.isfinite(loss.item()):
                    continue
                if epoch == 0:
                    targets.append(chosen[mine.valid])
                    observations.append(batch.observations["obs"][:-1, piece][mine.valid])
                if mine.valid.any():
                    self.descend(loss)
                    all_kls.append(kl)
                    kls.append(kl["right"])
                    if config.lr_schedule == "kl_adaptive_minibatch":
                        self.adapt(kl["right"])
            if config.lr_schedule == "kl_adaptive_epoch" and kls:
                self.adapt(sum(kls) / len(kls))
        return Trace(self.rate, all_kls, torch.cat(targets), torch.cat(observations))

    def rows(self, batch: Batch) -> Rows:
        ended, following = batch.terminated.bool(), batch.is_first[1:].bool()
        cut = batch.is_last[:-1].bool() | (following & ~ended)
        acted = batch.active[:-1].bool() & batch.own[:-1] & ~cut
        return Rows(acted, acted, torch.where(cut | ended, 0.0, self.config.gamma), torch.where(cut, 0.0, 1.0))

    def unroll(self, batch: Batch):
        return self.model.unroll(batch.observations, batch.recurrent_state[0], batch.is_first)

    def in_rewards(self, values: Tensor) -> Tensor:
        scale = self.model.returns_normalizer
        return values if scale is None else values * scale.deviation + scale.mean

    def in_critics_units(self, values: Tensor) -> Tensor:
        scale = self.model.returns_normalizer
        return values if scale is None else (values - scale.mean) / scale.deviation

    def gae(self, rows: Rows, rewards: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        advantages, later = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
        for t in reversed(range(len(rewards))):
            delta = rows.has_delta[t] * (rewards[t] + rows.discounts[t] * values[t + 1] - values[t])
            later = advantages[t] = delta + rows.discounts[t] * self.config.gae_lambda * later
        return advantages + values[:-1], advantages

    def vtrace(self, rows: Rows, rewards: Tensor, values: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        rho, c = ratio.clamp(max=self.config.vtrace_rho), ratio.clamp(max=self.config.vtrace_c)
        targets, advantages = values.clone(), torch.zeros_like(rewards)
        for t in reversed(range(len(rewards))):
            gain = rho[t] * rows.has_delta[t]
            delta = gain * (rewards[t] + rows.discounts[t] * values[t + 1] - values[t])
            advantages[t] = gain * (rewards[t] + rows.discounts[t] * targets[t + 1] - values[t])
            targets[t] = values[t] + delta + rows.discounts[t] * c[t] * (targets[t + 1] - values[t + 1])
        return targets[:-1], advantages

    def loss(
        self, batch: Batch, rows: Rows, rewards: Tensor, estimates: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        """The loss, the value targets, and means of the KL divergence."""
        config, output = self.config, self.unroll(batch)
        policy, behaviour = Categorical(logits=output.parameters[:-1]), Categorical(logits=batch.behaviour_parameters)
        ratio = (policy.log_prob(batch.actions.squeeze(-1)) - batch.behaviour_log_prob).exp()
        ratio = torch.where(rows.acted, ratio, 1.0)
        with torch.no_grad():
            if estimates is None:
                estimates = self.vtrace(rows, rewards, self.in_rewards(output.values), ratio)
        targets, advantages = estimates
        valid, kl, reverse = rows.valid, kl_divergence(behaviour, policy), kl_divergence(policy, behaviour)
        if not valid.any():
            return torch.zeros(()), targets, {}
        chosen = advantages[valid]
        chosen = (chosen - chosen.mean()) / chosen.std(correction=0)
        low, high = 1.0 / (1.0 + config.ppo_clip_ratio), 1.0 + config.ppo_clip_ratio
        gain = torch.minimum(ratio[valid] * chosen, ratio[valid].clamp(low, high) * chosen).mean()
        values, before = output.values[:-1][valid], self.in_critics_units(batch.behaviour_value[valid])
        near = before + (values - before).clamp(-config.ppo_clip_value, config.ppo_clip_value)
        goal = self.in_critics_units(targets[valid])
        error = torch.maximum((values - goal) ** 2, (near - goal) ** 2).mean()
        loss = config.value_loss_coeff * error - gain - config.exploration_loss_coeff * policy.entropy()[valid].mean()
        loss = loss + config.kl_loss_coeff * kl[valid].mean()
        means = {"right": kl[valid].mean(), "of all rows": kl.mean(), "reversed": reverse[valid].mean()}
        return loss, targets, {name: mean.item() for name, mean in means.items()}

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        self.optimizer.param_groups[0]["lr"] = self.rate
        self.optimizer.step()

    def adapt(self, kl: float) -> None:
        threshold = self.config.lr_schedule_kl_threshold
        if kl > 2.0 * threshold:
            self.rate = max(self.rate / 1.5, 1e-6)
        elif kl < threshold / 2.0:
            self.rate = min(self.rate * 1.5, 1e-2)


def columns(batch: Batch, piece: slice) -> Batch:
    """Some trajectories of a batch."""
    fields = {name: value[:, piece] for name, value in batch._asdict().items() if isinstance(value, Tensor)}
    return batch._replace(observations={name: leaf[:, piece] for name, leaf in batch.observations.items()}, **fields)
