"""Environments that are slow, crash, stall or end their process. Besides, all of them play `identity`, optimum L."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from typing import Any

from envs.api import EnvContext
from envs.families.synthetic import SyntheticOptions
from envs.simulators.synthetic_tasks import Identity


def spend(milliseconds: float, busy: bool) -> None:
    """Let time pass: asleep, or computing."""
    if not busy:
        time.sleep(milliseconds / 1000)
        return
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass


class Slow(Identity):
    """Every step takes the same time; one environment, if wanted, takes another."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        is_slow = context.env_id == options.synthetic_slow_env
        self.step_ms = options.synthetic_slow_ms if is_slow else options.synthetic_step_ms

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, in the time that it is to take."""
        spend(self.options.synthetic_reset_ms, self.options.synthetic_busy)
        return super().reset(seed=seed, options=options)

    def next_step_ms(self) -> float:
        """How long the coming step takes."""
        return self.step_ms

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, in the time that it is to take."""
        spend(self.next_step_ms(), self.options.synthetic_busy)
        return super().step(action)


class Uneven(Slow):
    """The time of a step is drawn anew each time: exponential, with the mean that was asked for."""

    def next_step_ms(self) -> float:
        """An exponential draw."""
        return float(self.np_random.exponential(self.step_ms))


class _Faulty(Identity):
    """A fault in the step that was asked for, and in others by chance."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.is_sound = options.synthetic_fault_env not in (-1, context.env_id)
        self.total_steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, if the fault lets it."""
        is_due = self.total_steps == self.options.synthetic_fault_step
        probability = self.options.synthetic_fault_probability
        is_struck = probability > 0 and self.np_random.random() < probability
        self.total_steps += 1
        if (is_due or is_struck) and not self.is_sound:
            self.fail()
        return super().step(action)

    @abstractmethod
    def fail(self) -> None:
        """What goes wrong."""


class Crashing(_Faulty):
    """Raises."""

    def fail(self) -> None:
        """Raise as a simulator's binding does."""
        raise RuntimeError(f"synthetic crash in step {self.total_steps - 1} of environment {self.context.env_id}")


class Hanging(_Faulty):
    """Stalls, then goes on as if nothing had been."""

    def fail(self) -> None:
        """Sleep."""
        time.sleep(self.options.synthetic_stall_seconds)


class Exit(_Faulty):
    """Ends the process without a word, as a simulator that segfaults does."""

    def fail(self) -> None:
        """No clean-up, no exception."""
        os._exit(self.options.synthetic_exit_code)
