"""Chaos: a real run whose workers are killed, stopped and crashed at random, and its recovery.

    python -m benchmarks.faults.chaos --kills=30 --interval=2 --kinds=actor              one row of the table of bars
    python -m benchmarks.faults.chaos --kills=1000 --seed=1 --signals=kill,kill,stop    an hour of everything
    python -m benchmarks.faults.chaos --env=doom_basic --kills=30 -- --hidden_size=128    any option of the run
    python -m benchmarks.faults.chaos --each_failpoint=20                             die at every known place

The run trains, is measured undisturbed, is disturbed, comes to rest, and is ended by SIGTERM. The table shows what was
found; every bar that was missed is told in words, and makes the exit code 1. Run it on an idle machine: the bars are
seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.run.config import STATUS_FILE
from appo.utils import failpoints
from benchmarks.faults import counted_steps, report, run_watch
from benchmarks.faults.events import KINDS, not_back
from benchmarks.faults.injection import SIGNALS, Fault, FaultInjector, plan
from benchmarks.faults.report import Bars, Check, Findings
from benchmarks.faults.run_watch import AtRest, Watch
from benchmarks.measuring import MeasurementError, started, tell
from benchmarks.ours import OurRun, our_run

START_LIMIT_S = 120.0
LOSS_S = 8.0  # how long a failpoint may be waited for
REST_S = 3.0  # how long processes are observed without a fault
# How often the reference load passes a place: a death every few seconds leaves time to work in between. Places that are
# not named here are passed with every batch of the learner, or some forty times a second.
OFTEN, OFTEN_ODDS = ("actor-ask", "policy-answer"), 3e-4  # with every step of a split: thousands of times a second
BLOCK, BLOCK_ODDS = ("actor-block-begin", "actor-block-complete", "learner-take", "learner-release"), 2e-3
SELDOM, SELDOM_ODDS = ("checkpoint-", "learner-snapshot", "adopt-"), 0.3  # once a second, with the options below
OTHER_ODDS = 1e-2
SELDOM_OPTIONS = ("--save_every_sec=1", "--snapshot_every_sec=1")
# Only a population passes these places: two policies that learn next to nothing, so that luck makes one the better one
# again and again.
ADOPTING = "adopt-"
ADOPTING_OPTIONS = (
    "--num_policies=2 --with_pbt=True --pbt_start_mutation=20000 --pbt_period_env_steps=20000 --pbt_replace_gap_std=0 "
    "--stats_avg=10 --learning_rate=1e-7"
)


class Load(NamedTuple):
    """What is trained while faults are injected."""

    options: str
    is_counted: bool  # its environments keep books of their own


LOADS = {
    "CartPole-v1": Load("--num_workers=4 --num_envs_per_worker=16 --device=cpu", True),
    # No books: the engines' cores are chosen by the family, which a wrapped environment does not have.
    "doom_basic": Load("--num_workers=2 --num_envs_per_worker=4 --device=cpu", False),
}


@dataclass(frozen=True)
class Plan:
    """One disturbed run."""

    env: str = "CartPole-v1"
    seed: int = 1
    kills: int = 30
    interval_s: float = 2.0
    kinds: tuple[str, ...] = KINDS
    signals: tuple[str, ...] = ("kill",)
    stop_s: float = 3.0
    heartbeat_s: float = 10.0
    baseline_s: float = 15.0
    warm_up_s: float = 5.0
    fault_phase_s: float = 0.0  # how long it may last at most; 0: until everything was sent
    failpoints: str = ""
    losses: int = 0  # with failpoints: enough when so many workers died of them; 0: never
    options: tuple[str, ...] = ()

    @property
    def hang_s(self) -> float:
        """How long no frame may be counted: a hanging worker has to be found and replaced, its successor to start."""
        return 3.0 * self.heartbeat_s + 30.0

    def run_in(self, folder: Path) -> OurRun:
        """How the run is started, and started again; its environment variables are part of the command."""
        load = LOADS[self.env]
        options = [f"--env={self.env}", *load.options.split()]
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        variables = [f"TMPDIR={temporary}"]
        if load.is_counted:
            counts = self.counts(folder)
            counts.mkdir(exist_ok=True)
            variables += [f"{counted_steps.ENV}={self.env}", f"{counted_steps.COUNTS}={counts}"]
            options[0] = "--env=benchmarks.faults.counted_steps:make_env"
            options[1:1] = counted_steps.options_for(self.env)
        variables += [f"{failpoints.VARIABLE}={self.failpoints}"] if self.failpoints else []
        options += ["--max_failures_in_a_row=1000", f"--heartbeat_timeout_seconds={self.heartbeat_s:g}"]
        run = our_run([*options, *self.options], folder)
        return run._replace(command=["env", *variables, *run.command])

    def counts(self, folder: Path) -> Path:
        """Where its environments keep their books."""
        return folder / "counts"


def disturb(chosen: Plan, folder: Path, tell: Callable[[str], None], at_rest: AtRest | None = None) -> Findings:
    """Start a run, disturb it as planned, end it.

    Args:
        chosen: the plan.
        folder: for everything that it writes.
        tell: prints a line.
        at_rest: of another run with the same options: no baseline of this one is measured.

    Raises:
        MeasurementError: it did not begin to train; nothing can be said of it.
    """
    run, log, found = chosen.run_in(folder), folder / "log.txt", Findings(wanted_losses=chosen.losses)
    shared_before = run_watch.shared_memory()
    with started(run.command, log) as (process, _):
        watch = begun(chosen, run, process, log)
        tell("it trains")
        injector = FaultInjector(_planned_faults(chosen), chosen.stop_s)
        try:
            if at_rest is None and not chosen.failpoints:  # which are armed from the first moment on
                at_rest = _measure_baseline(chosen, watch, found, tell)
            _run_fault_phase(chosen, watch, injector, found, tell)
            tell("it comes to rest, and is ended")
            _rest(chosen, watch, found, at_rest)
        except MeasurementError as error:
            found.failure = str(error)
        found.samples, found.looks, found.status = watch.samples, watch.looks, dict(watch.status)
        found.hits, found.told_to_end = injector.hits, time.time()
        _end(process, run, found)
        found.events = watch.events()
    if chosen.failpoints and not found.failure:
        _take_up_again(chosen, folder, found, tell)
    if LOADS[chosen.env].is_counted:
        found.booked = counted_steps.booked(chosen.counts(folder))
    found.left_shared_memory = sorted(run_watch.abandoned_shared_memory(shared_before))
    found.left_files = sorted(str(path.relative_to(folder)) for path in (folder / "tmp").rglob("*"))
    return found


def begun(chosen: Plan, run: OurRun, process: subprocess.Popen[bytes], log: Path) -> Watch:
    """A run that trains, under observation.

    Raises:
        MeasurementError: it does not begin to.
    """
    watch = Watch(run.folder, process, log, chosen.hang_s)
    if not watch.until(watch.trains, START_LIMIT_S):
        raise MeasurementError(f"no training within {START_LIMIT_S:.0f} s; {run_watch.last_line(log)}")
    return watch


def _take_up_again(chosen: Plan, folder: Path, found: Findings, tell: Callable[[str], None]) -> None:
    """Failpoints cannot be disarmed, and may hit the last save: what they left must be good for another start."""
    if found.exit_code not in (report.EXIT_CODE, report.EXIT_NOT_SAVED):
        found.failure = f"with failpoints armed it ended with {found.exit_code}; see log.txt"
        return
    run, log = replace(chosen, failpoints="").run_in(folder), folder / "log_again.txt"
    tell(f"ended with {found.exit_code}; now the same without failpoints")
    try:
        with started(run.command, log) as (process, _):
            watch = begun(chosen, run, process, log)
            watch.until(lambda: False, REST_S)
            found.status = dict(watch.status)
            _end(process, run, found)
    except MeasurementError as error:
        found.failure = f"taken up again: {error}"


def _planned_faults(chosen: Plan) -> list[Fault]:
    return plan(chosen.seed, chosen.kills, chosen.interval_s, chosen.kinds, chosen.signals)


def _measure_baseline(chosen: Plan, watch: Watch, found: Findings, tell: Callable[[str], None]) -> AtRest:
    """How fast the run is, and what it holds, without faults."""
    watch.until(lambda: False, chosen.warm_up_s)
    began = time.time()
    watch.until(lambda: False, chosen.baseline_s)
    found.baseline = began, time.time()
    tell(f"undisturbed for {chosen.baseline_s:g} s; {chosen.kills} signals follow")
    return watch.at_rest(REST_S)


def _run_fault_phase(
    chosen: Plan, watch: Watch, injector: FaultInjector, found: Findings, tell: Callable[[str], None]
) -> None:
    began, next_line = time.time(), time.monotonic() + 30.0
    most_s = START_LIMIT_S + 3.0 * chosen.kills * chosen.interval_s + LOSS_S * chosen.losses
    limit_s = chosen.fault_phase_s or most_s

    def act() -> None:
        nonlocal next_line
        injector.act(watch.root)
        if time.monotonic() >= next_line:
            next_line += 30.0
            tell(f"{len(injector.hits)} signals sent, {_deaths(watch)} losses, {watch.status['env_frames']} frames")

    def is_over() -> bool:
        if not injector.is_done:
            return False
        if chosen.losses:
            return _deaths(watch) >= chosen.losses
        return not (chosen.failpoints and chosen.fault_phase_s)  # failpoints fire until the time is up

    try:
        watch.until(is_over, limit_s, act)
        injector.give_up()
        injector.act(watch.root)
    finally:
        found.fault_phase = began, time.time()


def _deaths(watch: Watch) -> int:
    return sum(event["event"] == "lost" for event in watch.events())


def _rest(chosen: Plan, watch: Watch, found: Findings, before: AtRest | None) -> None:
    """Wait until all workers work again, then count processes and open files."""
    watch.until(lambda: not not_back(watch.events()), chosen.hang_s)
    if before is None:
        return  # there is no rest while failpoints are armed
    # Blocks are counted when status.json is written, so the one that counts has to be written now.
    watch.until(lambda: False, REST_S)
    now = watch.at_rest(REST_S)
    found.processes, found.descriptors = (before.processes, now.processes), (before.descriptors, now.descriptors)


def _end(process: subprocess.Popen[bytes], run: OurRun, found: Findings) -> None:
    if process.poll() is None:
        found.exit_code, found.end_s = run_watch.end(process, process.terminate, limit_s=60.0)
        found.left_processes = run_watch.survivors(process.pid, seconds=2.0)
    status = run.folder / STATUS_FILE
    found.final = json.loads(status.read_text()) if status.exists() else {}
    # The frames of each policy lie in its own checkpoints.
    folders = [folder.glob("checkpoint_*.pth") for folder in run.folder.glob("checkpoint_p*")]
    saved = [[int(path.stem.split("_")[2]) for path in files] for files in folders]
    found.saved_frames = sum(max(frames, default=0) for frames in saved)


def each_failpoint(chosen: Plan, names: Sequence[str], times: int) -> list[Plan]:
    """One run per failpoint, until workers have died there so many times; no signals are sent."""

    def options(name: str) -> tuple[str, ...]:
        more = ADOPTING_OPTIONS.split() if name.startswith(ADOPTING) else ()
        return (*SELDOM_OPTIONS, *more, *chosen.options)

    return [
        replace(chosen, kills=0, failpoints=f"{name}=kill@{odds(name):g}", losses=times, options=options(name))
        for name in names
    ]


def odds(name: str) -> float:
    """How likely one passage of a place is to be the last."""
    for places, probability in ((OFTEN, OFTEN_ODDS), (BLOCK, BLOCK_ODDS), (SELDOM, SELDOM_ODDS)):
        if name.startswith(places):
            return probability
    return OTHER_ODDS


def judge(chosen: Plan, bars: Bars, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[Check]]:
    """Disturb a run and hold what was found against the bars; its folder is kept when something is wrong.

    Raises:
        MeasurementError: it did not begin to train.
    """
    folder = Path(tempfile.mkdtemp(prefix="chaos."))
    found = disturb(chosen, folder, tell)
    results = report.checks(found, bars)
    report.conclude(results, folder)
    return report.as_json(found, results), results


def plan_of(chosen: argparse.Namespace) -> Plan:
    """The plan that a command line asks for.

    Raises:
        ValueError: it names a kind of worker or a signal that there is none of.
    """
    kinds, signals = tuple(chosen.kinds.split(",")), tuple(chosen.signals.split(","))
    for words, known in ((kinds, KINDS), (signals, tuple(SIGNALS))):
        if unknown := [word for word in words if word not in known]:
            raise ValueError(f"{', '.join(unknown)} is unknown; there are {', '.join(known)}")
    interval_s = chosen.interval or (chosen.seconds / max(1, chosen.kills) if chosen.seconds else Plan.interval_s)
    return Plan(
        env=chosen.env,
        seed=chosen.seed,
        kills=chosen.kills,
        interval_s=interval_s,
        kinds=kinds,
        signals=signals,
        stop_s=chosen.stop_seconds,
        heartbeat_s=chosen.heartbeat,
        baseline_s=chosen.undisturbed,
        fault_phase_s=chosen.seconds,
        failpoints=chosen.failpoints,
        options=tuple(chosen.options),
    )


def plans_of(chosen: argparse.Namespace) -> list[Plan]:
    """The runs that a command line asks for: one, or one for each failpoint.

    Raises:
        ValueError: it names a kind of worker, a signal or a failpoint that there is none of.
    """
    if not chosen.each_failpoint:
        return [plan_of(chosen)]
    names = chosen.failpoints.split(",") if chosen.failpoints else failpoints.NAMES
    if unknown := [name for name in names if name not in failpoints.NAMES]:
        raise ValueError(f"{', '.join(unknown)} is unknown; there are {', '.join(failpoints.NAMES)}")
    return each_failpoint(plan_of(chosen), names, chosen.each_failpoint)


def bars_of(chosen: Plan, text: str) -> Bars:
    """The bars of a plan, those that were typed last.

    Raises:
        ValueError: there is no such bar.
    """
    # What a run without policy worker or learner makes depends on how often one is away; of actors others are left.
    only_actors = set(chosen.kinds) == {"actor"} and set(chosen.signals) == {"kill"} and chosen.kills > 0
    return Bars.parse(text, share=0.7 if only_actors and chosen.interval_s >= Plan.interval_s else 0.0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=tuple(LOADS), default=Plan.env, help="what is trained, as the bars' load")
    parser.add_argument("--kills", type=int, default=Plan.kills, help="how many signals are sent")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="of the moments, the victims and the signals")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between two signals on average; 0: 2")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long it is disturbed at most; 0: no limit")
    parser.add_argument("--kinds", default=",".join(KINDS), help="workers that get faults; twice: twice as often")
    parser.add_argument("--signals", default="kill", help=f"of {', '.join(SIGNALS)}; twice: twice as often")
    parser.add_argument(
        "--stop_seconds", type=float, default=Plan.stop_s, help="how long a stopped worker stands still"
    )
    parser.add_argument(
        "--heartbeat", type=float, default=Plan.heartbeat_s, help="heartbeat_timeout_seconds of the run"
    )
    parser.add_argument(
        "--undisturbed", type=float, default=Plan.baseline_s, help="seconds measured before the first signal"
    )
    parser.add_argument("--failpoints", default="", help=f"for {failpoints.VARIABLE} of the run: name=kill@odds,...")
    parser.add_argument(
        "--each_failpoint",
        type=int,
        default=0,
        help="instead: a run per failpoint (or per name in --failpoints), so many deaths",
    )
    parser.add_argument("--bars", default="", help="other bars: name=value,...; see Bars in report.py")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every number")
    parser.add_argument("options", nargs="*", help="after --: further options of the run")
    return parser


def main(argv: Sequence[str]) -> int:
    """Disturb, print the tables, write the JSON; 1 when a bar was missed."""
    parser = _parser()
    chosen = parser.parse_args(argv)
    try:
        plans = plans_of(chosen)
        bars = bars_of(plan_of(chosen), chosen.bars)
    except ValueError as error:
        parser.error(str(error))
    numbers, results = [], []
    for each in plans:
        tell(f"{each.env}: {each.kills} signals, seed {each.seed} {each.failpoints}")
        try:
            found, checked = judge(each, bars, tell)
        except MeasurementError as error:
            print(f"chaos: {error}", file=sys.stderr)
            return 1
        numbers.append(found)
        results += checked
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(numbers, indent=1) + "\n")
    return int(bool(report.failures(results)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
