"""Do Doom matches go on when their engines are killed? Duels of two agents, without training.

    python -m benchmarks.faults.doom_matches --minutes=10 --kill_every_s=5 [--matches=2] [--stops=0.1] [--seed=1]

A batch of duels is played with random actions. Signals come at random moments, also while a match starts: SIGKILL to
an engine or to the process of a match, and as a share of all SIGSTOP to an engine for good, which the match has to
notice by itself. A rebuild counts from the moment at which the loss is noticed to the first observation of the new
match; a recovery from the signal on, so it holds what the matches that are stepped before need as well, and for a
stopped engine the time after which one counts as stuck. A signal that comes meanwhile prolongs both and is not counted
again. The speeds are measured before, undisturbed, one environment at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from appo.envs.action_layout import random_actions
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.faults import FaultPolicy
from appo.envs.registry import make_batch_env, resolve
from appo.envs.vector.serial import SerialVecEnv
from benchmarks.faults import run_watch
from benchmarks.faults.events import percentile
from benchmarks.faults.report import Check, conclude
from benchmarks.measuring import tell

ENV, SINGLE = "doom_duel", "doom_basic"
KILL, STOP = "kill", "stop"
REBUILD_BAR_S = 5.0
HANG_S = 120.0
SPEED_S = 8.0
MATCH_MINUTES = 1.0
_ENDS_WITHIN_S = 3.0
_HOST_PORTS = range(10_000, 32_768)


class Hit(NamedTuple):
    """A signal that was sent to a match."""

    at: float  # monotonic clock
    way: str
    target: str  # what it was sent to: "host", "joined" or "process"
    match: int  # pid of the process of the match


class Recovery(NamedTuple):
    """A match that was lost and plays again."""

    way: str
    target: str
    seconds: float  # from the signal
    rebuild_s: float


class Rebuilds:
    """How long they took: surrounds each, as `FaultPolicy` wants it."""

    def __init__(self) -> None:
        """None so far."""
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Around one."""
        begin = time.monotonic()
        yield
        self.seconds.append(time.monotonic() - begin)


class Assassin(threading.Thread):
    """Sends signals to what runs below this process, until it is told to end; ends the program when nothing moves."""

    def __init__(self, every_s: float, stops: float, seed: int) -> None:
        """`stops`: the share of engines that are stopped instead of killed."""
        super().__init__(daemon=True)
        self._every_s, self._stops, self._rng = every_s, stops, random.Random(seed)
        self.hits: list[Hit] = []
        self.is_done = threading.Event()
        self.last_progress = time.monotonic()

    def run(self) -> None:
        """Wait, hit, and look whether it moves."""
        next_hit = time.monotonic() + self._rng.expovariate(1 / self._every_s)
        while not self.is_done.wait(0.02):
            now = time.monotonic()
            if now - self.last_progress > HANG_S:
                tell(f"FAILED  a hang: no step has ended for {HANG_S:.0f} s; the last signals: {self.hits[-3:]}")
                os._exit(1)
            if now >= next_hit:
                self._hit()
                next_hit = now + self._rng.expovariate(1 / self._every_s)

    def _hit(self) -> None:
        matches = psutil.Process().children()
        if not matches:
            return
        match = self._rng.choice(matches)
        try:
            below = [match, *match.children()]
            victim = self._rng.choice(below)
            target = "process" if victim is match else "joined" if "-join" in victim.cmdline() else "host"
            way = STOP if victim is not match and self._rng.random() < self._stops else KILL
            hit = Hit(time.monotonic(), way, target, match.pid)
            victim.send_signal(signal.SIGSTOP if way == STOP else signal.SIGKILL)
        except psutil.Error:  # it ended meanwhile
            return
        self.hits.append(hit)


class Played(NamedTuple):
    """What was seen while matches were disturbed."""

    matches: int  # that were played to their end
    frames: int
    seconds: float
    recoveries: list[Recovery]
    losses: int  # of a match that no signal explains
    slowest_step_s: float  # without a loss in it
    hits: int


def play(num_matches: int, seconds: float, assassin: Assassin, seed: int) -> Played:
    """Step a batch of duels for so long, while the assassin is at work."""
    options = resolve(ENV).family.config(doom_match_minutes=MATCH_MINUTES)
    contexts = [EnvContext(env_id=i, num_envs=num_matches, seed=seed) for i in range(num_matches)]
    rebuilds = Rebuilds()
    vec = make_batch_env(ENV, options, contexts, FaultPolicy(100, repairing=rebuilds))
    assert isinstance(vec, SerialVecEnv)
    agents, rng = vec.spec.agents_per_env, np.random.default_rng(seed)
    out = step_arrays(vec.spec, num_matches)
    ended = frames = losses = answered = 0
    recoveries: list[Recovery] = []
    slowest_s = 0.0
    try:
        vec.reset(out)
        assassin.start()
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            playing = [_pid_of(env) for env in vec.envs]
            rebuilds.seconds.clear()
            step_begin = time.monotonic()
            vec.step(random_actions(vec.spec.actions, rng, num_matches * agents, None), out)
            assassin.last_progress = now = time.monotonic()
            frames += int(out.frames[::agents].sum())
            ended += int(out.truncated[::agents].sum())
            lost = [playing[index] for index in np.flatnonzero(out.crashed[::agents])]
            pending = assassin.hits[answered:]
            for pid, rebuild_s in zip(lost, rebuilds.seconds, strict=False):
                hit = next((hit for hit in pending if hit.match == pid), None)
                if hit is None:
                    losses += 1
                else:
                    recoveries.append(Recovery(hit.way, hit.target, now - hit.at, rebuild_s))
            if not lost:
                slowest_s = max(slowest_s, now - step_begin)
            elif all(hit.match not in map(_pid_of, vec.envs) for hit in pending):
                answered += len(pending)
        return Played(ended, frames, time.monotonic() - begin, recoveries, losses, slowest_s, len(assassin.hits))
    finally:
        assassin.is_done.set()
        vec.close()


