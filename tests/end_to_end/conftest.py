"""Runs of the real command line, each in a process tree of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from appo.algorithms import checkpoints
from benchmarks.faults.run_watch import abandoned_shared_memory, helper, shared_memory

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--num_workers=2", "--num_envs_per_worker=8", "--device=cpu", "--experiment_summaries_interval=1"]
# A sound environment of the user's own, which cannot be drawn.
PLAIN_ENV = """
import gymnasium
import numpy as np

class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


class Run:
    """One `train_appo.py`, from its start to its end."""

    def __init__(
        self,
        train_dir: Path,
        *options: str,
        env: str = "CartPole-v1",
        script: str = "train_appo.py",
        before: Sequence[str] = (),
    ) -> None:
        """`before`: words of a command that starts the script, for example `nohup`."""
        self.folder = train_dir / "run"
        words = [sys.executable, str(ROOT / script), f"--env={env}", "--experiment=run", f"--train_dir={train_dir}"]
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*before, *words, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=train_dir,
        )
        self.output = ""

    def status(self) -> dict[str, Any]:
        """What status.json says; empty as long as there is none."""
        path = self.folder / "status.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def saved(self) -> checkpoints.Checkpoint:
        """The newest checkpoint of the first policy; fails the test when there is none."""
        found = checkpoints.load_newest_valid(self.folder / "checkpoint_p0")
        assert found is not None, f"{self.folder} has no checkpoint"
        return found

    def wait_for(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait until something holds; fails the test when the run ends before, or never."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := condition():
                return value
            assert self.process.poll() is None, f"the run ended early:\n{self.read()}"
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s; {self.status()}\n{self.tree()}")

    def wait_for_training(self, frames: int = 1) -> None:
        """Wait until it samples and learns."""
        before = self.began
        self.wait_for(lambda: self._is_fresh(before) and self._has_learned(frames))

    def _is_fresh(self, before: float) -> bool:
        path = self.folder / "status.json"
        return path.exists() and path.stat().st_mtime > time.time() - (time.monotonic() - before)

    def _has_learned(self, frames: int) -> bool:
        status = self.status()
        return status["env_frames"] >= frames and status["policies"][0]["train_steps"] > 0

    def tree(self) -> dict[str, psutil.Process]:
        """Title -> process, for the run and everything below it."""
        found = {}
        try:
            family = [psutil.Process(self.process.pid)]
            family += family[0].children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        for process in family:
            try:
                found[_title(process)] = process
            except psutil.NoSuchProcess:
                continue  # it has ended since it was listed
        return found

    def kill(self, title: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to one process of the run."""
        os.kill(self.tree()[title].pid, number)

    def signal(self, number: int) -> None:
        """Send a signal to the driver."""
        self.process.send_signal(number)

    def read(self) -> str:
        """Everything that it printed; waits for its end."""
        if not self.output:
            self.output = self.process.communicate(timeout=90)[0]
        return self.output

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self.read()
        return self.process.returncode


def wait_for_end(processes: list[psutil.Process], seconds: float) -> list[str]:
    """Titles of those that still run after so many seconds; a zombie has ended, whoever fails to reap it."""
    deadline = time.monotonic() + seconds
    while (running := [process for process in processes if _is_running(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [_title(process) for process in running]


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _title(process: psutil.Process) -> str:
    return helper(process) or " ".join(process.cmdline()).strip()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs in a folder of the test; nothing of them may be left at its end."""
    runs: list[Run] = []
    shared_before = shared_memory()

    def begin(*options: str, **keywords: Any) -> Run:
        runs.append(Run(tmp_path, *options, **keywords))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.read()
    deadline = time.monotonic() + 2.0
    while (left := _left_in(tmp_path) + sorted(abandoned_shared_memory(shared_before))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"processes or shared memory left behind: {left}"


def _left_in(folder: Path) -> list[str]:
    """Processes of runs in this folder that still live, found by the files they have open."""
    left = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in entry.path for entry in process.open_files()):
                left.append(_title(process))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it has ended, or is somebody else's
    return left
