"""The steps that environments gather until their episodes, or fragments of them, are taken.

Letters:  N = environments,  A = agents of each (no axis where there is one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.sampling.episodes import Episode
from appo.envs.vector.shared_rows import action_width
from appo.envs.vector.space_rows import SpaceRows
from appo.envs.vector.step_batch import KIND_RESTARTED, KIND_STEP, StepBatch
from appo.envs.vector.vec_env import VecEnv

PIECE = 64  # steps after which what an environment has gathered moves out of the common arrays


class StepStore:
    """What each environment has gathered of its present episode, in common arrays and in pieces cut out of them."""

    def __init__(self, env: VecEnv) -> None:
        """Of some environments, with nothing gathered."""
        spec, number = env.spec, env.num_envs
        axes = () if spec.agents_per_env == 1 else (spec.agents_per_env,)
        width = action_width(spec)
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            f"obs/{leaf.name}": ((*axes, *leaf.shape), leaf.dtype) for leaf in spec.observations
        }
        shapes |= {"actions": ((*axes, width), np.float32), "rewards": (axes, np.float32)}
        shapes |= {"terminated": (axes, np.bool_), "truncated": (axes, np.bool_)}
        shapes |= {"versions": ((), np.int64), "frames": ((), np.int32)}
        self._steps = {name: np.zeros((number, PIECE, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        self._pieces: list[list[dict[str, NDArray[Any]]]] = [[] for _ in range(number)]
        self._place = np.zeros(number, np.int64)
        self._has_agents = bool(axes)
        self.latest = {leaf.name: np.zeros((number, *axes, *leaf.shape), leaf.dtype) for leaf in spec.observations}
        """[N, ...] the observations that the next actions follow from."""
        self.actions = np.zeros((number, *axes, width), np.float32)
        self.versions = np.zeros(number, np.int64)
        self.is_first = np.ones((number, *axes), np.bool_)
        self.numbers = np.zeros(number, np.int64)
        """Of the present episode of each environment."""
        self.lengths = np.zeros(number, np.int64)
        """Steps of the present episode."""
        self.num_kept = np.zeros(number, np.int64)
        """The same, without those that were taken as fragments."""

    def clear(self) -> None:
        """Nothing was gathered, every environment is before its first episode."""
        for counter in (self._place, self.numbers, self.lengths, self.num_kept):
            counter[:] = 0
        for pieces in self._pieces:
            pieces.clear()

    def add(self, batch: StepBatch) -> None:
        """Add steps to the episodes that they belong to; where one begins after a failure, forget the one before."""
        lost = batch.env_ids[batch.kind == KIND_RESTARTED]
        for env in lost.tolist():
            self._forget(env)
        stepped = batch.kind == KIND_STEP
        envs = batch.env_ids[stepped]
        if not len(envs):
            return
        places = self._place[envs]
        for name, array in self.latest.items():
            self._steps[f"obs/{name}"][envs, places] = array[envs]
        frames = batch.frames[stepped].reshape(len(envs), -1).max(axis=1)
        given = (self.actions[envs], batch.rewards[stepped], batch.terminated[stepped], batch.truncated[stepped])
        names = ("actions", "rewards", "terminated", "truncated")
        for name, values in zip(names, given, strict=True):
            self._steps[name][envs, places] = values
        self._steps["versions"][envs, places] = self.versions[envs]
        self._steps["frames"][envs, places] = frames
        self._place[envs] += 1
        self.lengths[envs] += 1
        self.num_kept[envs] += 1
        for env in envs[self._place[envs] == PIECE].tolist():
            self._cut_out(env)

    def show(self, batch: StepBatch) -> None:
        """Keep the observations that the next actions follow from."""
        for name, array in batch.obs.items():
            self.latest[name][batch.env_ids] = array
        self.is_first[batch.env_ids] = batch.is_first

    def truncate(self, env: int) -> None:
        """Mark the newest step of an environment as the last one that a limit allows."""
        if self._place[env]:
            self._steps["truncated"][env, self._place[env] - 1] = True
        else:
            self._pieces[env][-1]["truncated"][-1] = True

    def take(
        self,
        env: int,
        number: int,
        final: Mapping[str, Any],
        info: dict[str, Any],
        space_rows: SpaceRows,
        *,
        ends: bool = True,
    ) -> Episode:
        """Take what an environment has gathered out of here; `ends`: its next step begins another episode."""
        self._cut_out(env)
        pieces, self._pieces[env] = self._pieces[env], []
        joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in self._steps}
        observations = {
            name: np.concatenate([joined[f"obs/{name}"], np.asarray(final[name])[None]]) for name in self.latest
        }
        self.num_kept[env] = 0
        if ends:
            self.numbers[env] += 1
            self.lengths[env] = 0
        actions = joined["actions"] if self._has_agents else space_rows.restored_actions(joined["actions"])
        rest = {name: joined[name] for name in ("rewards", "terminated", "truncated", "versions", "frames")}
        return Episode(env, number, observations, actions, info=info, **rest)

    def _forget(self, env: int) -> None:
        self.numbers[env] += int(self.lengths[env] > 0)
        self._place[env] = self.lengths[env] = self.num_kept[env] = 0
        self._pieces[env].clear()

    def _cut_out(self, env: int) -> None:
        count = int(self._place[env])
        if count:
            self._pieces[env].append({name: array[env, :count].copy() for name, array in self._steps.items()})
        self._place[env] = 0
