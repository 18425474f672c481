"""`status.json`, the run as it stands, replaced once a second; `summary.json`, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.snapshot import PolicySnapshot, RunSnapshot
from appo.utils.files import DiskFaults, atomic_write_json

STATUS_EVERY_S = 1.0


class StatusFile:
    """Writes `status.json` once a second, and every snapshot as long as there is no frame to tell of."""

    def __init__(self, files: OutputFiles) -> None:
        """The file appears with the first snapshot."""
        self._path = files.status
        self._next = 0.0
        self._disk_faults = DiskFaults()

    def write(self, snapshot: RunSnapshot) -> None:
        """Replace the file, if that is due."""
        if snapshot.train_seconds < self._next and snapshot.state != "ended":
            return
        # A program that waits for the run to begin should not wait for the second to end.
        self._next = snapshot.train_seconds + STATUS_EVERY_S if snapshot.env_frames else 0.0
        with self._disk_faults.survived(self._path.name):
            atomic_write_json(self._path, as_json(snapshot), durable=False)

    def close(self) -> None:
        """Nothing is open."""


def as_json(snapshot: RunSnapshot) -> dict[str, Any]:
    """What `status.json` holds."""
    numbers = snapshot._asdict()
    del numbers["points"], numbers["timing"]
    numbers["fps"] = {str(window_s): rate for window_s, rate in snapshot.fps.items()}
    numbers["bottleneck"] = snapshot.bottleneck._asdict() if snapshot.bottleneck else None
    return numbers | {"policies": [policy._asdict() for policy in snapshot.policies]}


def from_json(numbers: Mapping[str, Any]) -> RunSnapshot:
    """The snapshot that `as_json` gave, without what it leaves out.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is none.
    """
    told = {name: numbers[name] for name in RunSnapshot._fields if name not in RunSnapshot._field_defaults}
    if finding := numbers.get("bottleneck"):  # runs of before had none
        told["bottleneck"] = Finding(**finding)
    told["fps"] = {int(window_s): float(rate) for window_s, rate in numbers["fps"].items()}
    told["policies"] = tuple(
        PolicySnapshot(**{name: policy[name] for name in PolicySnapshot._fields if name in policy})  # or its default
        for policy in numbers["policies"]
    )
    return RunSnapshot(**told)


def write_summary(path: Path, reason: str, best: list[float | None], snapshot: RunSnapshot) -> None:
    """Write `summary.json`: why the run ended, the best checkpoint's metric per policy, and its last numbers."""
    numbers = as_json(snapshot)
    del numbers["state"]
    with DiskFaults().survived(path.name):
        atomic_write_json(path, {"reason": reason, "best": best} | numbers)
