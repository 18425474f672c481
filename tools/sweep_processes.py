"""The processes of a sweep's trials: on cores of their own, and found again by a launcher that was started anew.

A trial holds a lock on a file from before its first instruction until its process is gone, however it ends: the
launcher takes the lock, hands its descriptor to the process, and closes its own. So no trial can run twice at the same
time, and no launcher needs to remember who runs. The file holds the process's number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from appo.utils.options import ConfigError
from appo.utils.processes import pin_to_cores, usable_cores

USUAL_CORES = 2  # of a trial, where neither the plan nor the command line says how many

LOCKS = ".locks"  # in the sweep's folder


class Slot(NamedTuple):
    """A place for one trial at a time."""

    cores: tuple[int, ...]
    gpu: int | None


def slots_of(
    cores: Sequence[int], gpus: Sequence[int], parallel: int | None, cores_per_run: int | None
) -> tuple[Slot, ...]:
    """The places for trials: disjoint sets of cores, and GPUs in turn.

    Args:
        cores: that may be used.
        gpus: their numbers; empty: none is assigned.
        parallel: trials at the same time; None: one per GPU, or as many as there are cores for.
        cores_per_run: of each trial; None: an equal share.

    Raises:
        ConfigError: there are not so many cores.
    """
    total = len(cores)
    if parallel is None:
        parallel = max(1, total // (cores_per_run or (1 if gpus else USUAL_CORES)))
        parallel = min(parallel, len(gpus)) if gpus else parallel
    each = cores_per_run or total // parallel
    if each == 0 or parallel * each > total:
        nearest = f"parallel={total // max(1, each)}" if 0 < each <= total else f"parallel={total}"
        if each > total:
            nearest = f"cores_per_run={total} with parallel=1"
        raise ConfigError(
            f"parallel={parallel} trials of {max(1, each)} cores need {parallel * max(1, each)} cores, and {total} can "
            f"be used; nearest: {nearest}"
        )
    return tuple(
        Slot(tuple(cores[each * i : each * (i + 1)]), gpus[i % len(gpus)] if gpus else None) for i in range(parallel)
    )


def lock_file(folder: Path, trial: str) -> Path:
    """What a trial's process holds the lock on, in the sweep's folder."""
    return folder / LOCKS / f"{trial}.lock"


def start(command: Sequence[str], slot: Slot, lock_file: Path, output: Path) -> subprocess.Popen[bytes] | None:
    """Start a trial in a slot; None when it runs already.

    It has a session of its own: a Ctrl+C reaches the launcher only. What it prints is appended to `output`.

    Raises:
        OSError: no process could be started.
    """
    lock = locked(lock_file)
    if lock is None:
        return None
    environment = dict(os.environ)
    if slot.gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(slot.gpu)

    def begin() -> None:  # in the new process, before the program
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        pin_to_cores(slot.cores)

    try:
        with output.open("ab") as file:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=(lock,),
                preexec_fn=begin,
            )
    finally:
        os.close(lock)


def is_locked(lock_file: Path) -> bool:
    """Some process holds the lock of a trial. For its launcher only: it takes the lock for a moment."""
    if not lock_file.exists():
        return False
    lock = locked(lock_file)
    if lock is None:
        return True
    os.close(lock)
    return False


def holder(lock_file: Path) -> int | None:
    """The process that a lock's file names, if it has the file open; takes no lock, so anyone may ask.

    For locks of trials, and for those of experiments, which say "process 123 on ...".
    """
    with contextlib.suppress(OSError, psutil.Error):
        found = re.search(r"\d+", lock_file.read_text())
        pid = int(found[0]) if found else 0
        path = str(lock_file.resolve())
        if any(entry.path == path for entry in psutil.Process(pid).open_files()):  # the number is not another's by now
            return pid
    return None


def cores_of(pid: int | None) -> tuple[int, ...]:
    """The cores that a process may use; none when there is no such process."""
    with contextlib.suppress(OSError):
        return () if pid is None else tuple(usable_cores(pid))
    return ()


def send(lock_file: Path, number: signal.Signals) -> bool:
    """Send a signal to the trial that holds a lock; whether its process is known."""
    pid = holder(lock_file)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return pid is not None


def take_folder(lock_file: Path) -> int:
    """Lock a sweep's folder for one launcher; the descriptor that holds the lock.

    Raises:
        ConfigError: another launcher is at work there.
    """
    lock = locked(lock_file)
    if lock is None:
        raise ConfigError(
            f"another launcher is at work in {lock_file.parent}; give the plan another name, or look with --status"
        )
    return lock


def locked(lock_file: Path) -> int | None:
    """A descriptor that holds the lock; None when another process has it."""
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
