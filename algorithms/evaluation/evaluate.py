"""Playing episodes with a fixed policy, and what they say about it.

Which episodes count is decided before the first one is played: each environment plays a number of them that is fixed
in advance, and whatever it plays after those is not looked at. Taking the first N episodes that end, wherever they end,
would prefer short ones: an environment whose policy fails early ends three episodes while another is still in its
first. A limit in frames cannot avoid that bias, since it cuts off what is not finished; with one environment it is
smallest.

Letters:  E = agent rows = environments * agents per environment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appo.algorithms.messages import EpisodeFinished
from appo.algorithms.models.actor_critic import ActorCritic
from appo.algorithms.models.inference import InferenceResult
from appo.algorithms.sampling.episode_stats import EpisodeStats
from appo.envs.adapters import step_arrays
from appo.envs.api import BatchEnv, EnvSpec, StepArrays

MAX_ENVS = 8  # one forward pass for 8 rows costs little more than for one; an engine process costs memory


class Player(Protocol):
    """What plays: a policy, or several."""

    model: ActorCritic

    def act(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor, deterministic: bool = False
    ) -> InferenceResult:
        """See `PolicyInference.act`."""


class Summary(NamedTuple):
    """What a set of numbers comes to; NaN where there are too few of them."""

    mean: float
    std: float  # of the population they are drawn from: divided by n - 1
    sem: float  # standard error of the mean
    min: float
    max: float


@dataclass(frozen=True)
class EvalResult:
    """The episodes that were played, one entry each, in the order in which they ended."""

    returns: NDArray[np.float64]  # sums of raw rewards
    true_returns: NDArray[np.float64]  # of the episodes that have an objective; the return where none is reported
    lengths: NDArray[np.int64]  # in simulator frames
    extra: dict[str, float]  # means over the episodes that reported them
    frames: int  # simulator frames that were played, those of unfinished episodes too
    wall_time: float  # seconds

    @property
    def mean(self) -> float:
        """Of the returns."""
        return summarize(self.returns).mean

    @property
    def std(self) -> float:
        """Of the returns."""
        return summarize(self.returns).std

    @property
    def sem(self) -> float:
        """Standard error of the mean return."""
        return summarize(self.returns).sem

    @property
    def min(self) -> float:
        """Of the returns."""
        return summarize(self.returns).min

    @property
    def max(self) -> float:
        """Of the returns."""
        return summarize(self.returns).max


def summarize(values: NDArray[Any]) -> Summary:
    """Mean, spread and extremes of [n] numbers."""
    n = len(values)
    if not n:
        return Summary(*[math.nan] * len(Summary._fields))
    std = float(values.std(ddof=1)) if n > 1 else math.nan
    return Summary(float(values.mean()), std, std / math.sqrt(n), float(values.min()), float(values.max()))


def choose_num_envs(num_episodes: int | None, most: int = MAX_ENVS) -> int:
    """How many environments play this many episodes in the fewest rounds; 1 when the number is open."""
    if not num_episodes:
        return 1
    rounds = math.ceil(num_episodes / most)
    return math.ceil(num_episodes / rounds)


def evaluate_policy(
    policy: Player,
    env: BatchEnv,
    num_episodes: int | None,
    *,
    max_frames: int | None = None,
    deterministic: bool = False,
    action_repeat: int = 0,
    on_episode: Callable[[int, EpisodeFinished], None] | None = None,
    after_step: Callable[[], bool] | None = None,
) -> EvalResult:
    """Play episodes from their beginning, each environment its share, and account for every one of them.

    Args:
        policy: with one row of memory per agent row.
        env: is reset here, and left open.
        num_episodes: how many are played by all environments together; None: no limit. An episode of several agents
            counts once here, and gives a return for each agent.
        max_frames: end after this many simulator frames; unfinished episodes are dropped.
        deterministic: take the most likely action instead of drawing one.
        action_repeat: hold each action until it has covered this many frames; 0: for one step.
        on_episode: told (agent, episode) of every episode that counts.
        after_step: called after the reset and after every step; False ends the evaluation.
    """
    began = time.monotonic()
    arrays = step_arrays(env.spec, env.num_envs)
    actor = _Actor(policy, arrays, deterministic, action_repeat)
    book = _ScoreBook(env.spec, env.num_envs, num_episodes)
    env.reset(arrays)
    book.begin(arrays)
    limit = math.inf if max_frames is None else max_frames
    while (after_step is None or after_step()) and not book.is_full and book.frames < limit:
        infos = env.step(actor.act(), arrays)
        for row, episode in book.add(arrays, infos):
            if on_episode is not None:
                on_episode(row % env.spec.agents_per_env, episode)
    return book.result(time.monotonic() - began)


class _Actor:
    """The policy's actions for the observations in `arrays`; holds each for some frames when asked to."""

    def __init__(self, policy: Player, arrays: StepArrays, deterministic: bool, repeat: int) -> None:
        self._policy, self._arrays = policy, arrays
        self._deterministic, self._repeat = deterministic, repeat
        # Views: the environments write into the same memory.
        self._observations = {name: torch.from_numpy(array) for name, array in arrays.observations.items()}
        self._is_first = torch.from_numpy(arrays.is_first)
        self._actions = np.zeros((len(arrays.is_first), policy.model.distribution.spec.width), np.float32)
        self._held = np.zeros(len(arrays.is_first), np.int64)  # frames that each row's action has covered

    def act(self) -> NDArray[np.float32]:
        """[E, W] for the next step."""
        self._held += self._arrays.frames
        rows = np.flatnonzero((self._arrays.is_first == 1) | (self._held >= self._repeat))
        if len(rows):
            self._decide(rows)
        return self._actions

    def _decide(self, rows: NDArray[np.int64]) -> None:
        chosen = torch.from_numpy(rows)
        observations, is_first = self._observations, self._is_first
        if len(rows) < len(is_first):
            observations = {name: value[chosen] for name, value in observations.items()}
            is_first = is_first[chosen]
        self._actions[rows] = self._policy.act(chosen, observations, is_first, self._deterministic).actions.numpy()
        self._held[rows] = 0


