"""TensorBoard events: one folder per policy."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.snapshot import Point, RunSnapshot
from appo.utils.files import AppendedFile, DiskFaults

# The first charts of the tab "custom scalars", with their tags.
CHARTS = {
    "run": {
        "return": ["0_aux/avg_reward", "0_aux/avg_true_reward", "eval/reward"],
        "episode length": ["0_aux/avg_len"],
        "frames per second": ["0_aux/_fps"],
    },
    "learning": {
        "entropy": ["train/entropy"],
        "change of the policy": ["train/kl_divergence", "train/fraction_clipped"],
    },
}


VIDEO = "eval/video"  # in the tab "images"


class TensorBoardEvents:
    """TensorBoard events, one folder per policy; x axis: env frames of that policy.

    tensorboardX makes the records and does not write them: its thread ends with the first error, and a
    caller that hands it a point afterwards waits for ever.
    """

    def __init__(self, files: OutputFiles) -> None:
        """Files appear with the first point."""
        with _without_torch():
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.record_writer import masked_crc32c

            self._described = _described(files.options) if files.options else []
        self._new_event, self._checksum = Event, masked_crc32c
        self._folders = files.events
        self._files: list[AppendedFile | None] = [None] * len(files.events)
        self._num_files = 0
        self._disk_faults = DiskFaults()

    def write(self, snapshot: RunSnapshot) -> None:
        """Add the points of a snapshot, if it has any."""
        for point in snapshot.points:
            with self._disk_faults.survived("TensorBoard events"):
                self._append(point)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            if file is not None:
                file.close()

    def _append(self, point: Point) -> None:
        event = self._new_event(wall_time=time.time(), step=point.env_frames)
        for tag, value in point.scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        if point.video and (content := _read(Path(point.video))):
            width, height = struct.unpack_from("<2H", content, len(b"GIF89a"))
            image = event.summary.value.add(tag=VIDEO).image
            image.width, image.height, image.colorspace, image.encoded_image_string = width, height, 3, content
        file = self._files[point.policy]
        if file is None or file.is_torn:  # no reader looks behind half a record
            file = self._files[point.policy] = self._new_file(self._folders[point.policy])
        file.append(self._record(event))

    def _new_file(self, folder: Path) -> AppendedFile:
        """Named as TensorBoard expects it, later than those before."""
        now, self._num_files = time.time(), self._num_files + 1
        header = self._record(self._new_event(wall_time=now, file_version="brain.Event:2"))
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{self._num_files:03d}"
        begins = [self._record(self._new_event(wall_time=now, summary=summary)) for summary in self._described]
        return AppendedFile(folder / name, b"".join([header, *begins]))

    def _record(self, event: Any) -> bytes:
        """length, its checksum, the event, its checksum."""
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        checksums = (struct.pack("<I", self._checksum(part)) for part in (length, content))
        return length + next(checksums) + content + next(checksums)


def _read(path: Path) -> bytes:
    """A file, which may have been removed."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _described(options: Mapping[str, Any]) -> list[Any]:
    """What a file begins with: the layout, and the options as text and as hyperparameters."""
    from tensorboardX.summary import custom_scalars, hparams, text

    plain = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in options.items()}
    rows = [f"| {name} | {str(value).replace('|', '/')} |" for name, value in sorted(plain.items())]
    table = "\n".join(["| option | value |", "| --- | --- |", *rows])
    experiment, begin, _ = hparams(plain, {"0_aux/avg_reward": 0.0})  # the third says that all went well
    # TensorBoard looks for tags that hold one of these expressions.
    layout = {
        group: {title: ["Multiline", [f"^{tag}$" for tag in tags]] for title, tags in charts.items()}
        for group, charts in CHARTS.items()
    }
    return [custom_scalars(layout), text("options", table), experiment, begin]


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
