"""Close vector environments in the middle of everything, hundreds of times: does it ever hang, and is anything left?

    python -m benchmarks.faults.env_closes [--closes=500] [--timeout=1] [--doom_share=0.2]

Each time, environments run in processes and are closed at a random moment of a random trouble: idle, busy, results that
nobody took, messages that wait for room, a step that sleeps for ever, ignores SIGTERM, stops or kills its process, a
`close` that raises, an engine that nobody closes, whose process is killed or not. Some of them play Doom, whose engines
are processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces
from rich.console import Console

from appo.envs.vector.errors import VecEnvError
from appo.envs.vector.make import make_vec_env
from appo.utils.processes import adopt_orphans
from benchmarks.measuring import markdown

TROUBLES = (
    "idle",
    "busy",
    "unread",
    "full",
    "sleeping",
    "deaf",
    "stopped",
    "killed",
    "dying",
    "close raises",
    "engine",
    "building",
)
METHODS = ("fork", "forkserver", "spawn")
WEIGHTS = (10, 5, 1)  # a process that is spawned takes two seconds to start
ALLOWED_S = 2.0  # beyond the timeout
SERVERS = ("resource_tracker", "forkserver import main", "guardian.py")


class Troubled(gymnasium.Env[Any, Any]):
    """Does what its trouble says in its third step, or when it is closed."""

    action_mask_in_info = False

    def __init__(self, trouble: str) -> None:
        """`trouble`: one of `TROUBLES`."""
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.trouble, self.steps = trouble, 0
        self.blob: Any = None
        if trouble == "building":
            time.sleep(3600)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, if the trouble lets it."""
        self.steps += 1
        if self.steps == 3:
            self._suffer()
        if self.trouble == "busy":
            time.sleep(0.02)
        info = (
            {"episode_extra_stats": {f"number {index}": 1.0 for index in range(20)}} if self.trouble == "unread" else {}
        )
        return np.zeros(4, np.float32), 0.0, False, False, info

    def _suffer(self) -> None:
        if self.trouble == "sleeping":
            time.sleep(3600)
        if self.trouble == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(1)
        if self.trouble == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.trouble == "dying":
            os._exit(3)
        if self.trouble == "engine":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)

    def close(self) -> None:
        """Raise, if that is the trouble."""
        if self.trouble == "close raises":
            raise RuntimeError("cannot be closed")


def main(argv: Sequence[str] | None = None) -> int:
    """Close, count, print; 1 when something took too long or is left."""
    args = _parser().parse_args(argv)
    adopt_orphans()  # else what is left of a process that was killed is nobody's here, and not seen
    rng = random.Random(args.seed)
    shared_before = _shared_memory()
    seconds: dict[str, list[float]] = {}
    late, left = Counter[str](), Counter[str]()
    for _ in range(args.closes):
        trouble, method = rng.choice(TROUBLES), rng.choices(METHODS, WEIGHTS)[0]
        plays_doom = trouble in ("idle", "busy", "unread", "killed", "stopped") and rng.random() < args.doom_share
        name = f"doom, {trouble}" if plays_doom else trouble
        took = close_once(trouble, method, rng, args.timeout, plays_doom=plays_doom)
        seconds.setdefault(name, []).append(took)
        late[name] += took > args.timeout + ALLOWED_S
        found = _descendants()
        left[name] += bool(found)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                process.kill()
    rows = [
        [
            name,
            str(len(times)),
            f"{statistics.median(times):.2f}",
            f"{max(times):.2f}",
            str(late[name]),
            str(left[name]),
        ]
        for name, times in sorted(seconds.items())
    ]
    files = _shared_memory() - shared_before
    header = ("trouble", "closes", "median, s", "longest, s", "too long", "left something")
    Console().print(markdown(header, rows), soft_wrap=True)
    what = f"{sum(late.values())} took more than {args.timeout + ALLOWED_S:g} s, {sum(left.values())} left a process"
    print(f"{args.closes} closes with a timeout of {args.timeout:g} s; {what}, {len(files)} files in /dev/shm")
    return int(bool(sum(late.values()) + sum(left.values()) + len(files)))


def close_once(trouble: str, method: Any, rng: random.Random, timeout: float, *, plays_doom: bool) -> float:
    """Get into trouble and close; the seconds that closing took."""
    env: Any = "doom_basic" if plays_doom else functools.partial(Troubled, trouble)
    began = time.monotonic()
    try:
        vec = make_vec_env(
            env,
            4,
            backend="subproc",
            num_workers=2,
            start_method=method,
            reset_timeout=0.3 if trouble == "building" else 60.0,
        )
    except VecEnvError:
        return time.monotonic() - began if trouble == "building" else float("inf")
    vec.reset()
    actions = np.zeros(4, np.int64)
    for _ in range(2):
        vec.step(actions)
    if trouble == "engine":
        vec.step(actions)  # to its end: every engine has been started
    elif trouble not in ("idle", "killed"):
        vec.send(actions)
        time.sleep(rng.uniform(0.0, 0.3))
    processes: Any = vec._envs
    if trouble == "full":
        for worker in processes.workers:
            os.kill(worker.pid, signal.SIGSTOP)
            worker.post(b"x" * 4_000_000)
    if trouble in ("killed", "stopped") or (trouble == "engine" and rng.random() < 0.5):
        number = signal.SIGSTOP if trouble == "stopped" else signal.SIGKILL
        os.kill(rng.choice(processes.workers).pid, number)
    began = time.monotonic()
    vec.close(timeout)
    return time.monotonic() - began


def _descendants() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(name in words for name in SERVERS):
                found.append(process)
        except psutil.Error:
            continue  # it has ended since it was listed
    return found


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--closes", type=int, default=500)
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds given to `close`")
    parser.add_argument("--doom_share", type=float, default=0.2, help="of those troubles that Doom can have")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
