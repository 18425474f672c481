"""Playing episodes with a fixed policy, and what they say about it.

Which episodes count is decided before the first one is played, see `EpisodeCollector`. A limit in frames cannot avoid
a bias to short ones, since it cuts off what is not finished; with one environment it is smallest.

Letters:  E = agent rows = environments * agents per environment.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appo.algorithms.messages import EpisodeFinished
from appo.algorithms.models.actor_critic import ActorCritic
from appo.algorithms.sampling.collector import Counted, EpisodeCollector, shares
from appo.envs.api import BatchEnv
from appo.envs.vector.errors import VecEnvError
from appo.envs.vector.make import vec_env_of
from appo.envs.vector.shared_rows import rows_of_envs
from appo.envs.vector.step_batch import StepBatch
from appo.envs.vector.vec_env import VecEnv

# Episodes that may be lost with their environments: in all, and for each that is played to its end.
_MOST_LOST, _MOST_LOST_PER_EPISODE = 100, 10
MAX_ENVS = 8  # one forward pass for 8 rows costs little more than for one; an engine process costs memory


class Player(Protocol):
    """What plays: a policy, or several."""

    model: ActorCritic

    def choose(
        self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor, deterministic: bool = False
    ) -> Tensor:
        """See `PolicyInference.choose`."""


class Summary(NamedTuple):
    """What a set of numbers comes to; NaN where there are too few of them."""

    mean: float
    std: float  # of the population they are drawn from: divided by n - 1
    sem: float  # standard error of the mean, from one number of each match: its agents' are not independent
    min: float
    max: float


@dataclass(frozen=True)
class EvalResult:
    """The episodes that were played, one entry each, in the order in which they ended; those of one match together."""

    returns: NDArray[np.float64]  # sums of raw rewards
    true_returns: NDArray[np.float64]  # of the episodes that have an objective; the return where none is reported
    lengths: NDArray[np.int64]  # in simulator frames
    extra: dict[str, float]  # means over the episodes that reported them
    frames: int  # simulator frames that were played, those of unfinished episodes too
    wall_time: float  # seconds
    env_ids: NDArray[np.int64]  # the environment of each episode
    agents: NDArray[np.int64]  # the agent of each
    extras: dict[str, NDArray[np.float64]]  # what `extra` has the means of
    matches: NDArray[np.int64]  # the match of each episode: one for all agents of an environment at a time
    summaries: dict[str, Summary]  # of return, true_return and length
    extra_summaries: dict[str, Summary]
    episodes: tuple[EpisodeFinished, ...]  # what all of the above is made from
    is_complete: bool  # all that was asked for was played; else those that ended first, the short ones, count too often
    aborted: int = 0  # episodes that were lost with their environment, and played again

    @property
    def mean(self) -> float:
        """Of the returns."""
        return self.summaries["return"].mean

    @property
    def std(self) -> float:
        """Of the returns."""
        return self.summaries["return"].std

    @property
    def sem(self) -> float:
        """Standard error of the mean return."""
        return self.summaries["return"].sem

    @property
    def min(self) -> float:
        """Of the returns."""
        return self.summaries["return"].min

    @property
    def max(self) -> float:
        """Of the returns."""
        return self.summaries["return"].max


def summarize(values: NDArray[Any], matches: NDArray[np.int64]) -> Summary:
    """Mean, spread and extremes of [n] numbers, each of an agent in a match."""
    n = len(values)
    if not n:
        return Summary(*[math.nan] * len(Summary._fields))
    std = float(values.std(ddof=1)) if n > 1 else math.nan
    _, which, sizes = np.unique(matches, return_inverse=True, return_counts=True)
    means = np.bincount(which, values) / sizes
    sem = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Summary(float(values.mean()), std, sem, float(values.min()), float(values.max()))


def _matches_of(counted: Sequence[Counted]) -> NDArray[np.int64]:
    """[n] a number for the match of each episode: the k-th episodes of an environment's agents are one match."""
    played: collections.Counter[tuple[int, int]] = collections.Counter()
    numbers: dict[tuple[int, int], int] = {}
    found = np.empty(len(counted), np.int64)
    for index, each in enumerate(counted):
        played[each.env, each.agent] += 1
        found[index] = numbers.setdefault((each.env, played[each.env, each.agent]), len(numbers))
    return found


def choose_num_envs(num_episodes: int | None, most: int = MAX_ENVS) -> int:
    """How many environments play this many episodes in the fewest rounds; 1 when the number is open."""
    if not num_episodes:
        return 1
    rounds = math.ceil(num_episodes / most)
    return math.ceil(num_episodes / rounds)