def _pid_of(env: Any) -> int:
    return env.match.pid if env.match is not None else 0


def frames_per_second(name: str) -> float:
    """Of one environment, with random actions."""
    vec = make_batch_env(name, None, [EnvContext(seed=1)])
    out, rng, frames = step_arrays(vec.spec, 1), np.random.default_rng(1), 0
    try:
        vec.reset(out)
        begin = time.monotonic()
        while time.monotonic() - begin < SPEED_S:
            vec.step(random_actions(vec.spec.actions, rng, vec.spec.agents_per_env, None), out)
            frames += int(out.frames[0])
        return frames / (time.monotonic() - begin)
    finally:
        vec.close()


class Belongings(NamedTuple):
    """What matches could leave on the machine."""

    processes: frozenset[str]
    ports: frozenset[int]
    memory: frozenset[str]
    folders: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        """What is there."""
        processes = {f"{child.name()} ({child.pid})" for child in psutil.Process().children(recursive=True)}
        rows = Path("/proc/net/udp").read_text().splitlines()[1:]
        ports = {int(row.split()[1].rpartition(":")[2], 16) for row in rows}
        folders = Path(tempfile.gettempdir()).glob(f"doom_{os.getpgrp()}_*")
        memory = {name for name in run_watch.shared_memory() if name.startswith("ViZDoom")}
        return cls(
            frozenset(processes),
            frozenset(port for port in ports if port in _HOST_PORTS),
            frozenset(memory),
            frozenset(path.name for path in folders),
        )


def left_since(before: Belongings) -> Belongings:
    """What is there now and was not before; processes and ports may take a moment to go."""
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while True:
        now = Belongings.now()
        left = Belongings(
            now.processes - before.processes,
            now.ports - before.ports,
            now.memory - before.memory,
            now.folders - before.folders,
        )
        if not any(left) or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def checks(played: Played, left: Belongings, speeds: tuple[float, float]) -> list[Check]:
    """What was demanded, and found."""
    duel, single = speeds
    results = [
        Check(
            "matches played to their end",
            f"{played.matches} in {played.seconds / 60:.1f} min",
            "some",
            played.matches > 0,
        ),
        Check("signals sent", str(played.hits)),
        Check("frames per second, disturbed, all matches", f"{played.frames / played.seconds:.0f}"),
        Check(f"frames per second, {ENV} / {SINGLE}", f"{duel:.0f} / {single:.0f}"),
        Check("steps that never ended", "0", "0"),
        Check("slowest step without a loss, s", f"{played.slowest_step_s:.2f}"),
        Check("losses that no signal explains", str(played.losses), "0", played.losses == 0),
    ]
    rebuilds = [recovery.rebuild_s for recovery in played.recoveries]
    is_met = percentile(rebuilds, 0.95) <= REBUILD_BAR_S
    results.append(Check("seconds to rebuild a match", _spread(rebuilds), f"p95 <= {REBUILD_BAR_S:g}", is_met))
    for way in (KILL, STOP):
        seconds = [recovery.seconds for recovery in played.recoveries if recovery.way == way]
        results.append(Check(f"seconds from {way} to playing again", _spread(seconds)))
    for name, things in left._asdict().items():
        results.append(Check(f"left: {name}", ", ".join(map(str, sorted(things))) or "nothing", "nothing", not things))
    return results


def _spread(seconds: Sequence[float]) -> str:
    p50, p95, most = percentile(seconds, 0.5), percentile(seconds, 0.95), max(seconds, default=math.nan)
    return f"{len(seconds)}: p50 {p50:.2f}, p95 {p95:.2f}, max {most:.2f}"


def main(argv: Sequence[str]) -> int:
    """Play, print the table, write the JSON; 1 when a bar was missed. Only then the JSON is kept without `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long matches are disturbed")
    parser.add_argument("--kill_every_s", type=float, default=5.0, help="mean time between two signals")
    parser.add_argument("--matches", type=int, default=2, help="that are played at once")
    parser.add_argument("--stops", type=float, default=0.1, help="share of engines that are stopped, not killed")
    parser.add_argument("--seed", type=int, default=1, help="of signals and actions")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every recovery")
    chosen = parser.parse_args(argv)
    if chosen.matches < 1 or chosen.minutes <= 0 or chosen.kill_every_s <= 0:
        parser.error("--matches, --minutes and --kill_every_s are above 0")
    before = Belongings.now()
    speeds = frames_per_second(ENV), frames_per_second(SINGLE)
    assassin = Assassin(chosen.kill_every_s, chosen.stops, chosen.seed)
    played = play(chosen.matches, 60 * chosen.minutes, assassin, chosen.seed)
    results = checks(played, left_since(before), speeds)
    folder = Path(tempfile.mkdtemp(prefix="doom_matches."))
    recoveries = json.dumps([recovery._asdict() for recovery in played.recoveries], indent=1) + "\n"
    (folder / "recoveries.json").write_text(recoveries)
    if chosen.out is not None:
        chosen.out.write_text(recoveries)
    return int(not conclude(results, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
