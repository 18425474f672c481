"""How many threads a learner computes with: tried while it learns.

More threads help large networks and large minibatches. Those of small ones wait for each other longer than they
compute, and a thread that computes for the learner does not step environments. On 16 cores without a GPU, CartPole
made 13.4k frames per second with four threads in the learner and 17.3k with one; Breakout 16.0k with four and 19.1k
with eight.

The choice is made once, in the first 9 to 25 iterations or, where these are short, 3 to 9 seconds of learning, and made
anew by a learner that replaces a lost one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

# For twice as many threads, iterations have to be faster by more than this: they take cores from the actors.
WORTHWHILE = 1.1
# Iterations with each of two numbers of threads, and seconds with both: the fastest counts, since in any other
# something else may have been done meanwhile.
SAMPLES, LEAST_S = 4, 3.0

log = logging.getLogger(__name__)


class ThreadTrial:
    """Halves the number of threads until iterations take longer."""

    def __init__(self, max_threads: int, set_threads: Callable[[int], None] = torch.set_num_threads) -> None:
        """Begin with `max_threads`, two or more, which the caller has set."""
        assert max_threads > 1, "nothing to try"
        self._set_threads = set_threads
        self._max_threads = self.threads = max_threads
        self.is_over = False
        self._has_warmed_up = False  # the first iteration chooses kernels and takes memory
        self._begin()

    def _begin(self) -> None:
        """Compare the number of threads with half of it."""
        self._iterations, self._seconds = 0, 0.0
        self._fastest: dict[int, float] = {}  # threads -> seconds

    def took(self, seconds: float) -> None:
        """An iteration has taken so long; the next one may have another number of threads."""
        if self.is_over:
            return
        if not self._has_warmed_up:
            self._has_warmed_up = True
            return
        tried = self._threads_of(self._iterations)
        self._fastest[tried] = min(seconds, self._fastest.get(tried, seconds))
        self._iterations += 1
        self._seconds += seconds
        if self._iterations % 4 == 0 and self._iterations >= 2 * SAMPLES and self._seconds >= LEAST_S:
            self._decide()
        if not self.is_over:
            self._set_threads(self._threads_of(self._iterations))

    def _threads_of(self, iteration: int) -> int:
        """More, fewer, fewer, more: what happens in every second iteration happens to both."""
        return self.threads // 2 if iteration % 4 in (1, 2) else self.threads

    def _decide(self) -> None:
        more, fewer = self.threads, self.threads // 2
        times = ", ".join(f"{1000 * best:.3g} ms with {count}" for count, best in self._fastest.items())
        if self._fastest[fewer] <= WORTHWHILE * self._fastest[more]:
            self.threads = fewer
        self.is_over = self.threads in (more, 1)
        if self.is_over:
            self._set_threads(self.threads)
            log.info("computes with %d of %d threads: an iteration takes %s", self.threads, self._max_threads, times)
        self._begin()
