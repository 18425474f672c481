"""When actors may begin the next batch: so late that it is full as training on this one ends.

Each optimizer step makes the weights that acted older, and less can be learned from what they have chosen. Where
training takes longer than collecting, blocks that are given back at once are full long before the learner needs them.
Given back later they hold what newer weights have chosen, and the learner waits no longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Actors begin a little earlier than they would have to: data that wait cost less than a learner that waits.
_MARGIN = 1.1
# Weight of a new measurement that is shorter than the estimate; a longer one replaces it.
_SMOOTHING = 0.3
# An actor may hang: after so many times the usual duration the others go on, and fill the batch without it.
_PATIENCE = 2.0


class ReleasePacer:
    """Compares how long collecting takes with how long training does. All times are in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is known yet: blocks are given back at once."""
        self._clock = clock
        self._train_s = 0.0
        self._collect_s = math.inf
        self._began = self._released = 0.0
        self._is_released = self._is_full = True  # there is nothing to measure before the first batch

    @property
    def holds(self) -> bool:
        """Training takes longer than collecting: the blocks of the next batch are to be kept when they are copied."""
        return _MARGIN * self._collect_s < self._train_s

    def begin(self, *, is_released: bool) -> None:
        """A batch is full, and training on it begins. `is_released`: its blocks were given back as they were copied."""
        self.full()
        self._began = self._released = self._clock()
        self._is_released, self._is_full = is_released, False

    def is_due(self) -> bool:
        """Whether the blocks that were kept are to be given back now."""
        return not self._is_released and self._elapsed() >= self._train_s - _MARGIN * self._collect_s

    def release(self) -> None:
        """Actors begin."""
        if not self._is_released:
            self._is_released, self._released = True, self._clock()

    @property
    def expects(self) -> bool:
        """Whether it is to be told, by `full`, when the next batch is complete."""
        return self._is_released and not self._is_full

    def full(self) -> None:
        """The next batch is complete."""
        if self._is_full:
            return
        self._is_full = True
        took_s = self._clock() - self._released
        if took_s < self._collect_s < math.inf:
            took_s = self._collect_s + _SMOOTHING * (took_s - self._collect_s)
        self._collect_s = took_s

    def is_overdue(self) -> bool:
        """The learner waits, and has waited long for a batch for which it keeps blocks."""
        return self.holds and not self._is_full and self._clock() - self._released > _PATIENCE * self._collect_s

    def end(self) -> None:
        """Training has ended; what was held is given back now."""
        elapsed = self._elapsed()
        self._train_s = elapsed if not self._train_s else 0.5 * (self._train_s + elapsed)
        self.release()

    def _elapsed(self) -> float:
        return self._clock() - self._began
