"""The run in one line on the terminal, every few seconds."""

from __future__ import annotations

import logging
import math
import os
import sys

from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.snapshot import PolicySnapshot, RunSnapshot
from appo.algorithms.reporting.timing import in_one_line
from appo.algorithms.reporting.wording import EARLIER, in_short, time_left

LINE_EVERY_S, LINE_EVERY_S_IN_FILE = 5.0, 10.0
_COLUMNS_OF_FILE = 80
_CLOCK_COLUMNS = len("12:34:56 ")  # that the log begins each line with

log = logging.getLogger(__name__)


class TerminalLines:
    """Logs a line, once frames come; more seldom and shorter where nobody watches, as in a pipe or a file."""

    def __init__(self, files: OutputFiles) -> None:
        """The first line comes with the first frames."""
        del files
        self._next = 0.0
        is_watched = sys.stderr.isatty()
        self._every_s = LINE_EVERY_S if is_watched else LINE_EVERY_S_IN_FILE
        self._width = (_columns() if is_watched else _COLUMNS_OF_FILE) - _CLOCK_COLUMNS

    def write(self, snapshot: RunSnapshot) -> None:
        """Log a line, if that is due; at the end, where the time has gone. The end of a run has a line of its own."""
        if snapshot.state == "ended":
            tell_times(snapshot)
        elif snapshot.train_seconds >= self._next and next(iter(snapshot.fps.values())):
            self._next = snapshot.train_seconds + self._every_s
            log.info("%s", status_line(snapshot, self._width))

    def close(self) -> None:
        """Nothing is open."""


class NoLines:
    """Tells nothing: warnings, errors and the end are told by others."""

    def __init__(self, files: OutputFiles) -> None:
        """There is nothing to prepare."""

    def write(self, snapshot: RunSnapshot) -> None:
        """Take a snapshot, and leave it."""

    def close(self) -> None:
        """Nothing is open."""


def tell_times(snapshot: RunSnapshot) -> None:
    """Log where the time of each kind of process has gone."""
    for kind in snapshot.timing:
        if kind.total_s:
            log.info("time of %s", in_one_line(kind))


def status_line(snapshot: RunSnapshot, width: float = math.inf) -> str:
    """The run in one line; where that is wider than `width`, in fewer words, the last of them left out."""
    rewards = " ".join(_return(policy) for policy in snapshot.policies)
    if all(policy.avg_reward is None for policy in snapshot.policies):
        rewards = "- (no episode has ended)"
    lags = " ".join("-" if p.policy_lag is None else f"{p.policy_lag:.1f}" for p in snapshot.policies)
    if any(policy.policy_lag is not None for policy in snapshot.policies):
        lags += " steps"
    fps = "/".join(in_short(rate) for rate in snapshot.fps.values())
    windows = "/".join(str(window_s) for window_s in snapshot.fps)
    left = [f"left {told}"] if snapshot.state != "ended" and (told := time_left(snapshot.seconds_left)) else []
    faults = [f"{name.replace('_', ' ')} {count}" for name, count in snapshot.faults.items() if count]
    frames = f"frames {in_short(snapshot.env_frames)}"
    line = "  ".join([f"fps ({windows} s) {fps}", frames, f"reward {rewards}", f"lag {lags}", *left, *faults])
    if len(line) <= width:
        return line
    rate = in_short(next(iter(snapshot.fps.values()), 0.0))
    words = [f"fps {rate}", frames, f"reward {_span(snapshot)}", *faults, *left, f"lag {lags}"]
    while len(words) > 1 and len("  ".join(words)) > width:
        words.pop()
    return "  ".join(words)


def _return(policy: PolicySnapshot) -> str:
    """The mean return, and whether all of its episodes ended before this start."""
    if policy.avg_reward is None:
        return "-"
    return f"{policy.avg_reward:.2f}{'' if policy.has_new_episodes else EARLIER}"


def _span(snapshot: RunSnapshot) -> str:
    """The mean return, or from the smallest to the largest of several policies."""
    known = [policy for policy in snapshot.policies if policy.avg_reward is not None]
    if len(known) < 2:
        return _return(known[0]) if known else "-"
    returns = [policy.avg_reward for policy in known if policy.avg_reward is not None]
    return f"{min(returns):.2f} to {max(returns):.2f}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS_OF_FILE
    except OSError:
        return _COLUMNS_OF_FILE
