"""The lock of an experiment's folder: one process trains there, others can ask which.

The lock is on `.lock`; it vanishes with its process, however that ends. The file names the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from pathlib import Path
from typing import NamedTuple

from appo.utils.options import ConfigError

LOCK_FILE = ".lock"
# `holder` has the lock itself for some microseconds, to see that no one else has it.
_PATIENCE_S, _RETRY_EVERY_S = 0.1, 0.005
_HOLDER = re.compile(r"process (\d+) on (.+)")


class Holder(NamedTuple):
    """The driver of a run that goes on."""

    pid: int | None  # None: the lock does not tell, as on a full disk
    host: str
    since: float  # seconds since the epoch

    @property
    def is_here(self) -> bool:
        """It is a process of this machine, which signals can reach."""
        return self.pid is not None and self.host == socket.gethostname()


def take(folder: Path) -> int:
    """Make the folder and lock it; the descriptor that holds the lock.

    Raises:
        ConfigError: another process holds it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK_FILE
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _content(lock) or "unknown"
            os.close(lock)
            if time.monotonic() < deadline:
                time.sleep(_RETRY_EVERY_S)
                continue
            raise _taken(folder, holder) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                break
        os.close(lock)  # the folder was moved aside between opening and locking
    with contextlib.suppress(OSError):  # the holder is named where the disk has room
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return lock


def require_free(folder: Path) -> None:
    """Refuse a folder in which another process trains, before anything that takes time. Writes nothing.

    Raises:
        ConfigError: another process holds the lock.
    """
    with contextlib.suppress(OSError):  # told by `take`, where the folder is made
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(folder.absolute(), _content(lock) or "unknown") from None
        finally:
            os.close(lock)


def holder(folder: Path) -> Holder | None:
    """The process that trains in a folder; None where none does. Changes nothing.

    Raises:
        OSError: the lock cannot be read.
    """
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        named = _HOLDER.fullmatch(_content(lock))
        pid, host = (int(named[1]), named[2]) if named else (None, "")
        return Holder(pid, host, os.fstat(lock).st_mtime)
    finally:
        os.close(lock)


def _taken(folder: Path, holder: str) -> ConfigError:
    return ConfigError(f"another process ({holder}) trains in {folder}; stop it first, or type another --experiment")


def _content(lock: int) -> str:
    return os.pread(lock, 200, 0).decode(errors="replace")
