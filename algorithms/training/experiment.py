"""An experiment's folder: where everything lies, how it is taken up again, and that only one process trains in it.

The folder belongs to the process that holds the lock on `.lock`; the lock vanishes with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from algorithms.config import ResolvedConfig, to_json
from algorithms.training.config import CONFIG_FILE
from utils.files import atomic_write_text
from utils.options import ConfigError

LOCK_FILE = ".lock"
_SOURCE_FOLDER = Path(__file__).resolve().parents[2]


class Experiment:
    """The folder of one experiment, open for training. `Experiment.open` makes one; `close` releases it."""

    def __init__(self, folder: Path, lock: int) -> None:
        """`lock`: the descriptor that holds the lock; closed by `close`."""
        self.folder = folder
        self._lock = lock
        self.config_file = folder / CONFIG_FILE
        self.git_diff_file = folder / "git.diff"
        self.command_lines_file = folder / "command_lines.txt"
        self.log_dir = folder / "log"
        self.status_file = folder / "status.json"
        self.metrics_file = folder / "metrics.jsonl"
        self.summary_file = folder / "summary.json"
        self.starts = _count_lines(self.command_lines_file)  # how often training was started here before

    @classmethod
    def open(cls, resolved: ResolvedConfig, argv: Sequence[str]) -> Experiment:
        """Create the experiment, take it up again, or replace it, as `restart_behavior` says.

        Args:
            resolved: The accepted configuration; nothing is written before there is one.
            argv: The command line, program first, for the record.

        Raises:
            ConfigError: another process trains in the folder, the folder is not an experiment's, or it cannot be
                written.
        """
        run = resolved.config.run
        try:
            lock = _take(run.folder)
            try:
                if run.restart_behavior == "restart" and _holds_anything(run.folder):
                    lock = _move_aside(run.folder, lock)
                elif run.restart_behavior == "overwrite":
                    _empty(run.folder)
                experiment = cls(run.folder, lock)
                experiment._record_start(resolved, argv)
            except BaseException:
                with contextlib.suppress(OSError):  # already closed where the folder had been moved
                    os.close(lock)
                raise
        except OSError as error:
            raise ConfigError(f"{run.folder} cannot be used: {error}; type another --train_dir") from error
        return experiment

    def checkpoint_dir(self, policy: int) -> Path:
        """Where a policy's checkpoints lie."""
        return self.folder / f"checkpoint_p{policy}"

    def summary_dir(self, policy: int) -> Path:
        """Where a policy's TensorBoard events lie."""
        return self.folder / ".summary" / str(policy)

    def log_file(self, worker: str) -> Path:
        """Where a process writes its log."""
        return self.log_dir / f"{worker}.txt"

    def close(self) -> None:
        """Let another process train here; called any number of times."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _record_start(self, resolved: ResolvedConfig, argv: Sequence[str]) -> None:
        self.log_dir.mkdir(exist_ok=True)
        for policy in range(resolved.config.sampling.num_policies):
            self.checkpoint_dir(policy).mkdir(exist_ok=True)
            self.summary_dir(policy).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it tells how an earlier start ended
            self.summary_file.unlink()
        atomic_write_text(self.git_diff_file, _git_state())
        with self.command_lines_file.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shlex.join(argv)}\n")
        atomic_write_text(self.config_file, to_json(resolved.config, resolved.typed))


def _take(folder: Path) -> int:
    """Make the folder and lock it; the descriptor that holds the lock.

    Raises:
        ConfigError: another process holds it.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK_FILE
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode(errors="replace") or "unknown"
            os.close(lock)
            raise ConfigError(
                f"another process ({holder}) trains in {folder}; stop it first, or type another --experiment"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                break
        os.close(lock)  # the folder was moved aside between opening and locking
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return lock


def _holds_anything(folder: Path) -> bool:
    return any(path.name != LOCK_FILE for path in folder.iterdir())


def _move_aside(folder: Path, lock: int) -> int:
    """Rename the folder, make it anew and lock that; the new descriptor."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target, number = folder.with_name(f"{folder.name}.{stamp}"), 1
    while target.exists():
        number += 1
        target = folder.with_name(f"{folder.name}.{stamp}.{number}")
    folder.rename(target)
    os.close(lock)
    return _take(folder)


def _empty(folder: Path) -> None:
    """Delete an experiment; refuses a folder that is none.

    Raises:
        ConfigError: the folder holds something, but no configuration.
    """
    if not _holds_anything(folder):
        return
    if not (folder / CONFIG_FILE).exists():
        raise ConfigError(
            f"{folder} holds no {CONFIG_FILE}, so it may not be an experiment and is not deleted; type "
            "--restart_behavior=restart to move it aside, or another --experiment"
        )
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (LOCK_FILE, CONFIG_FILE):
            path.unlink()
    (folder / CONFIG_FILE).unlink()  # last: until then it can be overwritten again after an interruption


def _git_state() -> str:
    """The commit that runs and how the source differs from it; why not, where there is no repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        return f"commit {commit}\n{_git('diff', 'HEAD')}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"no git repository: {error}\n"


def _git(*words: str) -> str:
    command = ["git", "-C", str(_SOURCE_FOLDER), *words]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True).stdout


def _count_lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0
