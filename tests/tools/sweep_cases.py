"""A program that stands in for the trainer, and sweeps that run it: the real one takes seconds to start.

Run as a program it keeps to what the launcher relies on: one process per experiment by a lock, `summary.json` at the
end, exit codes, an end after saving at SIGTERM. It works for `--train_for_seconds` in all, or until there is a file
`finish` in the sweep's folder. `--callback` says what goes wrong: `fails:2` in the first two tries, `killed:1` in the
first one, `refused:9` always.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = [sys.executable, str(Path(__file__).resolve())]  # the program
STARTS = "starts.jsonl"  # a line per start: when, on which cores, with which words
FINISH = "finish"
TWICE = "twice.txt"  # there when two processes trained at the same time


class Launched:
    """One launcher, as a process."""

    def __init__(
        self, plan: Path, *words: str, program: list[str] | None = None, prints_to: int = subprocess.PIPE
    ) -> None:
        """`program`: what starts a trial; None: the stand-in. `prints_to`: a descriptor, such as a terminal's."""
        program = STAND_IN if program is None else program
        code = f"import sys; from appo.tools.sweep import main; sys.exit(main(sys.argv[1:], {program!r}))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(plan), *words],
            cwd=plan.parent,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
            stdout=prints_to,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, seconds: float = 120.0) -> tuple[int, str]:
        """Wait for its end: exit code and everything that it printed."""
        printed = self.process.communicate(timeout=seconds)[0]
        return self.process.returncode, printed


@contextlib.contextmanager
def nothing_left_in(folder: Path) -> Iterator[list[Launched]]:
    """Whatever launchers are put into the list, and all processes that know the folder, end with this block."""
    launched: list[Launched] = []
    try:
        yield launched
    finally:
        for each in launched:
            each.process.kill()
            each.process.communicate()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and any(str(folder) in word for word in words_of(process)):
                    process.kill()


def words_of(process: psutil.Process) -> list[str]:
    """Its command line, and the files that it has open: programs may change what is shown as the former."""
    return [*process.cmdline(), *(entry.path for entry in process.open_files())]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until something holds, and give it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ValueError):
            if value := condition():
                return value
        time.sleep(0.05)
    raise AssertionError("it has not come true")


def starts(trial: Path) -> list[dict[str, Any]]:
    """Every start of a trial."""
    return [json.loads(line) for line in (trial / STARTS).read_text().splitlines()]


def states(sweep: Path) -> dict[str, str]:
    """Trial -> state."""
    trials = json.loads((sweep / "sweep.json").read_text())["trials"]
    return {name: record["state"] for name, record in trials.items()}


def stand_in(argv: list[str]) -> int:
    """The program."""
    options = dict(word.removeprefix("--").split("=", 1) for word in argv)
    folder = Path(options["train_dir"]) / options["experiments_root"] / options["experiment"]
    folder.mkdir(parents=True, exist_ok=True)
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: stopped.append(received))
    with (folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (folder / TWICE).touch()
            return 2
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on this machine")
        lock.flush()
        return _work(folder, options, stopped)


def _work(folder: Path, options: dict[str, str], stopped: list[int]) -> int:
    began = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "at": time.time(), "options": options}
    began["gpu"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(began) + "\n")
    what, _, count = options.get("callback", "fails:0").partition(":")
    if len(starts(folder)) <= int(count):
        print(f"the stand-in is {what}", flush=True)
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 if what == "refused" else 1
    wanted = float(options.get("train_for_seconds", "0.2"))
    worked_file = folder / "worked.txt"
    worked = float(worked_file.read_text()) if worked_file.exists() else 0.0
    while worked < wanted and not stopped and not (folder.parent / FINISH).exists():
        time.sleep(0.02)
        worked += 0.02
    worked_file.write_text(str(worked))
    rate = float(options.get("learning_rate", "1"))
    reason = "stopped by SIGTERM" if stopped else f"reached train_for_seconds={wanted}"
    policies = [{"avg_reward": rate, "avg_true_reward": -rate}]
    summary = {"reason": reason, "env_frames": 1000, "train_seconds": worked, "best": [rate], "policies": policies}
    (folder / "summary.json").write_text(json.dumps(summary))
    return 128 + stopped[0] if stopped else 0


if __name__ == "__main__":
    sys.exit(stand_in(sys.argv[1:]))
