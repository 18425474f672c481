"""Several environments stepped one after the other in this process: the serial backend.

It suits environments that are cheap or that need no guarding; the bookkeeping is about a microsecond per environment.
Nothing here depends on time or on which process runs it: an environment's episodes follow from its context alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.adapters import ParallelEnvAdapter, SingleEnvAdapter, Target, failure, fill_common_case
from envs.api import ACTION_MASK, EnvContext, EnvError, RewardShaping, StepArrays, TrainingProgressListener
from envs.spaces import random_actions
from envs.wrappers import find_ability
from utils.options import ConfigError


class SerialVecEnv:
    """A `BatchEnv` of single (Gymnasium) or parallel (PettingZoo) environments, all of one kind."""

    def __init__(self, envs: Sequence[Any], contexts: Sequence[EnvContext]) -> None:
        """Adapt environments that were built for these contexts.

        Raises:
            UnsupportedSpaceError: a space that cannot be trained on.
            ConfigError: the environments differ in their spaces, or one is no environment.
            EnvError: a reset that looks for action masks failed.
        """
        self._adapters = [
            _adapter(env, index, context) for index, (env, context) in enumerate(zip(envs, contexts, strict=True))
        ]
        first = self._adapters[0]
        for adapter in self._adapters[1:]:
            if adapter.spec != first.spec:
                raise ConfigError(
                    f"environment {adapter.env_index} differs from environment 0: {adapter.spec} and {first.spec}; all "
                    f"environments of a run must have the same spaces"
                )
        self.num_envs = len(self._adapters)
        self.spec = first.spec
        self._layout, self._actions = first.layout, first.actions
        self._takes_groups = isinstance(first, ParallelEnvAdapter)
        agents = self.spec.agents_per_env
        self._slots = [(adapter.step, index * agents) for index, adapter in enumerate(self._adapters)]
        listeners = [find_ability(env, TrainingProgressListener) for env in envs]
        self._listeners = [listener for listener in listeners if listener is not None]
        shapings = [find_ability(env, RewardShaping) for env in envs]
        self._shapings = [shaping for shaping in shapings if shaping is not None]
        self._is_closed = False

    def reset(self, out: StepArrays) -> None:
        """Start new episodes everywhere, see `BatchEnv`."""
        out.final.fill(0)
        out.active.fill(1)
        target = Target(self._layout.views(out.observations), out, {})
        for index, adapter in enumerate(self._adapters):
            try:
                adapter.start(index * self.spec.agents_per_env, target)
            except EnvError:
                raise
            except Exception as error:
                raise failure(index, "reset", error) from error
        out.fresh.fill(1)

    def step(self, actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        """Step every row once, see `BatchEnv`."""
        fill_common_case(out)
        target = Target(self._layout.views(out.observations), out, {})
        row = 0
        try:
            for (step, row), action in zip(self._slots, self._per_env(actions), strict=True):
                step(action, row, target)
        except EnvError:
            raise
        except Exception as error:
            raise failure(row // self.spec.agents_per_env, "step", error) from error
        return target.infos

    def _per_env(self, actions: np.ndarray) -> Any:
        """[E, W] -> for each environment what its adapter takes: an action, or a list with one per agent."""
        rows = self._actions.rows(actions)
        if not self._takes_groups:
            return rows
        rows, agents = list(rows), self.spec.agents_per_env
        return [rows[first : first + agents] for first in range(0, len(rows), agents)]

    def decorrelate(
        self, rng: np.random.Generator, max_steps: int, out: StepArrays, max_seconds: float = math.inf
    ) -> None:
        """Start anew, then take each environment a different number of random steps into its episodes.

        Writes what `reset` writes. Environments that were stepped together would otherwise all end together for long,
        and every batch would hold one phase of the episode only.

        Args:
            rng: decides how many steps and which actions.
            max_steps: the number of steps is drawn from 0 to this.
            out: where the observations go.
            max_seconds: when to stop stepping, each environment after its share. The only thing that depends on time.
        """
        begin = time.monotonic()
        self.reset(out)
        num_steps = rng.integers(0, max_steps, self.num_envs, endpoint=True).tolist()
        for index, env_rng in enumerate(rng.spawn(self.num_envs)):
            deadline = begin + max_seconds * (index + 1) / self.num_envs
            self._advance(index, env_rng, num_steps[index], _rows_of(out, index, self.spec.agents_per_env), deadline)

    def _advance(self, index: int, rng: np.random.Generator, num_steps: int, out: StepArrays, deadline: float) -> None:
        """Take one environment some random steps; `out` holds its rows only."""
        adapter: Any = self._adapters[index]
        target = Target(self._layout.views(out.observations), out, {})
        try:
            for _ in range(num_steps):
                if time.monotonic() >= deadline:
                    break
                mask = out.observations.get(ACTION_MASK)
                actions = random_actions(self.spec.actions, rng, self.spec.agents_per_env, mask)
                fill_common_case(out)
                adapter.step(next(iter(self._per_env(actions))), 0, target)
            if adapter.is_between_episodes:
                fill_common_case(out)
                adapter.start(0, target)
        except EnvError:
            raise
        except Exception as error:
            raise failure(index, "step", error) from error
        out.active[out.final == 1] = 0  # an agent that was truncated before the others takes no part any more
        out.final.fill(0)
        out.fresh.fill(1)

    def set_training_progress(self, env_frames: int) -> None:
        """Tell every environment that wants to know how many frames the run has seen."""
        for listener in self._listeners:
            listener.set_training_progress(env_frames)

    def get_reward_shaping(self) -> dict[str, float] | None:
        """The weights of the reward in force; None where the environments have none to tune."""
        return self._shapings[0].get_reward_shaping() if self._shapings else None

    def set_reward_shaping(self, weights: dict[str, float]) -> None:
        """Hand new weights to every environment that has any."""
        for shaping in self._shapings:
            shaping.set_reward_shaping(weights)

    def remember_randomness(self) -> None:
        """See `envs.api.Repeatable`."""
        for adapter in self._adapters:
            adapter.remembers_randomness = True

    def randomness(self) -> list[dict[str, Any]]:
        """See `envs.api.Repeatable`."""
        return [adapter.randomness for adapter in self._adapters]

    def restore_randomness(self, states: list[dict[str, Any]]) -> None:
        """See `envs.api.Repeatable`."""
        for adapter, state in zip(self._adapters, states, strict=True):
            adapter.restore_randomness(state)

    def close(self) -> None:
        """Close every environment, once, also when some of them fail to; the first failure is raised at the end."""
        if self._is_closed:
            return
        self._is_closed = True
        first_failure: tuple[int, Exception] | None = None
        for index, adapter in enumerate(self._adapters):
            try:
                adapter.close()
            except Exception as error:
                first_failure = first_failure or (index, error)
        if first_failure:
            failed_index, cause = first_failure
            raise failure(failed_index, "close", cause) from cause


def _adapter(env: Any, index: int, context: EnvContext) -> SingleEnvAdapter | ParallelEnvAdapter:
    if hasattr(env, "agent_iter"):
        raise ConfigError(
            f"{env} lets its agents act in turns; make it parallel with pettingzoo.utils.conversions.aec_to_parallel"
        )
    if hasattr(env, "possible_agents"):
        return ParallelEnvAdapter(env, index, context)
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return SingleEnvAdapter(env, index, context)
    raise ConfigError(
        f"the factory returned {env!r}; return a gymnasium.Env, gymnasium.vector.VectorEnv or PettingZoo ParallelEnv"
    )


def _rows_of(out: StepArrays, index: int, agents: int) -> StepArrays:
    """The rows of one environment, for steps whose results nobody will see."""
    rows = slice(index * agents, (index + 1) * agents)
    return StepArrays(
        observations={name: array[rows] for name, array in out.observations.items()},
        fresh=out.fresh[rows],
        final=out.final[rows],
        active=out.active[rows],
        rewards=np.zeros(agents, np.float32),
        terminated=np.zeros(agents, np.uint8),
        truncated=np.zeros(agents, np.uint8),
        frames=np.zeros(agents, np.int32),
    )
