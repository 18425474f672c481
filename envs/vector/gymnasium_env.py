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

RESET_MASK = "reset_mask"  # in the options of a reset, as Gymnasium has it


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[Any, Any, NDArray[Any]]):
    """Steps all environments of a `VecEnv` together.

    `infos` hold what environments tell under `true_reward` and `episode_extra_stats`; where episodes ended, `final_obs`
    and, with what was told in their last step, `final_info` (other rows than those of the masks `_final_obs` and
    `_final_info` mean nothing); and `restarted`: [n] steps that have no result because an environment failed.
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
        """Begin new episodes, everywhere or where `options["reset_mask"]` ([n] bool) says so.

        `seed` as in Gymnasium: environment i gets seed + i.

        Raises:
            ValueError, TypeError: the mask is none, or there is a seed for another number of environments.
        """
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + index for index in range(self.num_envs)]
        if options is None or RESET_MASK not in options:
            return self._space_rows.restored(self.env.reset(seed, options).obs), {}
        chosen = self._chosen(options[RESET_MASK])
        if seed is not None and len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments")
        others = {name: value for name, value in options.items() if name != RESET_MASK}
        self.env.reset_and_receive(chosen, None if seed is None else [seed[env] for env in chosen], others or None)
        return self._space_rows.restored(self.env.latest_obs()), {}

    def _chosen(self, mask: Any) -> list[int]:
        """The environments that a mask names.

        Raises:
            TypeError, ValueError: it is none.
        """
        array = np.asarray(mask)
        if array.dtype != np.bool_:
            raise TypeError(f"options[{RESET_MASK!r}]={mask!r} has to be an array of booleans")
        if array.shape != (self.num_envs,) or not array.any():
            raise ValueError(
                f"options[{RESET_MASK!r}]={mask!r} has to have the shape ({self.num_envs},) and to name an environment"
            )
        return np.flatnonzero(array).tolist()

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
        final_info: dict[str, Any] = {}
        ended = batch.terminated | batch.truncated
        for row, info in batch.infos.items():
            if ended[row]:
                final_info = self._add_info(final_info, info, row)
            else:
                infos = self._add_info(infos, info, row)
        if ended.any():
            infos["final_obs"], infos["_final_obs"] = self._space_rows.restored(batch.final_obs), ended
            infos["final_info"], infos["_final_info"] = final_info, ended
        return infos
