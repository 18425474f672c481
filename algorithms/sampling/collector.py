"""Which episodes count, and what they earned.

How many episodes each environment plays is fixed before the first one. Taking the first N that end, wherever they end,
would prefer short ones: an environment whose policy fails early ends three episodes while another is still in its
first. An environment that has played its share is not asked again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.messages import EpisodeFinished
from appo.algorithms.sampling.episode_stats import EpisodeStats
from appo.envs.api import EnvSpec
from appo.envs.vector.shared_rows import rows_of_envs
from appo.envs.vector.step_batch import KIND_RESTARTED, KIND_STEP, StepBatch


class Counted(NamedTuple):
    """An episode of one agent that counts."""

    env: int
    agent: int
    episode: EpisodeFinished


class EpisodeCollector:
    """Adds up the episodes of N environments.

    An episode of several agents counts once for its environment, when the environment begins another one, and gives a
    return for each agent. Until then those of agents that have ended are held: it may be lost, and played again.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, episodes: NDArray[np.int64] | None) -> None:
        """Begin with no episode.

        Args:
            spec: of the environments.
            num_envs: how many there are.
            episodes: [N] that each of them plays; None: no limit.
        """
        self._agents = spec.agents_per_env
        self._reports_true_reward = spec.reports_true_reward
        self._stats = EpisodeStats(num_envs * self._agents)
        self._left: NDArray[np.float64] = np.full(num_envs, math.inf) if episodes is None else episodes.astype(float)
        self._episode = np.full(num_envs, -1, np.int64)
        self._held: dict[int, list[Counted]] = {}  # by environment
        self.ended = np.zeros(0, np.bool_)
        """[n] of the batch that was added last: an episode ended in this environment."""
        self.frames = 0
        """Of simulators, those of episodes that do not count, too."""
        self.aborted = 0
        """Episodes that were lost with their environment; they are played once more."""

    @property
    def is_full(self) -> bool:
        """Every environment has played its share."""
        return not self._left.any()

    def wants(self, envs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] which of these environments still have an episode to play."""
        wants: NDArray[np.bool_] = self._left[envs] > 0
        return wants

    def add(self, batch: StepBatch) -> list[Counted]:
        """Account for the steps of some environments; the episodes that count, of environments that ended theirs."""
        envs, agents = batch.env_ids, self._agents
        rows = rows_of_envs(envs, agents)
        frames = batch.frames.reshape(len(envs), -1)
        self.frames += int(frames.max(axis=1).sum())
        lost = batch.kind == KIND_RESTARTED
        if lost.any():
            self.aborted += int(np.count_nonzero(lost))
            self._stats.forget(rows.reshape(len(envs), -1)[lost].ravel())
        finished = self._stats.add_rows(
            rows,
            (batch.rewards.ravel(), batch.frames.ravel()),
            (batch.terminated | batch.truncated).ravel(),
            batch.infos,
        )
        counted = []
        for row, episode in zip(self._stats.ended_rows, finished, strict=True):
            env = row // agents
            if self._left[env] > 0:
                counted.append(Counted(env, row % agents, self._with_objective(episode)))
        begins = batch.episode_id > self._episode[envs]
        self._episode[envs] = batch.episode_id
        if agents == 1:
            self.ended = (batch.terminated | batch.truncated) & (batch.kind == KIND_STEP)
        else:
            self.ended = begins & (batch.kind == KIND_STEP)
        over = envs[self.ended]
        self._left[over] -= self._left[over] > 0
        return counted if agents == 1 else self._of_whole_episodes(counted, lost=envs[lost], over=over)

    def close_episode(self, env: int) -> None:
        """End the episode of an environment here, as a limit says; it counts."""
        self._stats.forget(np.arange(env * self._agents, (env + 1) * self._agents))
        self._left[env] -= self._left[env] > 0
        self._held.pop(env, None)

    def _of_whole_episodes(
        self, counted: list[Counted], *, lost: NDArray[np.int64], over: NDArray[np.int64]
    ) -> list[Counted]:
        """Hold what counts of agents until the episode of their environment is over, and drop it where that is lost."""
        for env in lost.tolist():
            self._held.pop(env, None)
        for each in counted:
            self._held.setdefault(each.env, []).append(each)
        return [each for env in over.tolist() for each in self._held.pop(env, ())]

    def _with_objective(self, episode: EpisodeFinished) -> EpisodeFinished:
        """Use the return as the objective where no environment of this kind reports one."""
        if math.isnan(episode.true_return) and not self._reports_true_reward:
            return episode._replace(true_return=episode.episode_return)
        return episode


def shares(num_episodes: int, num_envs: int) -> NDArray[np.int64]:
    """[N] episodes of each environment, as even as can be."""
    share, rest = divmod(num_episodes, num_envs)
    return np.asarray(share + (np.arange(num_envs) < rest), np.int64)
