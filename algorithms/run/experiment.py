"""An experiment's folder: where everything lies, how it is taken up again, and that only one process trains in it.

The folder belongs to the process that holds its lock, see `folder_lock`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from appo.algorithms.checkpoint_names import policy_folder
from appo.algorithms.config import ResolvedConfig
from appo.algorithms.reporting.outputs import OutputFiles
from appo.algorithms.reporting.timing import TIMING_FILE
from appo.algorithms.run import folder_lock
from appo.algorithms.run.config import COMMAND_LINES_FILE, CONFIG_FILE, METRICS_FILE, STATUS_FILE, SUMMARY_FILE
from appo.algorithms.run.folder_lock import LOCK_FILE
from appo.algorithms.train_config import TrainConfig, from_json, to_json
from appo.utils.cli import VERSION
from appo.utils.files import DiskFaults, atomic_write_text, keep_small
from appo.utils.options import ConfigError

# Of each log; its predecessor may be as large. A worker that crashes or prints repeatedly does not fill the disk.
LOG_BYTES = 5_000_000
_MAINTAIN_EVERY_S = 1.0
_SOURCE_FOLDER = Path(__file__).resolve().parents[2]

log = logging.getLogger(__name__)


class Experiment:
    """The folder of one experiment, open for training. `Experiment.open` makes one; `close` releases it."""

    def __init__(self, folder: Path, lock: int) -> None:
        """`lock`: the descriptor that holds the lock; closed by `close`."""
        self.folder = folder
        self._lock = lock
        self.config_file = folder / CONFIG_FILE
        self.git_diff_file = folder / "git.diff"
        self.command_lines_file = folder / COMMAND_LINES_FILE
        self.log_dir = folder / "log"
        self.status_file = folder / STATUS_FILE
        self.metrics_file = folder / METRICS_FILE
        self.events_file = folder / "events.jsonl"
        self.summary_file = folder / SUMMARY_FILE
        self.timing_file = folder / TIMING_FILE
        self.starts = _text(self.command_lines_file).count("\n")  # how often training was started here before
        # An earlier start has trained with the options of this one, but for where, how long and what it reports.
        self.is_proven = False
        self.unsaved_words: list[str] = []  # what was typed, until `accept`
        self._unwritten: set[Path] = set()  # of those below, what the disk has not taken yet
        self._record: dict[Path, str] = {}  # what must be here for training to be taken up again
        self._config = ""
        self._num_policies = 0
        self.moved_to: Path | None = None  # where --restart_behavior=restart has put what lay here
        self.was_emptied = False  # --restart_behavior=overwrite has deleted what lay here
        self._disk_faults = DiskFaults()
        self._next_maintenance = 0.0

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
        folder = run.folder.absolute()  # stays right when an environment, for example, changes the directory
        try:
            lock, moved_to, was_emptied = folder_lock.take(folder), None, False
            try:
                if run.restart_behavior == "restart" and _holds_anything(folder):
                    lock, moved_to = _move_aside(folder, lock)
                elif run.restart_behavior == "overwrite":
                    was_emptied = _empty(folder)
                experiment = cls(folder, lock)
                experiment.moved_to = moved_to
                experiment.was_emptied = was_emptied
                experiment._record_start(resolved, argv)
            except BaseException:
                with contextlib.suppress(OSError):  # already closed where the folder had been moved
                    os.close(lock)
                raise
        except OSError as error:
            raise ConfigError(f"{folder} cannot be used: {error}; type another --train_dir") from error
        return experiment

    def checkpoint_dir(self, policy: int) -> Path:
        """Where a policy's checkpoints lie."""
        return policy_folder(self.folder, policy)

    def summary_dir(self, policy: int) -> Path:
        """Where a policy's TensorBoard events lie."""
        return self.folder / ".summary" / str(policy)

    def output_files(self, policies: int) -> OutputFiles:
        """Where the numbers of a run are written."""
        events = tuple(self.summary_dir(policy) for policy in range(policies))
        options = json.loads(self._config)["options"]
        return OutputFiles(events, self.metrics_file, self.status_file, self.summary_file, self.timing_file, options)

    def log_file(self, worker: str) -> Path:
        """Where a process writes its log."""
        return self.log_dir / f"{worker}.txt"

    def accept(self) -> None:
        """This start's options work, and fit what lies here: from now on they are those that a resume begins from.

        To be called before anything is saved. The options of a start that did not come so far are forgotten.
        """
        self._record[self.config_file] = self._config
        self.unsaved_words = []
        self._unwritten.add(self.config_file)
        with self._disk_faults.survived(CONFIG_FILE):
            self._write_record([self.config_file])

    def restore_missing(self) -> None:
        """Make again what has vanished, so that training can be taken up from what is saved from now on."""
        try:
            with self._disk_faults.survived(str(self.folder)):
                if not self._is_locked():
                    lock = folder_lock.take(self.folder)
                    self.close()
                    self._lock = lock
                missing = [path for path in self._record if path in self._unwritten or not path.exists()]
                if missing:
                    self._write_record(missing)
                    log.warning("%s was missing from %s and is there again", missing[0].name, self.folder)
        except ConfigError as error:
            self._disk_faults.tell(str(self.folder), f"{self.folder} was taken away from this run: {error}")

    def maintain_files(self) -> None:
        """Once a second: restore files that have vanished, and let logs that have grown too large begin anew."""
        now = time.monotonic()
        if now < self._next_maintenance:
            return
        self._next_maintenance = now + _MAINTAIN_EVERY_S
        self.restore_missing()
        for path in self.log_dir.glob("*.txt"):
            if not path.stem.endswith(".old"):
                keep_small(path, LOG_BYTES)

    def close(self) -> None:
        """Let another process train here; called any number of times."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _record_start(self, resolved: ResolvedConfig, argv: Sequence[str]) -> None:
        self._num_policies = resolved.config.sampling.num_policies
        self.unsaved_words = list(argv[1:])
        self._config = to_json(resolved.config, resolved.typed)
        with contextlib.suppress(FileNotFoundError):  # it tells how an earlier start ended
            self.summary_file.unlink()
        started = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shlex.join(argv)}\n"
        self._record = {
            self.git_diff_file: _git_state(),
            self.command_lines_file: _text(self.command_lines_file) + started,
        }
        if saved := _text(self.config_file):
            self._record[self.config_file] = saved  # until `accept`
            self.is_proven = _same_but_for_run(saved, resolved.config)
        self._write_record(list(self._record))
        numbers = (path.name.removeprefix("checkpoint_p") for path in self.folder.glob("checkpoint_p*"))
        left_out = sorted(int(number) for number in numbers if number.isdigit() and int(number) >= self._num_policies)
        if left_out:
            log.warning(
                "num_policies=%d leaves out policies %s of this experiment; their checkpoints stay, their frames do "
                "not count",
                self._num_policies,
                ", ".join(map(str, left_out)),
            )

    def _write_record(self, paths: list[Path]) -> None:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for policy in range(self._num_policies):
            self.checkpoint_dir(policy).mkdir(exist_ok=True)
            self.summary_dir(policy).mkdir(parents=True, exist_ok=True)
        for path in paths:
            atomic_write_text(path, self._record[path])
            self._unwritten.discard(path)

    def _is_locked(self) -> bool:
        """The lock file in the folder is the one that this process holds."""
        try:
            return os.path.samestat(os.fstat(self._lock), (self.folder / LOCK_FILE).stat())
        except OSError:
            return False


def _holds_anything(folder: Path) -> bool:
    return any(path.name != LOCK_FILE for path in folder.iterdir())


def _move_aside(folder: Path, lock: int) -> tuple[int, Path]:
    """Rename the folder, make it anew and lock that; the new descriptor, and what it is called now."""
    stamp = time.strftime("%Y%m%d-%H%M%S")  # see MOVED_ASIDE
    target, number = folder.with_name(f"{folder.name}.{stamp}"), 1
    while target.exists():
        number += 1
        target = folder.with_name(f"{folder.name}.{stamp}.{number}")
    folder.rename(target)
    os.close(lock)
    return folder_lock.take(folder), target


def _empty(folder: Path) -> bool:
    """Delete an experiment, and whether there was one; refuses a folder that is none.

    Raises:
        ConfigError: the folder holds something, but neither a configuration nor the record of a start.
    """
    if not _holds_anything(folder):
        return False
    marks = [folder / name for name in (CONFIG_FILE, COMMAND_LINES_FILE)]
    if not any(mark.exists() for mark in marks):
        raise ConfigError(
            f"{folder} holds no {CONFIG_FILE}, so it may not be an experiment and is not deleted; type "
            "--restart_behavior=restart to move it aside, or another --experiment"
        )
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE and path not in marks:
            path.unlink()
    for mark in marks:  # last: until then it can be overwritten again after an interruption
        mark.unlink(missing_ok=True)
    return True


def _git_state() -> str:
    """The commit that runs and how the source differs from it; the version, where it was installed."""
    try:
        if Path(_git("rev-parse", "--show-toplevel").strip()).resolve() != _SOURCE_FOLDER:
            return f"installed package appo {VERSION}\n"  # inside another repository
        commit = _git("rev-parse", "HEAD")
        return f"commit {commit}\n{_git('diff', 'HEAD')}"
    except (OSError, subprocess.SubprocessError):
        return f"no git repository; appo {VERSION}\n"


def _git(*words: str) -> str:
    command = ["git", "-C", str(_SOURCE_FOLDER), *words]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True).stdout


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _same_but_for_run(saved: str, config: TrainConfig) -> bool:
    """Whether the options in the text of config.json are these, but for the options of the run itself."""
    try:
        before = from_json(saved)
    except ConfigError:  # an option was removed since, or its range changed
        return False
    return dataclasses.replace(before, run=config.run) == config
