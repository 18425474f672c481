"""Endings: a real run is ended, or asked to save, at random moments. How soon, with what on disk, and what is left?

    python -m benchmarks.faults.shutdown --moments=50 --seed=1 --ways=term,int,hup,usr2,usr1,driver,twice --to=group
                                 [--outputs_every=1] [-- training options]

    term, int,  SIGTERM, SIGINT, SIGHUP, SIGUSR2: ends within 10 s with a checkpoint that is not older than the signal;
    hup, usr2   at every `outputs_every`-th of these moments, the policy that goes on from it gives the same outputs
    usr1        SIGUSR1: such a checkpoint as well, and the run goes on
    driver      kill -9 of the driver: everything below it is gone within 2 s, nothing is left
    twice       Ctrl+C, and once more a tenth of a second later: ends at once

`--to` names the receivers of these signals, but for kill -9: the driver alone, its process group, as from a shell,
`timeout` or a terminal, or every process of the run, as from a service manager. Beside each run another program is
started as a child of the driver, as by `tensorboard & exec python train_appo.py`: it has to survive.

Each start goes on where the one before was ended, so the checkpoints are also read, fifty times. Every other moment is
counted from the start of the program instead of from that of training: some of those lie before there is anything to
save, and then only the exit counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.utils.processes import handles_signal
from benchmarks.faults import run_watch
from benchmarks.faults.events import percentile
from benchmarks.faults.report import Check, conclude
from benchmarks.faults.resumed_outputs import what_differs
from benchmarks.faults.run_watch import Watch
from benchmarks.measuring import MeasurementError, let_children_hear_hangups, started, tell
from benchmarks.ours import OurRun, our_run

LOAD = "--env=CartPole-v1 --num_workers=4 --num_envs_per_worker=16 --device=cpu"
WAYS = {
    "term": signal.SIGTERM,
    "int": signal.SIGINT,
    "hup": signal.SIGHUP,
    "usr2": signal.SIGUSR2,
    "usr1": signal.SIGUSR1,
    "driver": signal.SIGKILL,
    "twice": signal.SIGINT,
}
EXIT_CODES = {"term": 143, "int": 130, "hup": 129, "usr2": 140, "twice": 130, "driver": -signal.SIGKILL}
SAVES = ("term", "int", "hup", "usr2")
RECEIVERS = ("driver", "group", "all")
LAST_MOMENT_S = 10.0
START_LIMIT_S = 120.0
SAVE_S, END_S, GONE_S, AT_ONCE_S = 10.0, 10.0, 2.0, 1.0
SECOND_AFTER_S = 0.1
# How long one may wait for what should have been long over: a hang is told as such, not as a number.
LIMIT_S = 60.0
MOST_TOLD = 3  # faults in the table; all of them are in the JSON


class Saved(NamedTuple):
    """What a checkpoint's name and time tell."""

    train_step: int
    env_frames: int
    time: float  # wall clock


class Moment(NamedTuple):
    """One signal and what followed."""

    way: str
    after_s: float  # from the moment at which it listened, or trained, to the signal
    had_trained: bool  # this start had counted frames, so there was something to save
    seconds: float  # until it ended, or had saved
    exit_code: int | None  # None: it did not end, or was not meant to
    faults: tuple[str, ...]  # what was not as it has to be, in words


def newest_checkpoint(folder: Path) -> Saved:
    """The newest by its name; zeros when there is none."""
    found = [Saved(0, 0, 0.0)]
    for path in (folder / "checkpoint_p0").glob("checkpoint_*.pth"):
        steps, frames = map(int, path.stem.split("_")[1:])
        found.append(Saved(steps, frames, path.stat().st_mtime))
    return max(found)


def what_is_missing(saved: Saved, signalled_at: float, told: Mapping[str, Any]) -> list[str]:
    """What a run had told of a policy before the signal and its checkpoint does not hold, in words."""
    missing = []
    if saved.time < signalled_at:
        missing.append(f"the newest checkpoint is {signalled_at - saved.time:.1f} s older than the signal")
    if saved.train_step < told["train_steps"]:
        missing.append(f"the newest checkpoint has {saved.train_step} train steps of {told['train_steps']}")
    if saved.env_frames < told["env_frames"]:
        missing.append(f"the newest checkpoint has {saved.env_frames} frames of {told['env_frames']}")
    return missing


