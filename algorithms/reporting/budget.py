"""How much of a run's budget is spent, and how long the rest will take."""

from __future__ import annotations

import math
from typing import NamedTuple

UNSET = 1e10  # frames and seconds of a run whose user has set no limit: no end is in sight


class Budget(NamedTuple):
    """What a run may take, summed over resumes; training ends with whichever is spent first."""

    env_frames: float = math.inf
    seconds: float = math.inf

    def spent(self, env_frames: int, seconds: float) -> float:
        """Share of the budget that is used up; 1 and more: training is over."""
        return max(_share(env_frames, self.env_frames), _share(seconds, self.seconds))

    @property
    def is_unset(self) -> bool:
        """Nothing ends the run but who started it."""
        return self.env_frames >= UNSET and self.seconds >= UNSET

    def reason(self, env_frames: int) -> str:
        """Which limit was reached."""
        if env_frames >= self.env_frames:
            return f"reached train_for_env_steps={self.env_frames:.15g}"
        return f"reached train_for_seconds={self.seconds:.15g}"

    def seconds_left(self, env_frames: int, seconds: float, frames_per_second: float) -> float:
        """At the present speed; infinite when nothing moves, or no limit is set."""
        by_frames = by_time = math.inf
        if self.env_frames < UNSET and frames_per_second:
            by_frames = max(0.0, self.env_frames - env_frames) / frames_per_second
        if self.seconds < UNSET:
            by_time = max(0.0, self.seconds - seconds)
        return min(by_frames, by_time)


def _share(used: float, limit: float) -> float:
    return used / limit if limit else 1.0
