"""Where a run's numbers go: TensorBoard events, `metrics.jsonl`, `status.json`, and a line on the terminal.

All are written from the same numbers. `status.json` and `metrics.jsonl` are what tools should read: they cost a
hundredth of an event file's time to write and to read.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from algorithms.training.experiment import Experiment
from algorithms.training.statistics import RATE_WINDOWS_S, Statistics
from utils.files import AppendedFile, DiskTrouble, JsonLines, atomic_write_json

STATUS_EVERY_S = 1.0
FIRST_STATUS_EVERY_S = 0.1  # as long as there is no frame to tell of


class Budget:
    """When training is over."""

    def __init__(self, env_steps: float, seconds: float) -> None:
        """Env frames and seconds, both summed over resumes."""
        self.env_steps = env_steps
        self.seconds = seconds

    def spent(self, statistics: Statistics) -> float:
        """Share of the budget that is used up; 1 and more: over."""
        frames, seconds = statistics.total_env_frames, statistics.train_seconds
        return max(_share(frames, self.env_steps), _share(seconds, self.seconds))

    def reason(self, statistics: Statistics) -> str:
        """Which limit was reached."""
        if statistics.total_env_frames >= self.env_steps:
            return f"reached train_for_env_steps={self.env_steps:g}"
        return f"reached train_for_seconds={self.seconds:g}"

    def seconds_left(self, statistics: Statistics) -> float:
        """At the present speed; infinite when nothing moves."""
        rate = statistics.frame_rate.rate(60)
        frames_left = max(0.0, self.env_steps - statistics.total_env_frames)
        by_frames = frames_left / rate if rate else math.inf
        return min(by_frames, max(0.0, self.seconds - statistics.train_seconds))


class EventFiles:
    """TensorBoard events, one folder per policy; x axis: env frames of that policy.

    tensorboardX makes the records and does not write them: its thread ends with the first error, and whoever hands it
    a point afterwards waits for ever.
    """

    def __init__(self, folders: list[Path]) -> None:
        """Files appear with the first write."""
        with _without_torch():
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.record_writer import masked_crc32c
        self._new_event, self._checksum = Event, masked_crc32c
        self._folders = folders
        self._files: list[AppendedFile | None] = [None] * len(folders)
        self._num_files = 0

    def write(self, policy: int, scalars: dict[str, float], env_frames: int) -> None:
        """One point per tag.

        Raises:
            OSError: there was no room for it; the next one may find some.
        """
        event = self._new_event(wall_time=time.time(), step=env_frames)
        for tag, value in scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        file = self._files[policy]
        if file is None or file.is_torn:  # no reader looks behind half a record
            file = self._files[policy] = self._new_file(self._folders[policy])
        file.append(self._record(event))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            if file is not None:
                file.close()

    def _new_file(self, folder: Path) -> AppendedFile:
        """Named as TensorBoard expects it, later than those before."""
        now, self._num_files = time.time(), self._num_files + 1
        header = self._record(self._new_event(wall_time=now, file_version="brain.Event:2"))
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{self._num_files:03d}"
        return AppendedFile(folder / name, header)

    def _record(self, event: Any) -> bytes:
        """length, its checksum, the event, its checksum."""
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        checksums = (struct.pack("<I", self._checksum(part)) for part in (length, content))
        return length + next(checksums) + content + next(checksums)


class Summaries:
    """Writes each of the four at its own pace."""

    def __init__(
        self, statistics: Statistics, budget: Budget, experiment: Experiment, events: EventFiles, every_s: float
    ) -> None:
        """`every_s`: seconds between points in TensorBoard and `metrics.jsonl`."""
        self._statistics = statistics
        self._budget = budget
        self._experiment = experiment
        self._trouble = DiskTrouble()
        self._lines = JsonLines(experiment.metrics_file)
        self._events = events
        self._every_s = every_s
        self._next_point = self._next_status = 0.0
        self._seen_first_episodes: set[int] = set()

    def maybe_write(self) -> None:
        """Write what is due."""
        now = time.monotonic()
        if now >= self._next_status:
            # Whoever waits for the run to begin should not wait for the second to end.
            self._next_status = now + (STATUS_EVERY_S if self._statistics.total_env_frames else FIRST_STATUS_EVERY_S)
            self._statistics.tick()
            self.write_status("training")
        if self._first_episodes() or (now >= self._next_point and self._has_begun()):
            self._next_point = now + self._every_s
            self.write_point()

    def write_point(self) -> None:
        """One point of every tag of every policy."""
        stages = self._statistics.stage_scalars()
        for policy in range(len(self._statistics.episodes)):
            frames = self._statistics.env_frames(policy)
            scalars = self._statistics.scalars(policy) | stages
            scalars = {tag: value for tag, value in scalars.items() if math.isfinite(value)}
            with self._trouble.survived("TensorBoard events"):
                self._events.write(policy, scalars, frames)
            line = {"policy": policy, "time": time.time(), "train_seconds": self._statistics.train_seconds}
            with self._trouble.survived(self._experiment.metrics_file.name):
                self._lines.append(line | {"env_frames": frames} | scalars)

    def write_status(self, state: str) -> None:
        """The run as it stands."""
        numbers = {"state": state} | status(self._statistics, self._budget)
        self._experiment.mend()
        with self._trouble.survived(self._experiment.status_file.name):
            atomic_write_json(self._experiment.status_file, numbers, durable=False)

    def write_summary(self, more: dict[str, Any]) -> None:
        """How the run ended."""
        numbers = more | status(self._statistics, self._budget)
        with self._trouble.survived(self._experiment.summary_file.name):
            atomic_write_json(self._experiment.summary_file, numbers)

    def close(self) -> None:
        """A last point, and everything to disk."""
        self._statistics.tick()
        self.write_point()
        self._events.close()
        self._lines.close()

    def _has_begun(self) -> bool:
        """There is something to tell."""
        return any(self._statistics.training) or bool(self._seen_first_episodes)

    def _first_episodes(self) -> bool:
        """A policy has finished its first episodes: its curve begins now."""
        started = {p for p, window in enumerate(self._statistics.episodes) if window.finished}
        is_new = bool(started - self._seen_first_episodes)
        self._seen_first_episodes |= started
        return is_new


def status(statistics: Statistics, budget: Budget) -> dict[str, Any]:
    """The numbers of `status.json`."""
    left_s = budget.seconds_left(statistics)
    policies = []
    for policy, window in enumerate(statistics.episodes):
        training = statistics.training[policy]
        policies.append(
            {
                "env_frames": statistics.env_frames(policy),
                "train_steps": int(statistics.arrays["train_steps"][policy]),
                "episodes": window.finished,
                "avg_reward": _mean(window.returns),
                "avg_true_reward": _mean(window.objectives),
                "policy_lag": training.get("version_diff_avg"),
            }
        )
    return {
        "time": time.time(),
        "env_frames": statistics.total_env_frames,
        "train_seconds": statistics.train_seconds,
        "fps": {str(window_s): statistics.frame_rate.rate(window_s) for window_s in RATE_WINDOWS_S},
        "seconds_left": left_s if math.isfinite(left_s) else None,
        "budget_spent": budget.spent(statistics),
        "troubles": statistics.troubles(),
        "blocks": statistics.count_blocks(),
        "policies": policies,
    }


def status_line(statistics: Statistics, budget: Budget) -> str:
    """The run in one line for the terminal."""
    numbers = status(statistics, budget)
    fps = "/".join(_short(numbers["fps"][str(window_s)]) for window_s in RATE_WINDOWS_S)
    policies = numbers["policies"]
    rewards = " ".join("-" if p["avg_reward"] is None else f"{p['avg_reward']:.2f}" for p in policies)
    lags = " ".join("-" if p["policy_lag"] is None else f"{p['policy_lag']:.1f}" for p in policies)
    left_s = numbers["seconds_left"]
    left = "-" if left_s is None or left_s > 30 * 86400 else str(timedelta(seconds=round(left_s)))
    frames = _short(numbers["env_frames"])
    windows = "/".join(str(window_s) for window_s in RATE_WINDOWS_S)
    troubles = "".join(f"  {name.replace('_', ' ')} {count}" for name, count in numbers["troubles"].items() if count)
    return f"fps ({windows} s) {fps}  frames {frames}  reward {rewards}  lag {lags}  left {left}{troubles}"


def _share(used: float, limit: float) -> float:
    return used / limit if limit else 1.0


def _mean(values: Any) -> float | None:
    return sum(values) / len(values) if values else None


def _short(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f}{suffix}"
    return f"{number:.0f}"


@contextmanager
def _without_torch() -> Iterator[None]:
    """tensorboardX imports torch where it finds it: 2 s and 200 MB that scalars do not need."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