class _ScoreBook:
    """Which episodes count, and what they earned.

    An environment's episode is over when one of its agents has just ended and none plays any more.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, num_episodes: int | None) -> None:
        agents = spec.agents_per_env
        self._shape = (num_envs, agents)
        self._reports_true_reward = spec.reports_true_reward
        self._stats = EpisodeStats(num_envs * agents)
        self._policy_ids = np.zeros(num_envs * agents, np.int32)  # one policy plays every row
        self._playing = np.zeros(num_envs * agents, np.bool_)
        self._left: NDArray[np.float64] = np.full(num_envs, math.inf)  # episodes of each environment yet to count
        if num_episodes is not None:
            share, rest = divmod(num_episodes, num_envs)
            self._left[:] = share + (np.arange(num_envs) < rest)
        self._episodes: list[EpisodeFinished] = []
        self.frames = 0

    @property
    def is_full(self) -> bool:
        """Every environment has played its share."""
        return not self._left.any()

    def begin(self, step: StepArrays) -> None:
        """Every agent that takes part from the start begins an episode."""
        self._playing[:] = step.active == 1

    def add(self, step: StepArrays, infos: dict[int, dict[str, Any]]) -> list[tuple[int, EpisodeFinished]]:
        """Account for one step; (row, episode) of those that it ended and that count."""
        self.frames += int(step.frames.reshape(self._shape).max(axis=1).sum())  # of simulators, not of their agents
        finished = [self._with_objective(episode) for episode in self._stats.add(step, infos, self._policy_ids)]
        ended = (step.terminated | step.truncated) == 1
        by_row = zip(np.flatnonzero(ended).tolist(), finished, strict=True)
        counted = [(row, episode) for row, episode in by_row if self._left[row // self._shape[1]] > 0]
        self._episodes += [episode for _, episode in counted]
        is_active, is_fresh = step.active == 1, step.is_first == 1
        self._playing |= is_active & ~is_fresh
        if finished:
            self._playing &= ~ended
            has_ended, is_played = ended.reshape(self._shape).any(1), self._playing.reshape(self._shape).any(1)
            self._left -= has_ended & ~is_played & (self._left > 0)
        self._playing |= is_active & is_fresh
        return counted

    def _with_objective(self, episode: EpisodeFinished) -> EpisodeFinished:
        """Use the return as the objective where no environment of this kind reports one."""
        if math.isnan(episode.true_return) and not self._reports_true_reward:
            return episode._replace(true_return=episode.episode_return)
        return episode

    def result(self, wall_time: float) -> EvalResult:
        """What was played so far."""
        true_returns = [episode.true_return for episode in self._episodes]
        extra: dict[str, list[float]] = {}
        for episode in self._episodes:
            for name, value in episode.extra.items():
                extra.setdefault(name, []).append(value)
        return EvalResult(
            returns=np.array([episode.episode_return for episode in self._episodes], np.float64),
            true_returns=np.array([true for true in true_returns if not math.isnan(true)], np.float64),
            lengths=np.array([episode.length_frames for episode in self._episodes], np.int64),
            extra={name: sum(values) / len(values) for name, values in sorted(extra.items())},
            frames=self.frames,
            wall_time=wall_time,
        )
