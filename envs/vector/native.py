"""An environment that is vectorised already, as a `BatchEnv`: one call of Gymnasium's `VectorEnv` steps every row.

A `VectorEnv` with next-step autoreset shows the last observation of every episode, terminated ones too, and starts the
next episode in the step after it, whose action it ignores. That is what `is_last` says to the caller.

Two kinds of rows are ignored: the last observation of a terminated episode, which is replaced by zeros, and the reward,
flags and infos of the step that starts an episode.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from appo.envs.action_layout import ActionLayout, random_actions
from appo.envs.adapters import failure, fill_common_case, first_seed, lose_step
from appo.envs.api import (
    ACTION_MASK,
    BadEnvDataError,
    Decorrelation,
    EnvContext,
    EnvError,
    EnvSpec,
    MisfitError,
    StepArrays,
    TrainingProgressListener,
)
from appo.envs.contract import REPORTED, check_report, checked_reset, describe, flag, flags, frame_count
from appo.envs.faults import FAILURES, FailureStreak, FaultPolicy, ValueCheck, go_on
from appo.envs.observation_layout import ObservationLayout
from appo.envs.specs import complete_spec, declares_info_mask, require_spec
from appo.envs.wrappers import find_ability, set_env_params, shape_rewards
from appo.utils.options import ConfigError

EVERY_ROW = slice(None)

log = logging.getLogger(__name__)


class VectorEnvAdapter:
    """A Gymnasium `VectorEnv` with next-step autoreset: one row per environment.

    Gymnasium's own vectors of single environments are seeded one by one, like the serial backend, so that both play the
    same episodes; one that was vectorised by its authors takes a single seed, that of its first environment. Which of
    its environments raised is not known: errors name the first.
    """

    def __init__(
        self,
        env: Any,
        contexts: Sequence[EnvContext],
        faults: FaultPolicy | None = None,
        build: Callable[[EnvContext], Any] | None = None,
        spec: EnvSpec | None = None,
    ) -> None:
        """Adapt an environment built for the first of `contexts`.

        Args:
            env: all environments in one.
            contexts: of each of them.
            faults: decides about failures; None: the first one is raised, and numbers are not looked at.
            build: builds all of them anew; needed with `faults`.
            spec: what they must exchange, also when they are built anew; None: what they do.

        Raises:
            ConfigError: another autoreset mode, or not one environment per context.
            UnsupportedSpaceError: a space that cannot be trained on.
            EnvError: they differ from `spec`, or a reset that looks for action masks failed.
        """
        self.num_envs = len(contexts)
        self._contexts = list(contexts)
        self._faults, self._build = faults, build
        self._streak, self._num_steps = FailureStreak(), 0
        self._told: dict[str, Any] = {}  # what the environment was told last, for one that takes its place
        self._is_closed = False
        adopted = self._adopt(env)
        self.spec = spec or adopted
        require_spec(adopted, self.spec, 0, self._contexts[0])
        self._values = ValueCheck(self.spec, self.num_envs)

    def _adopt(self, env: Any) -> EnvSpec:
        self.env = env  # first, so that the clean-up after a refusal closes this one
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"{env} has autoreset_mode {mode}, but the last observation of a truncated episode must be a step of "
                f"its own; build it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP"
            )
        if env.num_envs != self.num_envs:
            raise ConfigError(
                f"the factory returned a VectorEnv of {env.num_envs} environments where {self.num_envs} step together; "
                f"build as many as the field vector_size of its context says"
            )
        self._options: dict[str, Any] | None = None
        self._seed: int | list[int | None] | None = None
        if self._contexts[0].seed is not None:
            self.prepare_reset([first_seed(context) for context in self._contexts], None)
        self._early: tuple[Any, dict[str, Any]] | None = None
        self.spaces = (env.single_observation_space, env.single_action_space)
        self._layout = ObservationLayout(env.single_observation_space)
        self._actions = ActionLayout(env.single_action_space)
        mask_in_info = declares_info_mask(env, self._layout, self._actions)
        if mask_in_info is None:
            self._early = self._reset_env()
            mask_in_info = ACTION_MASK in self._early[1]
        self._mask_in_info = mask_in_info
        self._failed: EnvError | None = None  # between two steps, as the next one will tell
        self._has_ended = np.zeros(self.num_envs, np.bool_)
        return complete_spec(env, self._layout, self._actions, (), mask_in_info)

    def reset(self, out: StepArrays) -> None:
        """Start new episodes everywhere, see `BatchEnv`."""
        fill_common_case(out)
        out.rewards.fill(0.0)
        out.frames.fill(0)
        try:
            self._start(out)
        except FAILURES as error:
            self._recover("reset", error, out)

    def _start(self, out: StepArrays) -> None:
        observations, infos = self._reset_env()
        self._has_ended = np.zeros(self.num_envs, np.bool_)
        self._layout.write(self._layout.views(out.observations), EVERY_ROW, observations)
        out.is_first.fill(1)
        out.is_last.fill(0)
        out.active.fill(1)
        self._read_state(infos, out, "reset")
        if self._faults is not None:
            self._check_values(out, "reset")

    def prepare_reset(self, seeds: Sequence[int | None], options: dict[str, Any] | None) -> None:
        """Say how the next reset is done; without seeds, random numbers go on where they stand.

        Args:
            seeds: of each environment; one that was vectorised by its authors takes the first.
            options: for all of them.
        """
        self._early = None
        self._seed = list(seeds) if hasattr(self.env.unwrapped, "env_fns") else seeds[0]
        self._options = options

    def _reset_env(self) -> tuple[Any, dict[str, Any]]:
        if self._early is not None:
            early, self._early = self._early, None
            return early
        seed, self._seed = self._seed, None
        options, self._options = self._options, None
        try:
            return checked_reset(self.env, seed, options)
        except FAILURES as error:
            raise self._failure("reset", error) from error

    def _failure(self, phase: str, error: BaseException, row: int = 0) -> EnvError:
        return error if isinstance(error, EnvError) else failure(row, phase, error, self._contexts[row])

    def _check_values(self, out: StepArrays, phase: str) -> None:
        for row in range(self.num_envs):
            rows = slice(row, row + 1)
            misfit = self._values.step_misfit(out, rows) if phase == "step" else None
            misfit = misfit or self._values.misfit(out, rows)
            if misfit is not None:
                raise self._failure(phase, misfit, row) from misfit

    def _recover(self, phase: str, error: BaseException, out: StepArrays) -> None:
        """Restart all environments, since none can be restarted alone.

        Raises:
            EnvError: there is no fault policy, or it failed too often.
        """
        failed = self._failure(phase, error)
        if self._faults is None or self._build is None:
            raise failed
        if phase == "step":
            lose_step(EVERY_ROW, out)
        self._faults.recover(failed, self._streak, self._num_steps, lambda how: self._restart(how, out))

    def _restart(self, failed: EnvError, out: StepArrays) -> EnvError | None:
        try:
            if not isinstance(failed, BadEnvDataError):
                self._rebuild()
            self._start(out)
        except FAILURES as error:
            return self._failure("reset", error)
        return None

    def _rebuild(self) -> None:
        try:
            self.env.close()
        except FAILURES as error:
            log.debug("environments that had failed could not be closed: %s", error)
        self._contexts = [context._replace(attempt=context.attempt + 1) for context in self._contexts]
        assert self._build is not None
        try:
            require_spec(self._adopt(self._build(self._contexts[0])), self.spec, 0, self._contexts[0])
        except FAILURES as error:
            raise self._failure("make", error) from error
        if "progress" in self._told:
            self.set_training_progress(self._told["progress"])
        if "shaping" in self._told:
            self.shape_rewards(0, self._told["shaping"])
        if "params" in self._told:
            try:
                set_env_params(self.env, self._told["params"])
            except FAILURES as error:
                raise self._failure("set_env_params", error) from error

    def step(self, actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        """Step every row once, see `BatchEnv`."""
        fill_common_case(out)
        self._num_steps += 1
        try:
            return self._step(actions, out)
        except FAILURES as error:
            self._recover("step", error, out)
            return {}

    def _step(self, actions: np.ndarray, out: StepArrays) -> dict[int, dict[str, Any]]:
        if self._failed is not None:
            raise self._failed
        starts = self._has_ended  # in this step these rows show their first observation; the rest belongs to no episode
        observations, rewards, terminated, truncated, infos = self.env.step(self._actions.batched(actions))
        terminated, truncated = flags("terminated", terminated), flags("truncated", truncated)
        self._layout.write(self._layout.views(out.observations), EVERY_ROW, observations)
        self._read_state(infos, out, "step")
        if "num_frames" in infos:
            out.frames[:] = self._frames(infos, starts)
        self._has_ended = terminated | truncated
        out.rewards[:] = rewards
        out.rewards[starts] = 0.0
        out.frames[starts] = 0
        out.terminated[:] = terminated
        out.truncated[:] = truncated & ~terminated
        out.is_first[:] = starts
        out.is_last[:] = self._has_ended
        out.active[self._has_ended] = 1
        if out.final_observations is not None and self._has_ended.any():
            for name, array in out.final_observations.items():
                array[self._has_ended] = out.observations[name][self._has_ended]
        if terminated.any():
            for array in out.observations.values():
                array[terminated] = 0  # nothing follows from it, so nothing is owed to it either
        if self._faults is not None and not self._values.passes(out):  # rows of truncated episodes hold their last ones
            self._check_values(out, "step")
        return self._row_infos(infos, starts)

    def _read_state(self, infos: dict[str, Any], out: StepArrays, phase: str) -> None:
        if "is_active" in infos:
            active, told = self._column("is_active", infos)
            if active.dtype.kind != "b":
                self._check_rows(told, phase, lambda row: flag("is_active", active[row]))
            out.active[:] = np.where(told, active, 1)
        if self._mask_in_info:
            out.observations[ACTION_MASK].fill(1)
            if ACTION_MASK in infos:
                rows = np.broadcast_to(_has(ACTION_MASK, infos), self.num_envs)
                out.observations[ACTION_MASK][rows] = np.asarray(infos[ACTION_MASK])[rows]

    def _frames(self, infos: dict[str, Any], starts: np.ndarray) -> np.ndarray:
        frames, told = self._column("num_frames", infos)
        told = told & ~starts
        if frames.dtype.kind not in "iu" or (frames[told] < 1).any():
            self._check_rows(told, "step", lambda row: frame_count(frames[row]))
        return np.where(told, frames, 1)

    def _row_infos(self, infos: dict[str, Any], starts: np.ndarray) -> dict[int, dict[str, Any]]:
        by_row: dict[int, dict[str, Any]] = {}
        for key in REPORTED:
            if key in infos:
                told = np.broadcast_to(_has(key, infos), self.num_envs) & ~starts
                for row in np.flatnonzero(told).tolist():
                    by_row.setdefault(row, {})[key] = _entry(key, infos[key], row)
        self._check_rows(list(by_row), "step", lambda row: check_report(by_row[row]))
        return by_row

    def _column(self, key: str, infos: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """[E] what an info says of every row, and of which rows it says it."""
        values = np.asarray(infos[key])
        if values.shape not in ((), (self.num_envs,)):
            raise MisfitError(key, f"one for each of {self.num_envs} environments", describe(infos[key]))
        return np.broadcast_to(values, self.num_envs), np.broadcast_to(_has(key, infos), self.num_envs)

    def _check_rows(self, rows: Sequence[int] | np.ndarray, phase: str, check: Callable[[int], Any]) -> None:
        """Check what was said of each row; `rows` by number, or as a mask of all."""
        numbers = np.flatnonzero(rows).tolist() if isinstance(rows, np.ndarray) else rows
        for row in numbers:
            try:
                check(row)
            except MisfitError as misfit:
                raise self._failure(phase, misfit, row) from misfit

    def decorrelate(self, how: Decorrelation, out: StepArrays) -> NDArray[np.int64]:
        """Start anew and take random steps, all environments together, until an episode has ended in each.

        They fall out of step as far as their episodes end at different times. Other batches come to other moments: at
        least half of the steps allowed, drawn by chance, is where this one stops. Writes what `reset` writes; `is_last`
        is 1 where an episode ends with the last of these steps.

        Returns:
            [E] steps that the episode now being played has behind it.
        """
        self.reset(out)
        num_steps = int(how.rng.integers(how.max_steps // 2, how.max_steps, endpoint=True))
        deadline, beat = time.monotonic() + how.max_seconds, go_on if self._faults is None else self._faults.beat
        unseen, has_ended = scratch_results(out), np.zeros(self.num_envs, np.bool_)
        elapsed = np.zeros(self.num_envs, np.int64)
        for _ in range(num_steps):
            if has_ended.all() or time.monotonic() >= deadline or not beat():
                break
            mask = out.observations.get(ACTION_MASK)
            self.step(random_actions(self.spec.actions, how.rng, self.num_envs, mask), unseen)
            has_ended |= (unseen.terminated | unseen.truncated) == 1
            elapsed = np.where(unseen.is_first == 1, 0, elapsed + 1)
        out.is_first.fill(1)
        return elapsed

    def set_training_progress(self, env_frames: int) -> None:
        """Tell the environment, if it wants to know, how many frames the run has seen; if it raises, so will a step."""
        self._told["progress"] = env_frames
        listener = find_ability(self.env, TrainingProgressListener)
        try:
            if listener is not None:
                listener.set_training_progress(env_frames)
        except FAILURES as error:
            self._failed = self._failure("set_training_progress", error)

    def shape_rewards(self, index: int, weights: list[dict[str, float]]) -> None:
        """See `RewardShapingBatch`; all environments are one, so the newest weights are those of all, at once."""
        del index
        self._told["shaping"] = weights
        try:
            shape_rewards(self.env, weights)
        except FAILURES as error:
            self._failed = self._failure("set_reward_shaping", error)

    def set_env_params(self, index: int, params: dict[str, Any]) -> None:
        """Set parameters of all environments, see `EnvParameters`; remembered when they are built anew.

        Raises:
            TypeError: they have none.
            KeyError: they have no such parameter.
        """
        del index
        set_env_params(self.env, params)
        self._told["params"] = self._told.get("params", {}) | params

    def close(self) -> None:
        """Close the environment, once."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.env.close()
        except FAILURES as error:
            raise self._failure("close", error) from error


def scratch_results(out: StepArrays) -> StepArrays:
    """The same observations and state flags, with the results of unseen steps in arrays of their own."""
    return out._replace(
        rewards=np.zeros_like(out.rewards),
        terminated=np.zeros_like(out.terminated),
        truncated=np.zeros_like(out.truncated),
        frames=np.zeros_like(out.frames),
    )


def _has(key: str, infos: dict[str, Any]) -> Any:
    """Which rows have this info; a vector environment that does not say means all of them."""
    return infos.get(f"_{key}", True)


def _entry(key: str, values: Any, row: int) -> Any:
    if not isinstance(values, dict):
        if np.ndim(values) == 0 or row >= len(values):
            raise MisfitError(key, "one for each environment", describe(values))
        return values[row]
    names = [name for name in values if not (name.startswith("_") and name[1:] in values)]
    has = {name: f"_{name}" not in values or values[f"_{name}"][row] for name in names}
    return {name: _entry(key, values[name], row) for name in names if has[name]}
