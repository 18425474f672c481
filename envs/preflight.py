"""Plays an environment for a moment before a run starts, and checks that it keeps what it declares.

Errors of an environment are cheapest to find before processes start and files are written. This checks the raw results
of `reset` and `step` before adapters convert them: the flags, rewards, infos, and every observation against its space.
Random allowed actions, 300 or 1000 steps, 1.5 s at most.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from appo.envs.action_layout import mask_width, random_actions
from appo.envs.api import (
    ACTION_MASK,
    EnvContext,
    EnvError,
    EnvProfile,
    EnvSpec,
    MisfitError,
    SignatureError,
    UnsupportedSpaceError,
)
from appo.envs.contract import describe, fitting_mask, flag, is_number, read_info
from appo.envs.faults import FAILURES
from appo.envs.observation_watch import ObservationWatch
from appo.envs.raw_callers import RawResults, raw_caller
from appo.envs.registry import ResolvedEnv, make_batch_env
from appo.utils.options import ConfigError

MAX_STEPS = 300
PROFILE_STEPS = 1000  # of an environment to which options are fitted: few episodes tell little of their mean length
MAX_SECONDS = 1.5
# Training survives any number of crashes that sound steps lie between; these mean that nothing else would happen.
MAX_FAILURES_IN_A_ROW = 3
MAX_FAILURES = 10  # in the first 300 steps, and as many in each 300 after

_SEED = 1
_RESET = "reset(seed=...)"


class Checked(NamedTuple):
    """What was found out about an environment."""

    spec: EnvSpec
    warnings: list[str]
    profile: EnvProfile = EnvProfile()


def check_environment(env: ResolvedEnv, family_options: Any, drops_bad_data: bool, place: Any = None) -> Checked:
    """Build one environment, play it, close it; what a batch of these will exchange.

    Args:
        env: which environment.
        family_options: an instance of the family's `config`.
        drops_bad_data: training drops bad data, so now and then they are no reason to refuse.
        place: its attribute `value` receives the present phase as bytes, for the error when the check hangs.

    Raises:
        ConfigError: the environment breaks the contract; names what, what was expected and what was seen.
        EnvError: it cannot be built, or fails again and again.
    """
    check = _EnvCheck(env, family_options, drops_bad_data, place)
    try:
        check.play()
    finally:
        check.close()
    return Checked(check.spec, [*check.warnings, *check.repeated()], check.profile())


class _EnvCheck:
    """One check from its beginning to its end."""

    spec: EnvSpec

    def __init__(self, env: ResolvedEnv, family_options: Any, drops: bool, place: Any) -> None:
        self._resolved, self._options, self._drops, self._place = env, family_options, drops, place
        self._max_steps = MAX_STEPS if env.family.defaults(env.name) else PROFILE_STEPS
        self._batch: Any = None
        self._attempt = self._steps = self._num_resets = 0
        self._watch: ObservationWatch | None = None  # the first environment's, for all that follow it
        self._last: RawResults | None = None  # of an environment that begins its episodes by itself
        self._failures = self._in_a_row = 0
        self._causes: Counter[str] = Counter()  # of failures that were survived
        self._where = "build"
        self._rng = np.random.default_rng(_SEED)
        self._step_seconds: list[float] = []
        self._largest_pixel: float | None = None
        self._episode_steps: list[int] = []
        self._num_gains = 0
        self._has_early_reward = self._has_cost = self._has_time_limit = False
        self.warnings: list[str] = []

    def build(self) -> None:
        """An environment, and what its spaces say."""
        self._go("build")
        context = EnvContext(seed=_SEED, attempt=self._attempt)
        try:
            self._batch = make_batch_env(self._resolved, self._options, [context])
        except EnvError as error:
            if error.phase != "reset" or error.__cause__ is None:
                raise
            self._go(_RESET)  # it ran early to find action masks, and is reported like a later one
            raise error.__cause__ from None
        self.spec = self._batch.spec
        self._caller, self._last = raw_caller(self._batch), None
        if self._watch is None:
            self._watch = self._caller.watch
            self._warn(self._watch.images_read_as_vectors())

    def close(self) -> None:
        """Close what is open. An environment that fails in it is warned about, not refused."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        self._go("close")
        try:
            batch.close()
        except FAILURES as error:
            self.warnings.append(f"--env={self._resolved.name}, close: {error}")

    def repeated(self) -> list[str]:
        """Of failures that came more than once only the first is among `warnings`: how often the others came."""
        name = self._resolved.name
        return [f"--env={name}: {cause}, {times} times in all" for cause, times in self._causes.items() if times > 1]

    def profile(self) -> EnvProfile:
        """What random play has shown so far."""
        return EnvProfile(
            num_steps=self._steps,
            step_s=statistics.median(self._step_seconds) if self._step_seconds else None,
            largest_pixel=self._largest_pixel,
            num_episodes=len(self._episode_steps),
            has_time_limit=self._has_time_limit,
            episode_steps=statistics.mean(self._episode_steps) if self._episode_steps else None,
            rewards_end_only=bool(self._steps) and not self._has_early_reward,
            rewards_only_cost=bool(self._has_cost and not self._num_gains),
            num_gains=self._num_gains,
        )

    def play(self) -> None:
        """Steps until there were enough, through crashes that training would survive as well."""
        deadline = time.monotonic() + MAX_SECONDS
        while not self._has_played_enough(deadline):
            try:
                if self._batch is None:
                    self.build()
                self._play_episode(deadline)
            except (ConfigError, EnvError, UnsupportedSpaceError):
                raise  # it cannot be built
            except MisfitError as error:
                message = f"--env={self._resolved.name}, {self._where}: {error}"
                if not self._drops:
                    way_out = (
                        "" if isinstance(error, SignatureError) else "; --check_env=False starts without this check"
                    )
                    raise ConfigError(f"{message}. Fix the environment, or wrap it{way_out}") from error
                self._note_failure(message, error)
            except FAILURES as error:
                self._survive(error)

    def _survive(self, error: BaseException) -> None:
        self._note_failure(f"--env={self._resolved.name}, {self._where}: {type(error).__name__}: {error}", error)
        self._attempt += 1
        self.close()

    def _note_failure(self, message: str, error: BaseException) -> None:
        self._failures += 1
        self._in_a_row += 1
        is_often = self._failures > MAX_FAILURES * max(1.0, self._steps / MAX_STEPS)
        if self._in_a_row > MAX_FAILURES_IN_A_ROW or is_often:
            cause, context = f"{type(error).__name__}: {error}", EnvContext(env_name=self._resolved.name)
            phase = f"{self._where} of the check before the start"
            if is_often:
                phase += f", as it did {self._failures - 1} times in the {self._steps} steps before"
            raise EnvError(0, phase, cause, context, self._in_a_row) from error
        told = f"{type(error).__name__}: {error}"
        self._causes[told] += 1
        if self._causes[told] == 1:
            self.warnings.append(f"{message} (before the start; in the run its step would be lost)")

    def _warn(self, lines: Iterable[str]) -> None:
        self.warnings += [f"--env={self._resolved.name}, {self._where}: {line}" for line in lines]

    def _play_episode(self, deadline: float) -> None:
        results = self._last or self._begin_episode()
        has_ended, first = False, self._steps
        while not has_ended and not self._has_played_enough(deadline):
            mask = self._masks(results)
            rows = random_actions(self.spec.actions, self._rng, self._caller.num_rows, mask)
            self._go(f"step {self._steps + 1}")
            began = time.perf_counter()
            results = self._caller.step(rows)
            self._step_seconds.append(time.perf_counter() - began)
            self._inspect(results)
            self._steps += 1
            self._in_a_row = 0
            has_ended = results.has_ended
            self._has_time_limit |= results.is_truncated
            self._note_rewards(results.rewards.values(), has_ended=has_ended)
        self._last = results if self._caller.begins_by_itself else None
        if has_ended:
            self._episode_steps.append(self._steps - first)

    def _begin_episode(self) -> RawResults:
        """With another seed each time: a level that a seed makes says little of the others."""
        self._go(_RESET)
        results = self._caller.reset(_SEED + self._num_resets)
        self._num_resets += 1
        self._inspect(results)
        return results

    def _note_rewards(self, rewards: Iterable[float], *, has_ended: bool) -> None:
        for reward in rewards:
            self._num_gains += int(reward > 0)
            self._has_cost |= reward < 0
            self._has_early_reward |= reward != 0 and not has_ended

    def _has_played_enough(self, deadline: float) -> bool:
        """At least one step: building may have taken longer than the whole check should."""
        return self._steps >= self._max_steps or (self._steps > 0 and time.monotonic() >= deadline)

    def _go(self, where: str) -> None:
        self._where = where
        if self._place is not None:
            self._place.value = where.encode()

    def _masks(self, results: RawResults) -> np.ndarray | None:
        width = mask_width(self.spec.actions)
        masks = np.ones((self._caller.num_rows, width), np.uint8)
        for row, agent in enumerate(self._caller.agents):
            mask = _mask_of(results.observations.get(agent), results.infos.get(agent, {}))
            if mask is not None and agent in results.choosing and _is_active(results.infos.get(agent, {})):
                masks[row] = fitting_mask(mask, width)
        return masks if width else None

    def _inspect(self, results: RawResults) -> None:
        width = mask_width(self.spec.actions)
        for observation in results.observations.values():
            self._caller.layout.write(self._caller.views, self._caller.rows, observation)
            self._caller.layout.check_range(observation)
            if self._watch is not None:
                self._warn(self._watch.outside(observation))
            for leaf, view in zip(self._caller.layout.leaves, self._caller.views, strict=True):
                if leaf.kind == "image":
                    self._largest_pixel = max(self._largest_pixel or 0.0, float(view.max()))
        for reward in results.rewards.values():
            _check_reward(reward)
        for agent, info in results.infos.items():
            _check_info(info, width)
            mask = _mask_of(results.observations.get(agent), info)
            has_choice = mask is None or not width or np.any(fitting_mask(mask, width))
            if not has_choice and agent in results.choosing and _is_active(info):
                raise MisfitError(ACTION_MASK, "1 for at least one choice", "0 for all")


def _is_active(info: Any) -> bool:
    return flag("is_active", info.get("is_active", True))


def _check_reward(reward: Any) -> None:
    if not is_number(reward):
        raise MisfitError("reward", "one real number", describe(reward))
    if not math.isfinite(float(reward)):
        raise MisfitError("reward", "finite", f"{reward}")


def _check_info(info: Any, mask_entries: int) -> None:
    read_info(info)
    _is_active(info)
    if ACTION_MASK in info and mask_entries:
        fitting_mask(info[ACTION_MASK], mask_entries)


def _mask_of(observation: Any, info: Any) -> Any:
    if isinstance(observation, dict) and ACTION_MASK in observation:
        return np.ravel(observation[ACTION_MASK])
    return info.get(ACTION_MASK) if isinstance(info, dict) else None
