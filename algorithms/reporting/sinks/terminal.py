"""The run in one line on the terminal, every few seconds."""

from __future__ import annotations

import logging
from datetime import timedelta

from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.timing import in_one_line

LINE_EVERY_S = 5.0
_LONGEST_ETA_S = 30 * 86400

log = logging.getLogger(__name__)


class TerminalLines:
    """Logs a line, once frames come."""

    def __init__(self, files: OutputFiles) -> None:
        """The first line comes with the first frames."""
        del files
        self._next = 0.0

    def write(self, snapshot: RunSnapshot) -> None:
        """Log a line, if that is due; at the end, where the time has gone. The end of a run has a line of its own."""
        if snapshot.state == "ended":
            for kind in snapshot.timing:
                if kind.total_s:
                    log.info("time of %s", in_one_line(kind))
        elif snapshot.train_seconds >= self._next and next(iter(snapshot.fps.values())):
            self._next = snapshot.train_seconds + LINE_EVERY_S
            log.info("%s", status_line(snapshot))

    def close(self) -> None:
        """Nothing is open."""


def status_line(snapshot: RunSnapshot) -> str:
    """The run in one line."""
    fps = "/".join(_short(rate) for rate in snapshot.fps.values())
    windows = "/".join(str(window_s) for window_s in snapshot.fps)
    rewards = " ".join("-" if p.avg_reward is None else f"{p.avg_reward:.2f}" for p in snapshot.policies)
    if all(policy.avg_reward is None for policy in snapshot.policies):
        rewards = "- (no episode has ended)"
    lags = " ".join("-" if p.policy_lag is None else f"{p.policy_lag:.1f}" for p in snapshot.policies)
    if any(policy.policy_lag is not None for policy in snapshot.policies):
        lags += " steps"
    left_s = snapshot.seconds_left
    left = ""
    if left_s is not None and left_s <= _LONGEST_ETA_S:
        left = f"  left {timedelta(seconds=round(left_s))}"
    faults = "".join(f"  {name.replace('_', ' ')} {count}" for name, count in snapshot.faults.items() if count)
    frames = _short(snapshot.env_frames)
    return f"fps ({windows} s) {fps}  frames {frames}  reward {rewards}  lag {lags}{left}{faults}"


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f}{suffix}"
    return f"{number:.0f}"
