"""Returns and lengths of the episodes that are being played, one running sum per agent row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.messages import EpisodeFinished
from appo.envs.api import StepArrays


class EpisodeStats:
    """Running sums of E agent rows; only the end of an episode costs a Python loop."""

    def __init__(self, rows: int) -> None:
        """Every row begins an episode."""
        self.ended_rows: list[int] = []
        """Of the episodes that `add` gave last."""
        self._returns = np.zeros(rows, np.float64)
        self._frames = np.zeros(rows, np.int64)
        self._true: dict[int, float] = {}  # row -> objective that the environment reported in this episode
        self._extra: dict[int, dict[str, float]] = {}
        self._was_seen_whole = np.ones(rows, np.bool_)

    def begin_in_the_middle(self) -> None:
        """The episodes now being played began unseen: what remains of them says nothing about their returns."""
        self._was_seen_whole[:] = False

    def leave_out(self, rows: list[int]) -> None:
        """The episodes now being played by these rows are not told of: they are cut for reasons of the run."""
        self._was_seen_whole[rows] = False

    def add(
        self, step: StepArrays, infos: dict[int, dict[str, Any]], policy_id: NDArray[np.int32]
    ) -> list[EpisodeFinished]:
        """Account for one step of every row; the episodes that it ended.

        Args:
            step: what the environments wrote.
            infos: row -> info of the rows that said more.
            policy_id: [E] the policy that played the row that was stepped.
        """
        self._returns += step.rewards
        self._frames += step.frames
        for row, info in infos.items():
            self._take_info(row, info)
        ended = np.flatnonzero(step.terminated | step.truncated)
        self.ended_rows = ended.tolist()
        finished = [self._finish(row, int(policy_id[row])) for row in self.ended_rows]
        if len(ended) and not self._was_seen_whole.all():
            finished = [episode for row, episode in zip(ended, finished, strict=True) if self._was_seen_whole[row]]
            self.ended_rows = ended[self._was_seen_whole[ended]].tolist()
            self._was_seen_whole[ended] = True
        return finished

    def add_rows(
        self,
        rows: NDArray[np.int64],
        results: tuple[NDArray[np.float32], NDArray[np.int32]],
        ended: NDArray[np.bool_],
        infos: dict[int, dict[str, Any]],
    ) -> list[EpisodeFinished]:
        """Account for one step of some rows, which one policy plays; the episodes that it ended.

        Args:
            rows: [n] which.
            results: [n] rewards and [n] frames.
            ended: [n] an episode ended.
            infos: place among these rows -> info.
        """
        rewards, frames = results
        self._returns[rows] += rewards
        self._frames[rows] += frames
        for place, info in infos.items():
            self._take_info(int(rows[place]), info)
        self.ended_rows = rows[ended].tolist()
        return [self._finish(row, 0) for row in self.ended_rows]

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Drop the unfinished episodes of these rows, where other episodes begin."""
        self._returns[rows] = 0.0
        self._frames[rows] = 0
        self._was_seen_whole[rows] = True
        for row in rows.tolist():
            self._true.pop(row, None)
            self._extra.pop(row, None)

    def _take_info(self, row: int, info: dict[str, Any]) -> None:
        if "true_reward" in info:
            self._true[row] = float(info["true_reward"])
        if "episode_extra_stats" in info:
            extra = {str(name): float(value) for name, value in info["episode_extra_stats"].items()}
            known = {name: value for name, value in extra.items() if math.isfinite(value)}
            self._extra.setdefault(row, {}).update(known)

    def _finish(self, row: int, policy: int) -> EpisodeFinished:
        episode_return = float(self._returns[row])
        episode = EpisodeFinished(
            policy=policy,
            episode_return=episode_return,
            true_return=self._true.pop(row, math.nan),
            length_frames=int(self._frames[row]),
            extra=self._extra.pop(row, {}),
        )
        self._returns[row] = 0.0
        self._frames[row] = 0
        return episode
