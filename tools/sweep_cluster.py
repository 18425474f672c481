"""Trials of a sweep as jobs of a batch system, through submitit: Slurm, or for a try jobs of this machine.

A job holds its trial's lock while it runs, like any trial. When the batch system says that a job's time is over or its
place is needed (submitit's signal, SIGUSR2), the trial saves and ends, and the job is queued again: it goes on where it
saved. Jobs outlive their launcher; which are queued or run is kept in `.locks`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from appo.tools.sweep_processes import locked
from appo.utils.files import atomic_write_json
from appo.utils.options import ConfigError
from appo.utils.processes import import_root, is_alive

CLUSTERS = ("slurm", "local")
JOBS = "jobs"  # in the sweep's folder: what submitit writes
_INSTALL = "pip install submitit==1.5.4"
_USUAL = {"timeout_min": 24 * 60, "nodes": 1, "tasks_per_node": 1}
# submitit counts how often a job's time was over, and gives it up after three. A trial saves and goes on each time.
_MOST_TIMEOUTS = 1_000_000
_POLL_S = 0.5
_FAILED = 1  # the exit code of a trial that runs elsewhere already, or whose job has none


class TrialJob:
    """What runs on the cluster: one start of one trial. Travels by pickle."""

    def __init__(self, command: Sequence[str], lock_file: Path, output: Path) -> None:
        """What a trial prints is appended to `output`."""
        self._command, self._lock_file, self._output = list(command), lock_file, output
        self._pid = 0

    def __call__(self) -> int:
        """Run the trial; its exit code."""
        lock = locked(self._lock_file)
        if lock is None:
            return _FAILED
        os.ftruncate(lock, 0)
        with self._output.open("ab") as file:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
            )
        os.pwrite(lock, str(process.pid).encode(), 0)
        os.close(lock)
        self._pid = process.pid
        try:
            # Not `wait`: the handler of a signal that comes meanwhile waits for the same process.
            while (code := process.poll()) is None:
                time.sleep(_POLL_S)
        except KeyboardInterrupt:  # how a job of this machine is cancelled
            self._end_trial()
            raise
        return code

    def checkpoint(self) -> Any:
        """Let the trial save and end, and queue the job again; called by submitit, in the handler of its signal."""
        from submitit.helpers import DelayedSubmission

        self._end_trial()
        return DelayedSubmission(TrialJob(self._command, self._lock_file, self._output))

    def _end_trial(self) -> None:
        """Let it save and end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        while is_alive(self._pid):
            time.sleep(_POLL_S / 5)


class ClusterProcess:
    """A job, with what the launcher asks of a process."""

    def __init__(self, job: Any) -> None:
        """Of submitit."""
        self._job, self._is_cancelled = job, False

    def poll(self) -> int | None:
        """The exit code of the trial; None while its job is queued or runs."""
        if not self._job.done():
            return None
        if self._is_cancelled:  # submitit would wait for a result
            return 128 + signal.SIGTERM
        failure = self._job.exception()
        return int(self._job.result()) if failure is None else _FAILED

    def send_signal(self, number: int) -> None:
        """Take the job out of the queue; what runs is told to end, saves, and is killed if it takes too long."""
        del number
        if not self._is_cancelled:
            self._is_cancelled = True
            self._job.cancel(check=False)


class Cluster:
    """Where jobs are sent to."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Sends nothing.

        Args:
            folder: of the sweep.
            settings: `[slurm]` of the plan: parameters of submitit's `AutoExecutor`, `slurm_max_num_timeout`, and
                `cluster`.

        Raises:
            ConfigError: submitit is not installed, there is no such cluster here, or it has no such parameter.
        """
        if importlib.util.find_spec("submitit") is None:
            raise ConfigError(f"[slurm] needs submitit: {_INSTALL}")
        self._settings, self._folder = dict(settings), folder / JOBS
        self._name = self._settings.pop("cluster", CLUSTERS[0])
        if self._name not in CLUSTERS:
            raise ConfigError(f"[slurm] cluster is {self._name!r}; known: {', '.join(CLUSTERS)}")
        self._most_timeouts = self._settings.pop("slurm_max_num_timeout", _MOST_TIMEOUTS)
        if not isinstance(self._most_timeouts, int) or self._most_timeouts < 0:
            raise ConfigError(f"[slurm] slurm_max_num_timeout is {self._most_timeouts!r}; a whole number from 0")
        with tempfile.TemporaryDirectory() as place:
            self._executor_in(Path(place))

    def _executor_in(self, folder: Path) -> Any:
        import submitit

        try:
            most = {f"{self._name}_max_num_timeout": self._most_timeouts}
            executor = submitit.AutoExecutor(folder, cluster=self._name, **most)
            executor.update_parameters(**_USUAL | self._settings)
        except (NameError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"[slurm]: {' '.join(str(error).split())}") from error
        return executor

    @functools.cached_property
    def _executor(self) -> Any:
        """Of submitit; it writes into the sweep's folder from now on."""
        return self._executor_in(self._folder)

    def start(self, name: str, command: Sequence[str], lock_file: Path, output: Path) -> ClusterProcess:
        """Queue a trial.

        Raises:
            OSError: the cluster does not take it, or it could not be recorded, and is cancelled.
        """
        try:
            with _importable():
                job = self._executor.submit(TrialJob(command, lock_file.absolute(), output.absolute()))
        except Exception as error:  # of submitit, and of the commands that it starts
            raise OSError(f"{name} was not queued: {error}") from error
        try:
            atomic_write_json(_job_file(lock_file), {"job": job.job_id, "cluster": self._name})
        except OSError:  # no launcher would find it again, and this one queues another
            job.cancel(check=False)
            raise
        return ClusterProcess(job)


def unfinished_job(folder: Path, lock_file: Path) -> ClusterProcess | None:
    """The job of a trial that a launcher has queued and that has not ended; None: there is none, or none is known of.

    Args:
        folder: of the sweep.
        lock_file: of the trial.
    """
    with contextlib.suppress(ImportError, OSError, ValueError, KeyError):
        written = json.loads(_job_file(lock_file).read_text(encoding="utf-8"))
        import submitit

        kind = submitit.SlurmJob if written["cluster"] == CLUSTERS[0] else submitit.LocalJob
        job: Any = kind(folder / JOBS, written["job"])
        return None if job.done() else ClusterProcess(job)
    return None


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Jobs that are queued within find this program, wherever they begin."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [import_root(), before]))
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _job_file(lock_file: Path) -> Path:
    return lock_file.with_suffix(".job")
