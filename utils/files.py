"""Files that are either whole or absent: atomic replacement, and lines that are appended as a whole; bounds for logs.

A reader, or a process started after a crash, sees the old content or the new one, never a mixture: new content goes
into a hidden temporary file of the same folder, reaches the disk, and takes the old one's name in one step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from appo.utils.options import ConfigError

TEMPORARY_SUFFIX = ".tmp"
_PIECE_BYTES = 2**20  # that a file is copied in
# A failing disk is worth a line a minute, not one per attempt.
WARN_EVERY_S = 60.0

log = logging.getLogger(__name__)


def atomic_write(
    path: Path,
    parts: Iterable[bytes | memoryview],
    *,
    durable: bool = True,
    before_rename: Callable[[], None] = lambda: None,
) -> None:
    """Replace a file, or create it, in one step.

    Args:
        path: The file; its folder must exist.
        parts: The new content, piece by piece.
        durable: Wait until the content and its name have reached the disk, so that they survive a loss of power.
        before_rename: Called when the content is complete and the old file is still in place.

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
        before_rename()
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
    """Delete what killed writers left in a folder; only for a folder that no other process writes to now."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError):
            path.unlink()


def anonymous_file(name: str) -> int:
    """A descriptor of a new file in memory that goes with its last user: memfd, or an unlinked file elsewhere.

    What is written to it counts towards no process that does not map it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def allow_large_files() -> None:
    """Raise the limit of a file's size as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def require_file_size(num_bytes: int) -> None:
    """Refuse a run whose files may not become as large as they have to; shared memory is a file, to the system.

    Raises:
        ConfigError: with both numbers and what to do.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if allowed != resource.RLIM_INFINITY and num_bytes > allowed:
        raise ConfigError(
            f"this run needs files of about {num_bytes / 1e6:.0f} MB and may write {allowed / 1e6:.1f} MB into one; "
            "raise the limit, for example with ulimit -f unlimited"
        )


