"""`metrics.jsonl`: a line for each point, with every tag of section "TensorBoard" in docs/metrics.md.

It costs a hundredth of an event file's time to write and to read: tools should read this.
"""

from __future__ import annotations

from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.utils.files import DiskFaults, JsonLines


class MetricsLines:
    """Appends to the lines of earlier starts."""

    def __init__(self, files: OutputFiles) -> None:
        """The file appears with the first point."""
        self._lines = JsonLines(files.metrics)
        self._disk_faults = DiskFaults()

    def write(self, snapshot: RunSnapshot) -> None:
        """Add the points of a snapshot, if it has any."""
        for point in snapshot.points:
            line = {"policy": point.policy, "time": snapshot.time, "train_seconds": snapshot.train_seconds}
            with self._disk_faults.survived(self._lines.path.name):
                self._lines.append(line | {"env_frames": point.env_frames} | point.scalars)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()
