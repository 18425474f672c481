"""How many threads a learner computes with: tried while it learns.

More threads help large networks and large minibatches; small ones wait for their threads longer than these compute, and
a thread that computes for the learner does not step environments. On 16 cores without a GPU CartPole made 11.9k frames
per second with eight threads, 13.4k with four and 17.3k with one; Breakout, whose network has convolutions, 16.0k with
four and 19.1k with eight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

TURNS = 3  # iterations with each of two numbers, the fastest counts: in others something came between
WORTH = 1.03  # that much faster have iterations to be for twice as many threads

log = logging.getLogger(__name__)


class ThreadTrial:
    """Halves the number of threads for as long as iterations do not take longer."""

    def __init__(self, most: int, set_threads: Callable[[int], None] = torch.set_num_threads) -> None:
        """Begin with `most` threads, two or more, which the caller has set."""
        assert most > 1, "nothing to try"
        self._set_threads = set_threads
        self._most = self.threads = most
        self._fastest: dict[int, float] = {}  # threads -> seconds, of the two numbers that take turns
        self._iterations = 0  # that these have done
        self.is_over = False

    def took(self, seconds: float) -> None:
        """An iteration has taken so long; the next one may have another number of threads."""
        if self.is_over:
            return
        more, fewer = self.threads, self.threads // 2
        with_fewer = self._iterations % 2 == 1
        tried = fewer if with_fewer else more
        self._fastest[tried] = min(seconds, self._fastest.get(tried, seconds))
        self._iterations += 1
        if self._iterations < 2 * TURNS:
            self._set_threads(more if with_fewer else fewer)
            return
        times = ", ".join(f"{1000 * best:.3g} ms with {count}" for count, best in self._fastest.items())
        if self._fastest[fewer] <= WORTH * self._fastest[more]:
            self.threads = fewer
        self.is_over = self.threads == more or self.threads == 1
        if self.is_over:
            log.info("computes with %d of %d threads: an iteration takes %s", self.threads, self._most, times)
        self._fastest.clear()
        self._iterations = 0
        self._set_threads(self.threads)
