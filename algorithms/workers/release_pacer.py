"""When actors may begin the next batch: so late that it is full as training on this one ends.

What is collected while the learner trains is chosen by weights that training leaves behind, and the older they are the
less can be learned from it. Blocks that are given back as soon as they are copied lie there, full, until training is
over wherever that takes longer than collecting; given back so much later, they hold what newer weights have chosen, and
the learner waits no longer for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Collecting takes as long as the last times, and a little: data that wait a moment cost less than a learner that does.
_MARGIN = 1.1
# How much of a new measurement counts: a slower moment counts at once.
_SMOOTHING = 0.3
# An actor that hangs keeps its rollout back: the others play on for it when collecting takes so much longer than usual.
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
        """Training takes longer than collecting, so blocks wait for `is_due`."""
        return _MARGIN * self._collect_s < self._train_s

    def begin(self) -> None:
        """A batch is full, and training on it begins."""
        self._began = self._clock()
        self._note_full(self._began)
        self._is_released, self._is_full = not self.holds, False
        self._released = self._began

    def is_due(self) -> bool:
        """Whether actors should begin now."""
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
        """The next batch is complete, before training has ended."""
        self._note_full(self._clock())

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

    def _note_full(self, now: float) -> None:
        if self._is_full:
            return
        self._is_full = True
        took_s = now - self._released
        if took_s < self._collect_s < math.inf:
            took_s = self._collect_s + _SMOOTHING * (took_s - self._collect_s)
        self._collect_s = took_s
