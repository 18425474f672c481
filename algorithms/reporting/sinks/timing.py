"""`timing.json`: where the time of each kind of process has gone since the start, replaced with every point."""

from __future__ import annotations

from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.utils.files import DiskFaults, atomic_write_json


class TimingFile:
    """Writes the tree of `reporting.timing`."""

    def __init__(self, files: OutputFiles) -> None:
        """The file appears with the first point."""
        self._path = files.timing
        self._disk_faults = DiskFaults()

    def write(self, snapshot: RunSnapshot) -> None:
        """Replace the file, if there is news."""
        if not snapshot.timing:
            return
        numbers = {"time": snapshot.time, "train_seconds": snapshot.train_seconds, "env_frames": snapshot.env_frames}
        with self._disk_faults.survived(self._path.name):
            tree = [kind.as_json() for kind in snapshot.timing]
            atomic_write_json(self._path, numbers | {"processes": tree}, durable=False)

    def close(self) -> None:
        """Nothing is open."""