def evaluate_policy(
    policy: Player,
    env: BatchEnv | VecEnv,
    num_episodes: int | None,
    *,
    max_frames: int | None = None,
    deterministic: bool = False,
    action_repeat: int = 0,
    on_episode: Callable[[int, EpisodeFinished], None] | None = None,
    after_step: Callable[[], bool] | None = None,
) -> EvalResult:
    """Play episodes from their beginning, each environment its share, and account for every one of them.

    Environments step together, so that the actions that are drawn follow from the seed; one that has played its share
    is left alone.

    Args:
        policy: with one row of memory per agent row.
        env: is reset here, and left open.
        num_episodes: how many are played by all environments together; None: no limit, so that the result is complete
            only with `max_frames`. An episode of several agents counts once here, and gives a return for each agent.
        max_frames: end after this many simulator frames; unfinished episodes are dropped.
        deterministic: take the most likely action instead of drawing one.
        action_repeat: hold each action until it has covered this many frames; 0: for one step.
        on_episode: told (agent, episode) of every episode that counts.
        after_step: called after the reset and after every step; False ends the evaluation.

    Raises:
        VecEnvError, EnvError: environments fail, where `env` does not build them anew, or too often.
    """
    began = time.monotonic()
    envs = env if isinstance(env, VecEnv) else vec_env_of(env)
    collector = EpisodeCollector(
        envs.spec, envs.num_envs, None if num_episodes is None else shares(num_episodes, envs.num_envs)
    )
    actor = _Actor(policy, envs, deterministic, action_repeat)
    episodes: list[Counted] = []
    limit = math.inf if max_frames is None else max_frames
    batch = envs.reset()
    collector.add(batch)
    while (after_step is None or after_step()) and not collector.is_full and collector.frames < limit:
        wants = collector.wants(batch.env_ids)
        if len(wants) == envs.num_envs and (wants.all() or not envs.steps_apart):
            batch = envs.step_rows(actor.act(batch, slice(None)))
        else:
            playing = batch.env_ids[wants]
            envs.send_rows(actor.act(batch, wants), playing)
            batch = envs.recv(len(playing))
        for counted in collector.add(batch):
            episodes.append(counted)
            if on_episode is not None:
                on_episode(counted.agent, counted.episode)
        if collector.aborted > _MOST_LOST + _MOST_LOST_PER_EPISODE * len(episodes):
            raise VecEnvError(
                f"environments fail too often to be scored: {collector.aborted} episodes were lost, and "
                f"{len(episodes)} played to their end"
            )
    is_complete = collector.is_full if num_episodes is not None else collector.frames >= limit
    return _result(episodes, collector, time.monotonic() - began, is_complete=is_complete)


def _result(counted: list[Counted], collector: EpisodeCollector, wall_time: float, *, is_complete: bool) -> EvalResult:
    episodes = [each.episode for each in counted]
    matches = _matches_of(counted)
    returns = np.array([episode.episode_return for episode in episodes], np.float64)
    objectives = np.array([episode.true_return for episode in episodes], np.float64)
    lengths = np.array([episode.length_frames for episode in episodes], np.int64)
    has_objective = ~np.isnan(objectives)
    extras: dict[str, NDArray[np.float64]] = {}
    extra_summaries: dict[str, Summary] = {}
    for name in sorted({name for episode in episodes for name in episode.extra}):
        tells = np.array([name in episode.extra for episode in episodes])
        extras[name] = np.array([episode.extra[name] for episode in episodes if name in episode.extra], np.float64)
        extra_summaries[name] = summarize(extras[name], matches[tells])
    return EvalResult(
        returns=returns,
        true_returns=objectives[has_objective],
        lengths=lengths,
        extra={name: summary.mean for name, summary in extra_summaries.items()},
        frames=collector.frames,
        wall_time=wall_time,
        env_ids=np.array([each.env for each in counted], np.int64),
        agents=np.array([each.agent for each in counted], np.int64),
        extras=extras,
        matches=matches,
        summaries={
            "return": summarize(returns, matches),
            "true_return": summarize(objectives[has_objective], matches[has_objective]),
            "length": summarize(lengths, matches),
        },
        extra_summaries=extra_summaries,
        episodes=tuple(episodes),
        is_complete=is_complete,
        aborted=collector.aborted,
    )


class _Actor:
    """The policy's actions for observations; holds each for some frames when asked to."""

    def __init__(self, policy: Player, env: VecEnv, deterministic: bool, repeat: int) -> None:
        self._policy, self._agents = policy, env.num_agents
        self._deterministic, self._repeat = deterministic, repeat
        rows = env.num_envs * env.num_agents
        self._actions = np.zeros((rows, policy.model.distribution.spec.width), np.float32)
        self._held = np.zeros(rows, np.int64)  # frames that each row's action has covered

    def act(self, batch: StepBatch, chosen: NDArray[np.bool_] | slice) -> NDArray[np.float32]:
        """[R, W] for the next step of the environments that are chosen [n] of a batch."""
        rows = rows_of_envs(batch.env_ids[chosen], self._agents)
        is_first = batch.is_first[chosen].ravel()
        is_due: NDArray[np.bool_] | slice = slice(None)
        if self._repeat:
            self._held[rows] += batch.frames[chosen].ravel()
            is_due = is_first | (self._held[rows] >= self._repeat)
            if not is_due.any():
                return self._actions[rows]
        due = rows[is_due]
        observations = {
            name: torch.from_numpy(_by_row(array[chosen], self._agents)[is_due]) for name, array in batch.obs.items()
        }
        first = torch.from_numpy(is_first[is_due].astype(np.uint8))
        # Rows of a batch are read-only, which tensors cannot be: a copy.
        actions = self._policy.choose(torch.from_numpy(due.copy()), observations, first, self._deterministic).numpy()
        if not self._repeat:
            return actions
        self._actions[due] = actions
        self._held[due] = 0
        return self._actions[rows]


def _by_row(array: NDArray[Any], agents: int) -> NDArray[Any]:
    """[n, A, ...] -> [n * A, ...]."""
    return array if agents == 1 else array.reshape(-1, *array.shape[2:])
