"""A small real actor-critic, and batches that it has acted out itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.models.normalization import RunningMoments

NUM_ACTIONS = 3
OBSERVATION_SIZE = 4


class Categorical:
    """One discrete action; parameters are logits."""

    def log_prob(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return parameters.log_softmax(-1).gather(-1, actions.long()).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        log_p = parameters.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, p_parameters: Tensor, q_parameters: Tensor) -> Tensor:
        log_p, log_q = p_parameters.log_softmax(-1), q_parameters.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    def symmetric_kl_to_uniform(self, parameters: Tensor) -> Tensor:
        uniform = torch.zeros_like(parameters)
        return 0.5 * (self.kl(parameters, uniform) + self.kl(uniform, parameters))


class ScaledReturns:
    """Fixed statistics, so that a test can tell units apart; remembers what it was shown."""

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation = mean, deviation
        self.updates: list[tuple[Tensor, Tensor]] = []

    is_new = False

    def normalize(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation

    def denormalize(self, x: Tensor) -> Tensor:
        return x * self.deviation + self.mean

    def update(self, x: Tensor, mask: Tensor) -> None:
        self.updates.append((x, mask))


class Output(NamedTuple):
    parameters: Tensor
    values: Tensor


class TinyModel(nn.Module):
    """A linear layer or a plain recurrent one, and two heads."""

    def __init__(self, *, state_size: int = 0, returns_normalizer: ScaledReturns | None = None) -> None:
        super().__init__()
        self.state_size = state_size
        self.distribution = Categorical()
        self.returns_normalizer = returns_normalizer
        self.normalizer_calls: list[Tensor] = []
        self.unrolled_rows: list[tuple[int, ...]] = []
        self.observation_moments = RunningMoments((OBSERVATION_SIZE,))  # updated as a real model's, normalises nothing
        self.body = nn.Linear(OBSERVATION_SIZE, 8)
        self.memory = nn.Linear(state_size, 8, bias=False) if state_size else None
        self.policy, self.value = nn.Linear(8, NUM_ACTIONS), nn.Linear(8, 1)

    def unroll(self, observations: dict[str, Tensor], state: Tensor, is_first: Tensor) -> Output:
        self.unrolled_rows.append(tuple(is_first.shape))
        hidden = self.hidden(observations["obs"], state, is_first)
        return Output(self.policy(hidden), self.value(hidden).squeeze(-1))

    def hidden(self, observations: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        inputs = self.body(observations)
        if self.memory is None:
            return torch.tanh(inputs)
        rows = []
        for row, is_fresh in zip(inputs, is_first, strict=True):
            state = torch.tanh(row + self.memory(state * (is_fresh == 0).unsqueeze(-1)))
            rows.append(state)
        return torch.stack(rows)

    def update_observation_normalizer(self, observations: dict[str, Tensor], mask: Tensor) -> None:
        assert observations["obs"].shape[:2] == mask.shape
        self.normalizer_calls.append(mask)
        self.observation_moments.update(observations["obs"], mask)

    def update_returns_normalizer(self, returns: Tensor, mask: Tensor) -> None:
        if self.returns_normalizer is not None:
            self.returns_normalizer.update(returns, mask)


def config_for(steps: int, trajectories: int, **options) -> LearningConfig:
    """Options for one iteration of a batch [steps, trajectories], one minibatch unless told otherwise."""
    return LearningConfig(**{"rollout": steps, "batch_size": steps * trajectories} | options)


@torch.no_grad()
def acted_out(
    model: TinyModel, steps: int = 6, trajectories: int = 4, *, chunks: int = 1, seed: int = 0, ends: bool = True
) -> Batch:
    """A batch whose behaviour columns the model computed itself; with an end of each kind when `ends`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps + 1, trajectories)
    observations = torch.randn(*shape, OBSERVATION_SIZE, generator=generator)
    is_first, is_last = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
    active, terminated = torch.ones(shape, dtype=torch.uint8), torch.zeros(steps, trajectories, dtype=torch.uint8)
    if ends:
        terminated[1, 0], is_first[2, 0] = 1, 1  # terminated after row 1
        is_last[3, 1], is_first[4, 1] = 1, 1  # truncated after row 2
        active[2:4, 2] = 0
    state = torch.randn(trajectories, model.state_size, generator=generator) * (1 - is_first[0]).unsqueeze(-1)
    output = model.unroll({"obs": observations}, state, is_first)
    actions = torch.distributions.Categorical(logits=output.parameters[:-1]).probs.cumsum(-1)
    draws = torch.rand(steps, trajectories, 1, generator=generator)
    actions = (draws > actions).sum(-1, keepdim=True).clamp(max=NUM_ACTIONS - 1).float()
    values = output.values[:-1]
    if model.returns_normalizer is not None:
        values = model.returns_normalizer.denormalize(values)
    states = [state]
    if model.state_size:
        hidden = model.hidden(observations, state, is_first)
        rows = range(steps // chunks, steps, steps // chunks)
        states += [hidden[row - 1] * (1 - is_first[row]).unsqueeze(-1) for row in rows]
    else:
        states *= chunks
    return Batch(
        observations={"obs": observations},
        is_first=is_first,
        is_last=is_last,
        active=active,
        own=torch.ones(shape, dtype=torch.bool),
        recurrent_state=torch.stack(states),
        actions=actions,
        behaviour_log_prob=model.distribution.log_prob(output.parameters[:-1], actions),
        behaviour_parameters=output.parameters[:-1],
        behaviour_value=values,
        policy_version=torch.zeros(steps, trajectories, dtype=torch.int64),
        rewards=torch.randn(steps, trajectories, generator=generator),
        terminated=terminated,
    )
