"""A `VecEnv` as a Gymnasium `VectorEnv`: same-step autoreset, whose final observations come in the infos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from appo.envs.vector.space_rows import SpaceRows
from appo.envs.vector.step_batch import KIND_STEP, StepBatch
from appo.envs.vector.vec_env import VecEnv


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[Any, Any, NDArray[Any]]):
    """Steps all environments of a `VecEnv` together.

    `infos` hold what environments tell under `true_reward` and `episode_extra_stats`, `final_obs` where episodes ended
    (other rows than those of the mask `_final_obs` mean nothing), and `restarted`: [n] steps that have no result
    because an environment failed.
    """

    def __init__(self, env: VecEnv) -> None:
        """Over environments of a single agent.

        Raises:
            TypeError: it is no `VecEnv`.
            ValueError: they have several, or begin an episode one step late, as vectorised ones do.
        """
        if not isinstance(env, VecEnv):
            raise TypeError(f"{env!r} is no VecEnv; make_vec_env makes one")
        if env.num_agents > 1:
            raise ValueError(f"Gymnasium's interface is for one agent; these environments have {env.num_agents}")
        if not env.steps_apart:
            raise ValueError("these environments are a VectorEnv already: use it as it is")
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.env, self.num_envs = env, env.num_envs
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._space_rows = SpaceRows((env.observation_space, env.action_space), env.spec)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes everywhere; `seed` as in Gymnasium: environment i gets seed + i."""
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + index for index in range(self.num_envs)]
        batch = self.env.reset(seed, options)
        return self._space_rows.restored(batch.obs), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment once."""
        batch = self.env.step(actions)
        infos = self._infos(batch) if batch.infos or batch.terminated.any() or batch.truncated.any() else {}
        if batch.kind.any():
            infos["restarted"] = batch.kind != KIND_STEP
        rewards = batch.rewards.astype(np.float64)
        return self._space_rows.restored(batch.obs), rewards, batch.terminated.copy(), batch.truncated.copy(), infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment."""
        return tuple(self.env.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each environment."""
        return tuple(self.env.get_attr(name))

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of each environment."""
        self.env.set_attr(name, list(values) if isinstance(values, tuple) else values)

    def close_extras(self, **kwargs: Any) -> None:
        """End every process."""
        timeout = kwargs.get("timeout")
        self.env.close(10.0 if timeout is None else float(timeout))

    def _infos(self, batch: StepBatch) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for row, info in batch.infos.items():
            infos = self._add_info(infos, info, row)
        ended = batch.terminated | batch.truncated
        if ended.any():
            infos["final_obs"], infos["_final_obs"] = self._space_rows.restored(batch.final_obs), ended
        return infos
