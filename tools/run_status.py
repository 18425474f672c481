"""How a run stands, as its files and its lock tell: does it train, has it ended, or died?"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.run.config import STATUS_FILE, SUMMARY_FILE
from appo.algorithms.run.folder_lock import Holder, holder
from appo.tools.arguments import Refused
from appo.tools.curves import RETURN, PlotError, configurations, read_points
from appo.tools.experiments import ENV, Found, differing, env_of

STARTING, TRAINING, ENDED, DIED = "starting", "training", "ended", "died"
# status.json is replaced once a second; a driver that is silent for so long is stopped, or its disk is.
_SILENT_S = 60.0
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


class RunStatus(NamedTuple):
    """One run at this moment."""

    experiment: Found
    state: str  # one of those above
    reason: str  # why it ended or died; empty as long as all is well
    holder: Holder | None  # the process that trains, if one does
    frames: int
    hours: float  # of training, over all starts
    fps: float  # now, where it trains; else over all of its training
    last_return: float  # mean of the newest episodes, of the best policy; NaN before the first
    best_return: float  # highest mean in its curves
    age_s: float  # since its last sign of life

    @property
    def env(self) -> str:
        """Name of the environment."""
        return env_of(self.experiment)

    @property
    def told_state(self) -> str:
        """State and reason in one line."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def as_json(self, options: Sequence[str]) -> dict[str, Any]:
        """What `--json` prints; the values of some options among it, and null for numbers that do not exist."""
        holds = self.holder
        numbers = {name: getattr(self, name) for name in ("hours", "fps", "last_return", "best_return", "age_s")}
        return {
            "name": self.experiment.name,
            "folder": str(self.experiment.folder),
            "env": self.env,
            "state": self.state,
            "reason": self.reason,
            "pid": holds.pid if holds else None,
            "host": holds.host if holds else None,
            "frames": self.frames,
            **{name: number if math.isfinite(number) else None for name, number in numbers.items()},
            "options": {name: self.experiment.options.get(name) for name in options},
        }


def status_of(experiment: Found) -> RunStatus:
    """Look at the files of a run and at its lock.

    Raises:
        Refused: a file is there, but cannot be read.
    """
    status, summary = (_read(experiment.folder / name) for name in (STATUS_FILE, SUMMARY_FILE))
    try:
        holds = holder(experiment.folder)
    except OSError as error:
        raise Refused(f"the lock of {experiment.folder} cannot be read ({error.strerror})") from error
    age_s = max(0.0, time.time() - (status.get("time") or experiment.folder.stat().st_mtime))
    state, reason = _state(status, summary, holds, age_s)
    frames, seconds = int(status.get("env_frames", 0)), float(status.get("train_seconds", 0.0))
    fps = status.get("fps", {}).get("60") if state == TRAINING else None
    returns = [policy["avg_reward"] for policy in status.get("policies", []) if policy["avg_reward"] is not None]
    return RunStatus(
        experiment,
        state,
        reason,
        holds,
        frames,
        seconds / 3600.0,
        float(fps) if fps is not None else frames / seconds if seconds else math.nan,
        max(returns, default=math.nan),
        max([*returns, *_returns(experiment.folder)], default=math.nan),
        age_s,
    )


def _state(status: dict[str, Any], summary: dict[str, Any], holds: Holder | None, age_s: float) -> tuple[str, str]:
    has_trained = status.get("state") == "training"
    if holds is not None:
        is_of_this_start = bool(status) and status["time"] >= holds.since
        if has_trained and is_of_this_start:
            return TRAINING, f"no sign of life for {duration(age_s)}" if age_s > _SILENT_S else ""
        if not (summary and is_of_this_start and status.get("state") == "ended"):  # else it writes its last files
            return STARTING, ""
    if summary:
        return ENDED, str(summary.get("reason", "")).strip().rpartition("\n")[2]
    if has_trained:
        return DIED, "its process is gone and has saved nothing more; the same command goes on"
    return ENDED, "its last start did not come to training; see log/driver.txt"


def _returns(folder: Path) -> list[float]:
    try:
        points = read_points(folder)
    except PlotError:  # none yet
        return []
    return [point[RETURN] for of_policy in points.values() for point in of_policy if point.get(RETURN) is not None]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise Refused(f"{path} is not what a run writes")
    return content


def telling_options(experiments: Sequence[Found]) -> list[str]:
    """Options of the configurations that differ and that somebody typed; the environment is told apart."""
    typed = {name for each in experiments for name in each.typed if name != ENV}
    known = configurations([each.options for each in experiments if each.options])
    return [name for name in differing(known) if name in typed]


def duration(seconds: float) -> str:
    """A time in its largest unit, rounded down: `5 min`."""
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= length), _UNITS[-1])
    return f"{seconds // length:.0f} {unit}"
