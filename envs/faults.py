"""Environments that fail during training: which failures are recovered from, how often, and what is logged.

An environment that raises is built anew, in its place; the others are not touched. Bad data is a defect that another
try would not repair: it ends the run, unless the user wants such steps dropped and the environment reset. Either way,
after too many failures without one sound step in between the process ends, and the supervisor decides what follows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np

from appo.envs.api import ACTION_MASK, BadEnvDataError, EnvError, EnvSpec, MisfitError, RestartsUsedUp, StepArrays
from appo.utils.files import cut_text
from appo.utils.options import ConfigError

# An environment that calls sys.exit has failed like one that raises.
FAILURES = (Exception, SystemExit)
# Environments that fail in every step must not fill the disk.
LOG_EVERY_S = 1.0

log = logging.getLogger(__name__)


def close_quietly(envs: Iterable[Any]) -> None:
    """Close environments, or batches of them, that are of no use any more; a failure is only logged."""
    for env in envs:
        try:
            env.close()
        except FAILURES as error:
            log.debug("an environment of no more use could not be closed: %s", error)


def ignore(is_bad_data: bool, cause: str) -> None:
    """Count nothing."""


def go_on() -> bool:
    """Send no sign of life, and never be asked to end."""
    return True


class FailureStreak:
    """How often one environment has failed without a sound step in between."""

    def __init__(self) -> None:
        self._last_step, self._in_a_row = -2, 0

    def add(self, step: int, failed: EnvError) -> int:
        """Note a failure in step number `step`, or in the reset that follows it; how many there are in a row now."""
        sound_steps = step - self._last_step - failed.loses_step
        self._in_a_row = 1 if sound_steps > 0 else self._in_a_row + 1
        self._last_step = step
        return self._in_a_row


class Restarts(NamedTuple):
    """What happens when environments fail, and how often: when one raises, and when a process of them ends or hangs.

    The limits hold for the processes that take each other's place, and for all environments of one process that raise
    or give numbers that are not finite.
    """

    on: Literal["raise", "restart"] = "raise"
    max_lifetime: int = 10  # of one process; -1: no limit
    rate: int = 1  # within `per_seconds`; -1: no limit
    per_seconds: float = 60.0

    def check(self) -> None:
        """Refuse what can have no meaning.

        Raises:
            ConfigError: names the field.
        """
        if self.on not in ("raise", "restart"):
            raise ConfigError(f"Restarts(on={self.on!r}) is unknown; there are raise, restart")
        for name in ("max_lifetime", "rate"):
            if not isinstance(number := getattr(self, name), int | np.integer) or number < -1:
                raise ConfigError(f"Restarts({name}={number!r}) is no number of restarts; -1: no limit")
        if not isinstance(self.per_seconds, int | float | np.number) or not self.per_seconds > 0:
            raise ConfigError(f"Restarts(per_seconds={self.per_seconds!r}) has to be above 0")


class RestartQuota:
    """How often one process, or the environments of one, may still be started anew."""

    def __init__(self, restarts: Restarts) -> None:
        self._restarts = restarts
        self._times: list[float] = []
        self.num_taken = 0

    @property
    def why(self) -> str:
        """Why there is no restart, after `take` refused one."""
        on, lifetime, rate, period = self._restarts
        if on == "raise":
            return ""
        limits = f"max_lifetime={lifetime}, rate={rate}, per_seconds={period:g}"
        return f"no restart is left of Restarts({limits}), {self.num_taken} were taken"

    def take(self, now: float) -> bool:
        """Use one restart, if there is one left at this time (in seconds)."""
        on, lifetime, rate, period = self._restarts
        self._times = [time for time in self._times if time > now - period]
        is_allowed = on == "restart" and lifetime != self.num_taken and (rate < 0 or len(self._times) < rate)
        if is_allowed:
            self.num_taken += 1
            self._times.append(now)
        return is_allowed


class FaultPolicy:
    """Decides about the failures of all environments of one process, counts them and logs them now and then."""

    def __init__(
        self,
        max_rebuilds: int,
        *,
        drops_bad_data: bool = False,
        count: Callable[[bool, str], None] = ignore,
        repairing: Callable[[], AbstractContextManager[Any]] = nullcontext,
        beat: Callable[[], bool] = go_on,
        restarts: Restarts | None = None,
    ) -> None:
        """Begin with no failures.

        Args:
            max_rebuilds: of one environment in a row, without a sound step in between.
            drops_bad_data: bad data cost the step, not the run.
            count: called for each failure that is recovered from, with whether it was bad data, and its cause.
            repairing: surrounds the recovery of an environment, which may take as long as building one.
            beat: called after each environment that was built or reset at the start, and while they are moved apart: a
                sign of life; False: they are not needed any more.
            restarts: how often in all; None: no limit.
        """
        self.max_rebuilds = max_rebuilds
        self.drops_bad_data = drops_bad_data
        self.count = count
        self._repairing = repairing
        self.beat = beat
        self._quota = None if restarts is None else RestartQuota(restarts)
        self._num_failures = 0
        self._num_told = 0
        self._next_line = 0.0

    def recover(
        self,
        failed: EnvError | None,
        streak: FailureStreak,
        step: int,
        restart: Callable[[EnvError], EnvError | None],
    ) -> None:
        """Restart an environment until it starts without a failure.

        Args:
            failed: how it failed.
            streak: its own failures so far.
            step: the number of its batch's newest step.
            restart: given how it failed; how that failed, or None.

        Raises:
            EnvError: see `take`.
        """
        with self._repairing():
            while failed is not None:
                self.take(failed, streak.add(step, failed))
                failed = restart(failed)

    def take(self, failed: EnvError, in_a_row: int) -> None:
        """Note a failure before the recovery from it.

        Raises:
            EnvError: no recovery is allowed: bad data, other spaces, too many failures in a row or in all.
        """
        is_bad_data = isinstance(failed, BadEnvDataError)
        may_recover = self.drops_bad_data if is_bad_data else getattr(failed, "retryable", True)
        if not may_recover:
            raise failed
        if in_a_row > self.max_rebuilds:
            is_last = EnvError(failed.env_index, failed.phase, failed.message, failed.context, in_a_row)
            raise is_last from (failed.__cause__ or failed)
        if self._quota is not None and not self._quota.take(time.monotonic()):
            place = failed.env_index, failed.phase, failed.message, failed.context, in_a_row
            raise RestartsUsedUp(*place, self._quota.why) from (failed.__cause__ or failed)
        self.count(is_bad_data, cut_text(str(failed)))
        self._num_failures += 1
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LOG_EVERY_S
            self._tell(failed, "reset" if is_bad_data else "built anew")

    def _tell(self, failed: EnvError, remedy: str) -> None:
        unseen = self._num_failures - self._num_told - 1
        since = f", {unseen} of them since the last such line" if unseen else ""
        total = f"{self._num_failures} failures so far in this process{since}"
        self._num_told = self._num_failures
        log.warning("%s; it is %s (%s)", cut_text(str(failed)), remedy, total)


# Of so many numbers, Python knows the sum sooner than numpy does.
_FEW = 32


class ValueCheck:
    """Finds numbers that are not finite, categories that do not exist, and masks that allow nothing.

    Per step of a batch and leaf that takes a microsecond, of categories two and a half.
    """

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        """Look at leaves of floats, for other numbers are finite, at categories, and at the action mask."""
        rows = num_envs * spec.agents_per_env
        # Zero times anything is zero, unless that is infinite or no number; `vdot` says so without a warning, and in
        # half of the time that `isfinite` takes.
        self._reward_zeros = np.zeros(rows, np.float32)
        self._zeros = [
            (leaf.name, np.zeros((rows, *leaf.shape), leaf.dtype))
            for leaf in spec.observations
            if np.dtype(leaf.dtype).kind == "f"
        ]
        self._categories = [
            (leaf.name, leaf.num_categories) for leaf in spec.observations if leaf.kind == "categorical"
        ]
        self._has_mask = any(leaf.kind == "mask" for leaf in spec.observations)

    def passes(self, out: StepArrays) -> bool:
        """Every number is finite, and every agent that acts has a choice."""
        if len(out.rewards) <= _FEW:
            if not math.isfinite(sum(out.rewards.tolist())):
                return False
        elif np.vdot(out.rewards, self._reward_zeros) != 0.0:
            return False
        for name, zeros in self._zeros:
            if np.vdot(out.observations[name], zeros) != 0.0:
                return False
        for name, count in self._categories:
            if _unsigned(out.observations[name]).max() >= count:
                return False
        # Bytes are searched in a tenth of the time that numpy takes to ask whether all are true.
        return not self._has_mask or b"\0" not in _has_choice(out).tobytes() or not _without_choice(out).any()

    def finals_pass(self, out: StepArrays) -> bool:
        """The last observations of truncated episodes hold nothing of the kind; from others nothing follows."""
        has_leaves = bool(self._zeros or self._categories)
        if out.final_observations is None or not has_leaves or b"\1" not in out.truncated.tobytes():
            return True
        return not self._has_bad_final(out).any()

    def _has_bad_final(self, out: StepArrays) -> np.ndarray:
        is_bad = np.zeros(len(out.rewards), np.bool_)
        if out.final_observations is not None:
            is_bad |= self._has_bad(out.final_observations)
        return is_bad & (out.truncated == 1)

    def _has_bad(self, observations: Mapping[str, np.ndarray]) -> np.ndarray:
        """[E] rows with a number that is not finite, or a category that does not exist; just False without leaves."""
        found = [~np.isfinite(observations[name]) for name, _ in self._zeros]
        found += [_unsigned(observations[name]) >= count for name, count in self._categories]
        return np.logical_or.reduce([each.reshape(len(each), -1).any(axis=1) for each in found])

    def bad_rows(self, out: StepArrays) -> list[int]:
        """Agent rows of which a number is not finite or a category does not exist, or that have no choice."""
        is_bad = ~np.isfinite(out.rewards) | self._has_bad_final(out) | self._has_bad(out.observations)
        if self._has_mask:
            is_bad |= _without_choice(out)
        return [int(row) for row in np.flatnonzero(is_bad)]

    def step_misfit(self, out: StepArrays, rows: slice) -> MisfitError | None:
        """The first thing wrong with what these rows say of a step that was made, as an error to be raised."""
        if (found := _first_misfit([("reward", out.rewards[rows])])) is not None or out.final_observations is None:
            return found
        ended = out.truncated[rows] == 1
        return self._misfit_of({name: values[rows][ended] for name, values in out.final_observations.items()})

    def misfit(self, out: StepArrays, rows: slice) -> MisfitError | None:
        """The first thing wrong with what these rows observe, as an error to be raised."""
        if (found := self._misfit_of({name: seen[rows] for name, seen in out.observations.items()})) is not None:
            return found
        if self._has_mask and _without_choice(out)[rows].any():
            return MisfitError(ACTION_MASK, "1 for at least one choice", "0 for all")
        return None

    def _misfit_of(self, observations: Mapping[str, np.ndarray]) -> MisfitError | None:
        if (found := _first_misfit((name, observations[name]) for name, _ in self._zeros)) is not None:
            return found
        for name, count in self._categories:
            numbers = observations[name]
            if (is_bad := _unsigned(numbers) >= count).any():
                return MisfitError(name, f"one of {count} categories", f"number {numbers[is_bad][0]}, counted from 0")
        return None


def _unsigned(numbers: np.ndarray) -> np.ndarray:
    """The same bytes, read such that a number below 0 is a large one."""
    return numbers.view(f"u{numbers.dtype.itemsize}")


def _first_misfit(named: Iterable[tuple[str, np.ndarray]]) -> MisfitError | None:
    for name, numbers in named:
        is_bad = ~np.isfinite(numbers)
        if is_bad.any():
            return MisfitError(name, "finite", f"{numbers[is_bad][0]} in {is_bad.sum()} of {is_bad.size} numbers")
    return None


def _has_choice(out: StepArrays) -> np.ndarray:
    return np.logical_or.reduce(out.observations[ACTION_MASK], axis=1)


def _without_choice(out: StepArrays) -> np.ndarray:
    """[E] rows in which an agent acts and its mask allows nothing."""
    return ~_has_choice(out) & (out.active == 1) & (out.is_last == 0)