def keep_small(path: Path, most_bytes: int) -> None:
    """Let a log that has grown beyond `most_bytes` begin anew; its newest `most_bytes` go to `<stem>.old<suffix>`.

    For files that are opened with O_APPEND, whose writers go on at the new beginning. Content is cut off once a copy of
    it exists, up to the last byte there is then: only what is written within the microseconds in between is lost. Where
    there is no room for the copy, the file grows to four times its bound and begins anew without one.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most_bytes:
            return
        old = path.with_name(f"{path.stem}.old{path.suffix}")
        file.seek(size - most_bytes)
        try:
            atomic_write(old, _read(file, most_bytes), durable=False)
            with old.open("ab", buffering=0) as copy:
                copy.write(file.read())  # what has come meanwhile
        except OSError:
            if size <= 4 * most_bytes:
                return
        os.truncate(path, 0)


def _read(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0 and (piece := file.read(min(num_bytes, _PIECE_BYTES))):
        num_bytes -= len(piece)
        yield piece


def cut_text(text: str, *, most: int = 16_000, most_of_line: int = 2_000) -> str:
    """A text for a log or a message: where it is too long its middle is left out, and that of each long line."""
    if len(text) > most_of_line:
        text = "\n".join(_cut_line(line, most_of_line) for line in text.split("\n"))
    if len(text) <= most:
        return text
    head, tail = text[: most // 2].rpartition("\n")[0], text[-(most // 2) :].partition("\n")[2]
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters cut ...]\n{tail}"


def _cut_line(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    half = most // 2
    return f"{line[:half]} [... {len(line) - 2 * half} characters cut ...] {line[-half:]}"


class AppendedFile:
    """A file to which pieces are appended, each as a whole or not at all, and which is made anew when it vanishes.

    Each piece is one system call, so no reader sees half of one unless the machine itself failed in between. Errors
    leave it usable: the next piece may find room again.
    """

    def __init__(self, path: Path, header: bytes = b"") -> None:
        """`header`: how the file begins. It is opened, and made with its folder, by the first piece."""
        self.path = path
        self.is_torn = False  # it ends in half a piece that could not be taken back
        self._header = header
        self._descriptor = -1

    def append(self, piece: bytes) -> None:
        """Add one piece.

        Raises:
            OSError: there was no room for all of it; then nothing of it is in the file.
        """
        try:
            if self._descriptor >= 0 and not self._is_there():
                self.close()
            if self._descriptor < 0:
                self._open()
            self._append_whole(piece)
        except OSError:
            self.close()  # what it was opened on may be gone for good
            raise

    def close(self) -> None:
        """Close the file; called any number of times."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with contextlib.suppress(OSError):  # some file systems tell here that earlier writes were lost
                os.close(descriptor)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        if self._header and not os.fstat(self._descriptor).st_size:
            self._append_whole(self._header)

    def _append_whole(self, piece: bytes) -> None:
        before = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, piece) < len(piece):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            try:
                os.ftruncate(self._descriptor, before)
            except OSError:
                self.is_torn = True
            raise

    def _is_there(self) -> bool:
        """The path still leads to the open file; a deleted or moved file accepts writes without an error."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False


class JsonLines:
    """A file to which records are appended, one line of JSON each; a number that is not finite becomes null."""

    def __init__(self, path: Path) -> None:
        """The file appears with the first record."""
        self.path = path
        self._file = AppendedFile(path)
        self._may_be_cut_off = True

    def append(self, record: dict[str, Any]) -> None:
        """Add one record.

        Raises:
            OSError: there was no room for all of it; then nothing of it is in the file.
        """
        line = json.dumps(_finite(record), separators=(",", ":")).encode() + b"\n"
        try:
            if self._may_be_cut_off:
                self._end_cut_off_line()
            self._file.append(line)
        except OSError:
            self._may_be_cut_off = True
            raise
        self._may_be_cut_off = False

    def close(self) -> None:
        """Close the file; called any number of times."""
        self._file.close()

    def _end_cut_off_line(self) -> None:
        """Append a newline to a file that ends in a cut-off record, so that the next record is a line of its own."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
                self._file.append(b"\n")


class DiskFaults:
    """What files could not be written: survived, counted, and told once a minute for each kind of file."""

    def __init__(self) -> None:
        """All is well."""
        self.failures: dict[str, int] = {}  # by kind of file
        self._next_warning: dict[str, float] = {}

    @contextlib.contextmanager
    def survived(self, kind: str) -> Iterator[None]:
        """Go on behind this block when a file of this kind cannot be written in it."""
        try:
            yield
        except OSError as error:
            self.tell(kind, f"{kind} could not be written ({error}); training goes on without it")

    def tell(self, kind: str, what: str) -> None:
        """Warn about a file of this kind, if a minute has passed since the last time."""
        self.failures[kind] = self.failures.get(kind, 0) + 1
        now = time.monotonic()
        if now >= self._next_warning.get(kind, -math.inf):
            self._next_warning[kind] = now + WARN_EVERY_S
            log.warning("%s (%d failures so far)", what, self.failures[kind])


class NewLines:
    """Reads what was appended to a file since the last time; begins anew with a file that has taken its place."""

    def __init__(self, path: Path, *, inode: int = 0, offset: int = 0) -> None:
        """The file need not exist. `inode` and `offset`: where an earlier reader has stopped, see `place`."""
        self._path = path
        self._begun = b""
        self._inode, self._offset = inode, offset

    @property
    def place(self) -> tuple[int, int]:
        """The file's inode, and how many of its bytes have been read as whole lines."""
        return self._inode, self._offset - len(self._begun)

    def read(self) -> Iterator[bytes]:
        """The lines that have become whole."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._offset:
                    self._inode, self._offset, self._begun = found.st_ino, 0, b""
                file.seek(self._offset)
                new = file.read()
        except OSError:  # it has not been written yet, or has been moved
            return
        self._offset += len(new)
        *whole, self._begun = (self._begun + new).split(b"\n")
        yield from whole


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
