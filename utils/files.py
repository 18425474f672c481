"""Files that are either whole or absent: atomic replacement, and lines that are appended as a whole.

A reader, or a process started after a crash, sees the old content or the new one, never a mixture: new content goes
into a hidden temporary file of the same folder, reaches the disk, and takes the old one's name in one step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TEMPORARY_SUFFIX = ".tmp"


def atomic_write(path: Path, parts: Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Replace a file, or create it, in one step.

    Args:
        path: The file; its folder must exist.
        parts: The new content, piece by piece.
        durable: Wait until the content and its name have reached the disk, so that they survive a loss of power.

    Raises:
        OSError: it could not be written; the old file is untouched and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # an interrupt as well: no temporary file stays
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def atomic_write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """`atomic_write` of one text in UTF-8."""
    atomic_write(path, [text.encode()], durable=durable)


def atomic_write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """`atomic_write` of one JSON document; a number that is not finite becomes null, which every reader accepts."""
    atomic_write_text(path, json.dumps(_finite(value), indent=2) + "\n", durable=durable)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder have reached the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Delete what writers left in a folder when they were killed; only for a folder that nobody else writes to now."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()


class JsonLines:
    """A file to which records are appended, one line of JSON each; a number that is not finite becomes null.

    Each record is one system call, so no reader sees half a line unless the machine itself failed in between.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a line that was cut off stays a line of its own

    def append(self, record: dict[str, Any]) -> None:
        """Add one record.

        Raises:
            OSError: there was no room for all of it; then nothing of it is in the file.
        """
        line = json.dumps(_finite(record), separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, line) < len(line):
            os.ftruncate(self._descriptor, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def close(self) -> None:
        """Close the file; called any number of times."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file that `JsonLines` wrote; lines that were cut off are left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
