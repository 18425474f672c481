"""A run's numbers at Weights & Biases: a process of its own that reads the experiment's files and sends what is new.

The trainer starts it (`--with_wandb=True`) and never waits for it: without a network, without an account or without
memory, it ends or is late, and nothing else is. `appo-tools wandb` does the same for a run that goes on or has ended.

Where it has stopped is kept in `wandb_run.json`, so that a resumed run goes on in the same place at Weights & Biases.
A point is noted as sent before it is: after a crash one may be missing there, and none is there twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.run.config import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE
from appo.algorithms.saved_config import parse_saved
from appo.utils.files import NewLines, atomic_write_json
from appo.utils.options import ConfigError
from appo.utils.processes import lower_priority, set_title

STATE_FILE = "wandb_run.json"
INSTALL = "pip install wandb"
IMPORT_S = 20.0  # a disk that takes longer refuses no run
LOOK_EVERY_S = 2.0
CONNECT_S = 30.0  # afterwards, what comes is kept on disk only
FINISH_S = 20.0  # of the process that a run starts, once the run has ended: what it has not sent stays on disk
_NICENESS = 10
_X = "env_frames"


class Account(NamedTuple):
    """Where a run belongs at Weights & Biases."""

    project: str
    user: str = ""  # or team; empty: who has logged in
    group: str = ""
    tags: tuple[str, ...] = ()


class MirrorError(RuntimeError):
    """Nothing can be sent. The message says why, in one line."""


def require_package() -> None:
    """Import the package once, in a process of its own: the driver needs nothing of it. No network is asked.

    Raises:
        ConfigError: it is missing or broken.
    """
    command = [sys.executable, "-c", "import wandb; wandb.init"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=IMPORT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # what is wrong with it is told by the process that sends
    if done.returncode:
        why = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        raise ConfigError(f"with_wandb=True needs the package wandb, which cannot be imported ({why}): {INSTALL}")


class Mirror:
    """One experiment and its counterpart at Weights & Biases."""

    def __init__(self, folder: Path, account: Account, say: Callable[[str], None]) -> None:
        """Sends nothing yet. `say` is given each line for the user."""
        self._folder, self._account, self._say = folder, account, say
        state = _read_state(folder / STATE_FILE)
        self._run_id = state.get("id") or secrets.token_hex(4)
        place = state.get("place") or (0, 0)
        self._lines = NewLines(folder / METRICS_FILE, inode=place[0], offset=place[1])
        self._run: Any = None
        self._num_policies = 1

    def send_new(self) -> int:
        """Hand over the points that have come since the last time; how many.

        Raises:
            MirrorError: Weights & Biases takes none.
        """
        if not (self._folder / CONFIG_FILE).exists():  # comes with the first optimizer step
            return 0
        points = [point for line in self._lines.read() if (point := _point(line)) is not None]
        if self._run is None:
            self._begin()
        if points:
            atomic_write_json(self._folder / STATE_FILE, {"id": self._run_id, "place": self._lines.place})
        for point in points:
            self._run.log(self._named(point))
        return len(points)

    def finish(self) -> None:
        """Send the rest, and how the run has ended."""
        if self._run is None:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):
            summary = json.loads((self._folder / SUMMARY_FILE).read_text(encoding="utf-8"))
            self._run.summary["ended"] = str(summary.get("reason", ""))
        self._run.finish()

    def _begin(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MirrorError(f"Weights & Biases: its package cannot be imported ({error}): {INSTALL}") from error

        options = parse_saved((self._folder / CONFIG_FILE).read_text(encoding="utf-8"), CONFIG_FILE).options
        self._num_policies = int(options.get("num_policies", 1))
        account = self._account
        given: dict[str, Any] = {
            "project": account.project,
            "entity": account.user or None,
            "group": account.group or None,
            "tags": list(account.tags) or None,
            "name": str(options.get("experiment") or self._folder.name),
            "id": self._run_id,
            "resume": "allow",
            "dir": str(self._folder),
            "config": options,
            "settings": wandb.Settings(console="off", silent=True, init_timeout=CONNECT_S),
        }
        try:
            self._run = wandb.init(**given)
        except wandb.errors.CommError as error:  # no network: as if it had been asked to stay offline
            self._say(f"Weights & Biases cannot be reached ({_first_line(error)}); kept on disk")
            wandb.teardown()  # it still holds the run's id
            self._run = wandb.init(**given, mode="offline")
        except wandb.errors.Error as error:
            refusal = _first_line(error).rstrip(".")
            raise MirrorError(
                f"Weights & Biases refuses: {refusal}; type `wandb login` once, or set WANDB_MODE=offline"
            ) from error
        for policy in range(self._num_policies):
            prefix = self._prefix(policy)
            self._run.define_metric(f"{prefix}*", step_metric=f"{prefix}{_X}")
        files = Path(self._run.dir).parent
        self._say(f"Weights & Biases: {f'`wandb sync {files}` sends it' if self._run.offline else self._run.url}")

    def _prefix(self, policy: int) -> str:
        return f"policy_{policy:02d}/" if self._num_policies > 1 else ""

    def _named(self, point: dict[str, Any]) -> dict[str, Any]:
        """A point with the names that it has at Weights & Biases."""
        prefix = self._prefix(int(point["policy"]))
        kept = {name: value for name, value in point.items() if name == _X or ("/" in name and value is not None)}
        return {f"{prefix}{name}": value for name, value in kept.items()}


def _point(line: bytes) -> dict[str, Any] | None:
    """A point of `metrics.jsonl`; None where a crash has left something else."""
    try:
        point = json.loads(line)
    except ValueError:
        return None
    return point if isinstance(point, dict) and {"policy", _X} <= point.keys() else None


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a new run, or what a full disk has left of it
        return {}
    return state if isinstance(state, dict) else {}


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def follow(mirror: Mirror, wait: Callable[[float], bool]) -> None:
    """Send what comes until the run has ended.

    Args:
        mirror: of one experiment.
        wait: sleeps for seconds, at most; True: the run has ended.

    Raises:
        MirrorError: nothing can be sent.
    """
    has_ended = False
    while not has_ended:
        has_ended = wait(LOOK_EVERY_S)
        mirror.send_new()
    mirror.finish()


def add_words(parser: argparse.ArgumentParser) -> None:
    """Those that say where a run belongs."""
    parser.add_argument("--project", default="appo", help="at Weights & Biases (default: appo)")
    parser.add_argument("--user", default="", help="or team (default: who has logged in)")
    parser.add_argument("--group", default="", help="of runs")
    parser.add_argument("--tags", default="", help="with commas")


def account_of(words: argparse.Namespace) -> Account:
    """What `add_words` has declared."""
    return Account(words.project, words.user, words.group, tuple(filter(None, words.tags.split(","))))


def main(argv: Sequence[str]) -> int:
    """The process that a run starts: standard input is closed when the run ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides what a Ctrl+C means
    set_title("appo wandb")
    lower_priority(_NICENESS)
    words = argparse.ArgumentParser()
    words.add_argument("folder", type=Path)
    add_words(words)
    given = words.parse_args(argv)

    has_ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        has_ended.set()
        time.sleep(FINISH_S)
        print("Weights & Biases: not all was sent in time; `wandb sync` sends it", flush=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        follow(Mirror(given.folder, account_of(given), lambda line: print(line, flush=True)), has_ended.wait)
    except (MirrorError, ConfigError, OSError) as error:
        print(f"error: {_first_line(error)}", flush=True)
        return 1
    except Exception as error:  # whatever a library of another's does
        print(f"error: Weights & Biases: {type(error).__name__}: {_first_line(error)}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
