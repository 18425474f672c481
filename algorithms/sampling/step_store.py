"""The steps that environments gather until their episodes, or fragments of them, are taken.

Letters:  N = environments,  A = agents of each (no axis where there is one).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.sampling.episodes import PER_STEP, Episode
from appo.envs.vector.shared_rows import action_width, observation_zeros
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
            "actions": ((*axes, width), np.float32),
            "rewards": (axes, np.float32),
        }
        shapes |= dict.fromkeys(("terminated", "truncated", "is_active"), (axes, np.bool_))
        shapes |= {"versions": ((), np.int64), "frames": ((), np.int32)}
        self._steps = {
            f"obs/{leaf.name}": observation_zeros(leaf, spec, number, PIECE, *axes) for leaf in spec.observations
        }
        self._steps |= {name: np.zeros((number, PIECE, *shape), dtype) for name, (shape, dtype) in shapes.items()}
        self._pieces: list[list[dict[str, NDArray[Any]]]] = [[] for _ in range(number)]
        self._place = np.zeros(number, np.int64)
        self._agents = spec.agents_per_env
        self._agent_names = spec.agents
        self._told: list[list[tuple[int, int, dict[str, Any]]]] = [[] for _ in range(number)]  # step, agent, info
        self._newest_told: list[dict[int, dict[str, Any]]] = [{} for _ in range(number)]  # agent -> info
        self._takes_part = np.zeros((number, *axes), np.bool_)  # has acted in this episode, which has not ended for it
        self.latest = {leaf.name: observation_zeros(leaf, spec, number, *axes) for leaf in spec.observations}
        """[N, ...] the observations that the newest steps led to, and that the next actions follow from."""
        self.actions = np.zeros((number, *axes, width), np.float32)
        self.versions = np.zeros(number, np.int64)
        self.is_first = np.ones((number, *axes), np.bool_)
        self.is_active = np.ones((number, *axes), np.bool_)
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
        for env in range(len(self.numbers)):
            self._clear_pieces(env)

    def add(self, batch: StepBatch, is_over: NDArray[np.bool_]) -> None:
        """Add steps to the episodes that they belong to; where one begins after a failure, forget the one before.

        `is_over`: [n] an episode is over, for all of its agents. It can be taken until `begin` is called.
        """
        for env in batch.env_ids[batch.kind == KIND_RESTARTED].tolist():
            self._forget(env)
        stepped = batch.kind == KIND_STEP
        envs = batch.env_ids[stepped]
        if len(envs):
            self._add_steps(batch, stepped, envs)
        self._reach(batch, is_over)
        for env in envs[self._place[envs] == PIECE].tolist():
            self._cut_out(env)

    def _add_steps(self, batch: StepBatch, stepped: NDArray[np.bool_], envs: NDArray[np.int64]) -> None:
        places = self._place[envs]
        for name, array in self.latest.items():
            self._steps[f"obs/{name}"][envs, places] = array[envs]
        added = {
            "actions": self.actions[envs],
            "is_active": self.is_active[envs],
            "rewards": batch.rewards[stepped],
            "terminated": batch.terminated[stepped],
            "truncated": batch.truncated[stepped],
            "versions": self.versions[envs],
            "frames": batch.frames[stepped].reshape(len(envs), -1).max(axis=1),
        }
        for name, values in added.items():
            self._steps[name][envs, places] = values
        for row, info in batch.infos.items():
            place, agent = divmod(row, self._agents)
            if not stepped[place]:
                continue
            env = int(batch.env_ids[place])
            self._told[env].append((int(self.num_kept[env]), agent, info))
            self._newest_told[env][agent] = info
        self._place[envs] += 1
        self.lengths[envs] += 1
        self.num_kept[envs] += 1

    def _reach(self, batch: StepBatch, is_over: NDArray[np.bool_]) -> None:
        """Keep the observations that steps led to: where an episode ended, its last one, and not the next one's first.

        Of agents that had ended before, nothing is known: zeros.
        """
        envs, ended = batch.env_ids, batch.terminated | batch.truncated
        if not ended.any():
            for name, array in batch.obs.items():
                self.latest[name][envs] = array
            return
        is_gone = None if self._agents == 1 else is_over[:, None] & ~ended
        for name, array in batch.obs.items():
            reached = array.copy("K")
            reached[ended] = batch.final_obs[name][ended]
            if is_gone is not None:
                reached[is_gone] = 0
            self.latest[name][envs] = reached
        self._takes_part[envs] &= ~ended

    def begin(self, batch: StepBatch, is_over: NDArray[np.bool_]) -> None:
        """Go on with the next episodes where some are over, and know who acts next; `is_over`: as in `add`."""
        envs, begins = batch.env_ids, is_over | (batch.kind != KIND_STEP)
        self.is_first[envs] = batch.is_first
        if begins.any():
            for name, array in batch.obs.items():
                self.latest[name][envs[begins]] = array[begins]
            self._takes_part[envs[begins]] = False
        self.is_active[envs] = batch.is_active
        self._takes_part[envs] |= batch.is_active

    def truncate(self, env: int) -> None:
        """Mark the newest step of an environment as the last one that a limit allows, for all who are still there."""
        concerned = True if self._agents == 1 else self._takes_part[env]
        if self._place[env]:
            self._steps["truncated"][env, self._place[env] - 1] |= concerned
        else:
            self._pieces[env][-1]["truncated"][-1] |= concerned

    def take(self, env: int, space_rows: SpaceRows, *, ends: bool) -> Episode:
        """Take what an environment has gathered out of here; `ends`: its next step begins another episode."""
        self._cut_out(env)
        pieces, self._pieces[env] = self._pieces[env], []
        joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in self._steps}
        kept = int(self.num_kept[env])
        episode = Episode(
            env,
            int(self.numbers[env]),
            {name: np.concatenate([joined[f"obs/{name}"], array[env][None]]) for name, array in self.latest.items()},
            joined["actions"] if self._agents > 1 else space_rows.restored_actions(joined["actions"]),
            start=int(self.lengths[env]) - kept,
            ends=ends,
            info=self._last_info(env) if ends else {},
            infos=_stacked(self._told[env], kept, self._agents),
            **{name: joined[name] for name in PER_STEP},
        )
        self._told[env].clear()
        self.num_kept[env] = 0
        if ends:
            self._newest_told[env].clear()
            self.numbers[env] += 1
            self.lengths[env] = 0
        return episode

    def _last_info(self, env: int) -> dict[str, Any]:
        if self._agents > 1:
            return {self._agent_names[agent]: info for agent, info in sorted(self._newest_told[env].items())}
        step, _, info = self._told[env][-1] if self._told[env] else (-1, 0, {})
        return info if step == self.num_kept[env] - 1 else {}

    def _forget(self, env: int) -> None:
        self.numbers[env] += int(self.lengths[env] > 0)
        self._place[env] = self.lengths[env] = self.num_kept[env] = 0
        self._clear_pieces(env)

    def _clear_pieces(self, env: int) -> None:
        self._pieces[env].clear()
        self._told[env].clear()
        self._newest_told[env].clear()

    def _cut_out(self, env: int) -> None:
        count = int(self._place[env])
        if count:
            self._pieces[env].append({name: array[env, :count].copy("K") for name, array in self._steps.items()})
        self._place[env] = 0


def _stacked(told: list[tuple[int, int, dict[str, Any]]], steps: int, agents: int) -> dict[str, NDArray[np.float64]]:
    """By name, numbers that infos held: [L] or [L, A], nan where none did.

    Args:
        told: step, agent and info.
        steps: L.
        agents: A.
    """
    stacked: dict[str, NDArray[np.float64]] = {}
    for step, agent, info in told:
        extra = info.get("episode_extra_stats", {})
        numbers = {f"episode_extra_stats/{name}": value for name, value in extra.items()}
        if "true_reward" in info:
            numbers["true_reward"] = info["true_reward"]
        for name, value in numbers.items():
            if name not in stacked:
                stacked[name] = np.full((steps, agents), np.nan)
            stacked[name][step, agent] = value
    return {name: array[:, 0] if agents == 1 else array for name, array in stacked.items()}