class Ending:
    """Starts of one run, each watched until it is over."""

    def __init__(self, run: OurRun, folder: Path, receiver: str = "driver") -> None:
        """Nothing is started yet. `folder`: for the log, with a folder `tmp` for temporary files."""
        self._run = run
        self._receiver = receiver
        self._temporary = folder / "tmp"
        self._log = folder / "log.txt"
        self._other = folder / "other_program"
        # In a session of its own, so that the signal does not reach it.
        shell = f'setsid sleep 3600 </dev/null >/dev/null 2>&1 & echo $! >"{self._other}"; exec "$@"'
        self._command = ["sh", "-c", shell, "sh", *run.command]

    def at(self, way: str, after_s: float, *, trains: bool, compares_outputs: bool = True) -> Moment:
        """Start it, wait so long, do it, and see what is left.

        Args:
            way: one of `WAYS`.
            after_s: seconds that it may go on before.
            trains: they are counted from the start of training; otherwise from when it first listens to signals.
            compares_outputs: let a copy go on, and compare what both policies say; takes longer than all the rest.

        Raises:
            MeasurementError: it ended by itself, hangs, or does not go on after it has saved.
        """
        shared_before, files_before = run_watch.shared_memory(), set(self._temporary.rglob("*"))
        with started(self._command, self._log) as (process, _), self._other_survives() as wrong:
            watch = Watch(self._run.folder, process, self._log, LIMIT_S)
            is_ready = watch.trains if trains else lambda: handles_signal(process.pid, signal.SIGTERM)
            if not watch.until(is_ready, START_LIMIT_S):
                raise MeasurementError(f"not begun within {START_LIMIT_S:.0f} s; {run_watch.last_line(self._log)}")
            watch.until(lambda: False, after_s)
            moment = self._save(watch, process) if way == "usr1" else self._end(way, watch, process)
        deadline = time.monotonic() + (GONE_S if way == "driver" else 0.0)  # the guardian clears up behind a driver
        while (left := self._left(shared_before, files_before)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if way in SAVES:  # a writer that is killed leaves a temporary file, which the next start removes
            left += [str(path) for path in self._run.folder.rglob("*.tmp")]
        if compares_outputs and way in SAVES and moment.had_trained:
            moment = moment._replace(faults=(*moment.faults, *what_differs(self._run, self._log)))
        faults = (*moment.faults, *(f"{name} was left" for name in left), *wrong)
        return moment._replace(after_s=after_s, faults=faults)

    @contextlib.contextmanager
    def _other_survives(self) -> Iterator[list[str]]:
        """A list that tells, afterwards, what became of the program that is no part of the run."""
        wrong: list[str] = []
        try:
            yield wrong
        finally:
            try:
                os.kill(int(self._other.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                wrong.append("another program was killed")

    def _signal(self, process: subprocess.Popen[bytes], way: str) -> None:
        number = WAYS[way]
        if number == signal.SIGKILL or self._receiver == "driver":
            process.send_signal(number)
        elif self._receiver == "group":
            os.killpg(process.pid, number)
        else:
            for pid in run_watch.session_members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _left(self, shared_before: set[str], files_before: set[Path]) -> list[str]:
        """Files and shared memory that were not there before."""
        files = [str(path) for path in set(self._temporary.rglob("*")) - files_before]
        return files + [f"/dev/shm/{name}" for name in run_watch.abandoned_shared_memory(shared_before)]

    def _end(self, way: str, watch: Watch, process: subprocess.Popen[bytes]) -> Moment:
        had_trained, told, signalled_at = watch.has_counted(), dict(watch.status), time.time()
        if way == "twice":
            self._signal(process, way)
            time.sleep(SECOND_AFTER_S)
        code, seconds = run_watch.end(process, lambda: self._signal(process, way), LIMIT_S)
        began = time.monotonic()
        faults = [f"{name} was left" for name in run_watch.survivors(process.pid, GONE_S)]
        if way == "driver":
            seconds = time.monotonic() - began
        if way in SAVES and had_trained:
            faults += what_is_missing(newest_checkpoint(self._run.folder), signalled_at, told["policies"][0])
        if code != EXIT_CODES[way]:
            faults.append(f"exit code {code}; {run_watch.last_line(self._log)}")
        return Moment(way, 0.0, had_trained, seconds, code, tuple(faults))

    def _save(self, watch: Watch, process: subprocess.Popen[bytes]) -> Moment:
        told, signalled_at = dict(watch.status), time.time()
        self._signal(process, "usr1")
        watch.until(lambda: newest_checkpoint(self._run.folder).time >= signalled_at, LIMIT_S)
        seconds = time.time() - signalled_at
        faults = what_is_missing(newest_checkpoint(self._run.folder), signalled_at, told["policies"][0])
        frames = watch.samples[-1].env_frames
        if not watch.until(lambda: watch.samples[-1].env_frames > frames, LIMIT_S):
            faults.append("it saved and did not go on")
        return Moment("usr1", 0.0, True, seconds, None, tuple(faults))


def endings(way: str, chosen: argparse.Namespace, folder: Path) -> list[Moment]:
    """The same experiment, ended in one way at as many random moments. `chosen`: what `main` was called with."""
    (folder / "tmp").mkdir(parents=True)
    run = our_run([*LOAD.split(), *chosen.options], folder, way)
    command = ["env", f"TMPDIR={folder / 'tmp'}", *run.command]
    ending = Ending(run._replace(command=command), folder, chosen.to)
    rng, found = random.Random(f"{chosen.seed} {way}"), []
    for number in range(1, chosen.moments + 1):
        after_s = rng.uniform(0.0, LAST_MOMENT_S)
        try:
            trains, compares = way == "usr1" or number % 2 == 1, (number - 1) // 2 % chosen.outputs_every == 0
            found.append(ending.at(way, after_s, trains=trains, compares_outputs=compares))
        except MeasurementError as error:
            found.append(Moment(way, after_s, False, LIMIT_S, None, (str(error),)))
        told = f"{found[-1].seconds:.2f} s {found[-1].faults or ''}"
        tell(f"{way} {number} of {chosen.moments}, after {after_s:.1f} s: {told}")
    return found


def checks(way: str, moments: Sequence[Moment]) -> list[Check]:
    """What was demanded of one way to end a run, and found."""
    bar_s = {"usr1": SAVE_S, "driver": GONE_S, "twice": AT_ONCE_S}.get(way, END_S)
    seconds = [moment.seconds for moment in moments]
    p95 = percentile(seconds, 0.95)
    faults = [f"after {moment.after_s:.1f} s: {fault}" for moment in moments for fault in moment.faults]
    trained = sum(moment.had_trained for moment in moments)
    words = f"p50 {percentile(seconds, 0.5):.2f}, p95 {p95:.2f}, max {max(seconds):.2f}"
    until = "until it has saved" if way == "usr1" else "until it has ended"
    return [
        Check(f"{way}: seconds {until}", words, f"p95 <= {bar_s:g}", p95 <= bar_s),
        Check(f"{way}: moments of training", f"{trained} of {len(moments)}", "some", trained > 0),
        Check(f"{way}: what was wrong", _told(faults), "nothing", not faults),
    ]


def _told(faults: Sequence[str]) -> str:
    more = len(faults) - MOST_TOLD
    return "; ".join(faults[:MOST_TOLD]) + (f"; and {more} more" if more > 0 else "") if faults else "nothing"


def main(argv: Sequence[str]) -> int:
    """End runs, print the table, write the JSON; 1 when a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50, help="how often, each way")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--to", choices=RECEIVERS, default="driver", help="receivers of the signals")
    parser.add_argument("--outputs_every", type=int, default=1, help="compare outputs at every so many moments")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every moment")
    parser.add_argument("options", nargs="*", help="after --: further options of the run")
    chosen = parser.parse_args(argv)
    ways = chosen.ways.split(",")
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"{', '.join(unknown)} is unknown; there are {', '.join(WAYS)}")
    if chosen.moments < 1:
        parser.error(f"--moments={chosen.moments} ends nothing; nearest: 1")
    if chosen.outputs_every < 1:
        parser.error(f"--outputs_every={chosen.outputs_every}: nearest: 1")
    let_children_hear_hangups()
    folder = Path(tempfile.mkdtemp(prefix="endings."))
    results, moments = [], []
    for way in ways:
        found = endings(way, chosen, folder / way)
        moments += found
        results += checks(way, found)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps([moment._asdict() for moment in moments], indent=1) + "\n")
    return int(not conclude(results, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
