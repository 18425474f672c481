"""How the learning rate changes while training goes on.

The kl_adaptive schedules follow the KL divergence of a minibatch from the weights that have chosen its rows to those
that evaluate them, before its own optimizer step. The learner leaves out minibatches whose rows have all been chosen by
the weights that evaluate them: without a step in between the divergence is 0, whatever the rate is.
"""

from __future__ import annotations

import math
from typing import Any

from appo.algorithms.learning.config import LearningConfig

# Outside half to twice the threshold the rate moves by half: fast enough to follow a drift, slow enough that one wrong
# measurement does no harm. The bounds keep a run of them from ending training for good.
_FACTOR = 1.5
_TOLERANCE = 2.0
_LOWEST, _HIGHEST = 1e-6, 1e-2


class LearningRate:
    """The step size now in force. A changed base rate starts over from that rate."""

    def __init__(self, config: LearningConfig) -> None:
        """Starts at the configured rate."""
        self._config = config
        self._adapted = config.learning_rate
        self._progress = 0.0

    @property
    def value(self) -> float:
        """The step size for the next optimizer step."""
        if self._config.lr_schedule == "linear_decay":
            return self._config.learning_rate * (1.0 - self._progress)
        return self._adapted if self.needs_kl else self._config.learning_rate

    @property
    def needs_kl(self) -> bool:
        """Whether the schedule wants to hear of every minibatch's KL divergence."""
        return self._config.lr_schedule.startswith("kl_adaptive")

    def start_iteration(self, progress: float) -> None:
        """Take the fraction of the run's budget that is spent, from 0 to 1."""
        self._progress = min(max(progress, 0.0), 1.0)

    def after_minibatch(self, kl: float) -> None:
        """Take the mean KL divergence between behaviour and target policy on one minibatch that tells of a change."""
        if self._config.lr_schedule == "kl_adaptive_minibatch":
            self._adapt(kl)

    def after_epoch(self, kls: list[float]) -> None:
        """Take those of all such minibatches of one epoch; none when every step was skipped."""
        if self._config.lr_schedule == "kl_adaptive_epoch" and kls:
            self._adapt(sum(kls) / len(kls))

    def set_config(self, config: LearningConfig) -> None:
        """Follow other options from now on; an adapted rate survives unless the base rate changes."""
        if config.learning_rate != self._config.learning_rate:
            self._adapted = config.learning_rate
        self._config = config

    def state_dict(self) -> dict[str, float]:
        """What `load_state_dict` needs to go on from here."""
        return {"base": self._config.learning_rate, "adapted": self._adapted, "progress": self._progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; a base rate that differs from the saved one is a new start from that rate."""
        self._progress = state["progress"]
        has_same_base = state["base"] == self._config.learning_rate
        self._adapted = state["adapted"] if has_same_base else self._config.learning_rate

    def _adapt(self, kl: float) -> None:
        if not math.isfinite(kl):
            return
        threshold = self._config.lr_schedule_kl_threshold
        if kl > _TOLERANCE * threshold:
            self._adapted = max(self._adapted / _FACTOR, min(_LOWEST, self._adapted))
        elif kl < threshold / _TOLERANCE:
            self._adapted = min(self._adapted * _FACTOR, max(_HIGHEST, self._adapted))
