"""How fast counters grow."""

from __future__ import annotations

from collections import deque

RATE_WINDOWS_S = (10, 60, 300)


class RateMeter:
    """How fast a counter grows, over several windows of time."""

    def __init__(self, windows_s: tuple[int, ...] = RATE_WINDOWS_S) -> None:
        """Remembers as much as the longest window needs."""
        self.windows_s = windows_s
        self._history: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """Look at the counter."""
        self._history.append((now, count))
        while self._history[0][0] < now - max(self.windows_s) - 1.0:
            self._history.popleft()

    @property
    def is_known(self) -> bool:
        """The counter was looked at twice."""
        return len(self._history) > 1

    def rate(self, window_s: int) -> float:
        """Growth per second over the window, or over what there is of it; 0 as long as it is not known."""
        if not self.is_known:
            return 0.0
        now, count = self._history[-1]
        began, first = next(entry for entry in self._history if entry[0] >= now - window_s)
        if began == now:
            began, first = self._history[-2]
        return (count - first) / (now - began)
