"""Environments that are slow, crash, stall, end their process or give bad data.

Besides, all of them play `identity`, optimum L, but for the unreliable CartPole.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from appo.envs.api import EnvContext
from appo.envs.simulators.synthetic_tasks import Identity
from appo.envs.synthetic_options import SyntheticOptions


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
    """A fault in the step or reset that was asked for, and in others by chance."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.is_sound = options.synthetic_fault_env not in (-1, context.env_id)
        self.fails_in_reset = options.synthetic_fault_in == "reset"
        self.total_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, if the fault lets it."""
        started = super().reset(seed=seed, options=options)  # first: it seeds the chance of a fault
        if self.fails_in_reset and self.is_fault_due():
            self.fail()
        return started

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, if the fault lets it."""
        if not self.fails_in_reset and self.is_fault_due():
            self.fail()
        return super().step(action)

    def is_fault_due(self) -> bool:
        """The fault comes now."""
        is_due = self.total_steps == self.options.synthetic_fault_step
        probability = self.options.synthetic_fault_probability
        has_bad_luck = probability > 0 and self.np_random.random() < probability
        self.total_steps += 1
        return (is_due or has_bad_luck) and not self.is_sound

    @abstractmethod
    def fail(self) -> None:
        """What goes wrong."""


class Crashing(_Faulty):
    """Raises."""

    def fail(self) -> None:
        """Raise as a simulator's binding does."""
        raise RuntimeError(f"synthetic crash in step {self.total_steps - 1} of environment {self.context.env_id}")


class Hanging(_Faulty):
    """Stalls, then goes on as if nothing had happened."""

    def fail(self) -> None:
        """Sleep."""
        time.sleep(self.options.synthetic_stall_seconds)


class Exit(_Faulty):
    """Ends the process without a word, as a simulator that segfaults does."""

    def fail(self) -> None:
        """No clean-up, no exception."""
        os._exit(self.options.synthetic_exit_code)


class BadData(_Faulty):
    """Gives what its spaces do not declare. Sees its number as an array of one float."""

    def __init__(self, options: SyntheticOptions, context: EnvContext) -> None:
        super().__init__(options, context)
        self.observation_space = spaces.Box(0, options.synthetic_size, (1,), np.float32)
        self.damage = ""

    def fail(self) -> None:
        """Damage what is given next."""
        self.damage = self.options.synthetic_bad_data

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with what may be damaged."""
        self.damage = ""
        observation, info = super().reset(seed=seed, options=options)
        return self._damaged(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, whose results may be damaged."""
        self.damage = ""
        observation, reward, terminated, truncated, info = super().step(action)
        return (
            self._damaged(observation),
            np.nan if self.damage == "nan_reward" else reward,
            terminated,
            truncated,
            info,
        )

    def _damaged(self, observation: Any) -> np.ndarray:
        sound = np.array([observation], np.float32)
        damaged = {
            "nan_observation": np.full(1, np.nan, np.float32),
            "inf_observation": np.full(1, np.inf, np.float32),
            "shape": np.zeros((), np.float32),  # numpy would stretch it without a word
            "dtype": np.zeros(1, np.complex64),
        }
        return damaged.get(self.damage, sound)


class Unreliable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises in some steps, stalls in others and ends its process in others, by chance."""

    def __init__(self, env: gymnasium.Env[Any, Any], options: SyntheticOptions) -> None:
        super().__init__(env)
        self.options = options

    def step(self, action: Any) -> Any:
        """One step, if nothing happens."""
        options, chance = self.options, self.np_random.random()
        if chance < options.synthetic_fault_probability:
            raise RuntimeError("the simulator lost its connection")
        if chance > 1.0 - options.synthetic_exit_probability:
            os._exit(options.synthetic_exit_code)
        if chance < options.synthetic_fault_probability + options.synthetic_stall_probability:
            time.sleep(options.synthetic_stall_seconds * self.np_random.uniform(0.4, 1.0))
        return super().step(action)


def unreliable_cartpole(options: SyntheticOptions, context: EnvContext) -> Unreliable:
    """CartPole-v1, optimum 500."""
    return Unreliable(gymnasium.make("CartPole-v1", disable_env_checker=True), options)
