"""Time as it passes for a run: a laptop that was closed or a container that was paused does not make workers late."""

from __future__ import annotations

from collections import deque

# The driver looks at its clock ten times a second. After a longer pause than this, everything else may have stood
# still as well.
GAP_S = 2.0
_REMEMBERED = 100


class AwakeClock:
    """Leaves out the time in which the process that owns it did not run."""

    def __init__(self, now: float) -> None:
        """`now`, here and below: of `time.monotonic`."""
        self._looked = now
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._asleep = 0.0

    def look(self, now: float) -> None:
        """Say that this process runs; several times a second."""
        if now - self._looked > GAP_S:
            self._gaps.append((self._looked, now))
            self._asleep += now - self._looked
        self._looked = now

    def now(self) -> float:
        """Seconds of which only differences mean something."""
        return self._looked - self._asleep

    def since(self, moment: float) -> float:
        """Seconds from a moment to the last look."""
        asleep = sum(max(0.0, end - max(begin, moment)) for begin, end in self._gaps)
        return self._looked - moment - asleep
