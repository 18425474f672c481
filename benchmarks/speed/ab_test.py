"""Has a change cost speed? This tree and another one: while one trains, the other stands still, in turns.

    git worktree add ../before HEAD~1
    python -m benchmarks.speed.ab_test --other=../before --env=cartpole --turns=40 --seconds=8
    python -m benchmarks.speed.ab_test --other=. --ours="--worker_num_splits=4" --env=breakout an option, not a tree
    python -m benchmarks.speed.ab_test --other=. --terminal                 what it costs to be watched in a terminal
    python -m benchmarks.speed.ab_test --other=. --pairs=8 --turns=8        finer than 2 percent: runs differ, too

Starting anew for every measurement costs more time than measuring, and a machine drifts by ten percent meanwhile. Here
both are started once and stopped in turns (SIGSTOP to every process), so that each turn of one stands beside a turn of
the other a few seconds away. Options of both runs may follow after --. Nothing else should run on the machine.

Two runs of one tree differ by 1 to 2 percent for as long as they live. The turns of one pair of runs cannot show that;
with --pairs the confidence interval is that of the ratios of several pairs, each started anew.

Where speed depends on what has been learned, two runs of the same tree differ: doom_basic's by 13 percent once, since a
better policy begins more episodes. There, `-- --learning_rate=1e-9` keeps both at the same policy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from appo.algorithms.run.config import STATUS_FILE
from benchmarks.measuring import ROOT, MeasurementError, show, started, tell
from benchmarks.ours import COMPARISON, TASKS, OurRun, our_run

COLUMNS = ("pair", "tree", "frames per second", "smallest turn", "largest turn")
START_LIMIT_S = 120.0
WARM_UP_S = 20.0
SETTLE_S = 1.0  # of a turn: batches that were on their way when it was stopped
SILENCE_S = 30.0
POLL_S = 0.05
CONFIDENCE = 0.95
EXIT_SLOWER, EXIT_NOT_MEASURED = 1, 2
# Runs a command in a terminal of its own, whose output it reads as a terminal would.
IN_TERMINAL = [
    *("env", "TERM=xterm-256color", sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"),
    *("sh", "-c", 'stty rows 40 cols 120; exec "$@"', "sh"),
]


class Runner:
    """One run that can be stopped and let go on."""

    def __init__(self, run: OurRun, root: psutil.Process) -> None:
        """It runs."""
        self._status = run.folder / STATUS_FILE
        self._root = root
        self._frozen: list[psutil.Process] = []

    def freeze(self) -> None:
        """Stop every process, the driver first: it must not see the others stand still."""
        self._frozen = [self._root]
        with contextlib.suppress(psutil.NoSuchProcess):
            self._frozen += self._root.children(recursive=True)
        for process in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        """Let every process go on, the driver last."""
        for process in reversed(self._frozen):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._frozen = []

    def told(self) -> tuple[float, int]:
        """Wall clock and frames, as the run itself last told them; zeros before it did."""
        if not self._status.exists():
            return 0.0, 0
        status = json.loads(self._status.read_text())
        return float(status["time"]), int(status["env_frames"])

    def frames_per_second(self, seconds: float) -> float:
        """Over one turn; over more where it tells of its frames too seldom.

        Raises:
            MeasurementError: it ended, tells nothing any more, or has made no frame.
        """
        began = time.time()
        first = self._next_after(began + SETTLE_S)
        time.sleep(max(0.0, began + seconds - time.time()))
        last = self.told()
        if last[0] <= first[0]:
            last = self._next_after(first[0] + POLL_S)
        if last[1] <= first[1]:
            raise MeasurementError(f"no frame in a turn of {seconds:g} s; make turns longer with --seconds")
        return (last[1] - first[1]) / (last[0] - first[0])

    def _next_after(self, moment: float) -> tuple[float, int]:
        deadline = time.monotonic() + SILENCE_S
        while (told := self.told())[0] < moment:
            if not self._root.is_running() or time.monotonic() > deadline:
                raise MeasurementError(f"it ended, or told nothing for {SILENCE_S:g} s")
            time.sleep(POLL_S)
        return told


class Rates(NamedTuple):
    """Frames per second of a pair of runs, turn beside turn."""

    ours: list[float]
    others: list[float]


class Verdict(NamedTuple):
    """How fast one is in units of the other."""

    ratio: float
    low: float  # with 95 % confidence, by Student's t
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], others: Sequence[float]) -> Verdict:
        """From turns side by side; the mean of the logarithms, so that neither is the one that counts."""
        logs = [math.log(a / b) for a, b in zip(ours, others, strict=True)]
        middle, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        reach = student_t(len(logs) - 1) * error
        return cls(*(math.exp(middle + way * reach) for way in (0.0, -1.0, 1.0)))

    @classmethod
    def over(cls, pairs: Sequence[Rates]) -> Verdict:
        """From the ratios of several pairs of runs; of one pair, from its turns."""
        if len(pairs) == 1:
            return cls.of(*pairs[0])
        return cls.of([cls.of(*rates).ratio for rates in pairs], [1.0] * len(pairs))


def student_t(degrees: int) -> float:
    """The t that the absolute value of Student's distribution stays below with 95 % probability.

    With ``t = sqrt(n) * tan(a)``, n degrees of freedom and the odd or even powers of cos(a) up to n - 2::

        P(|T| <= t) = 2 / pi * (a + sin(a) * (cos(a) + 2/3 cos(a)^3 + 2*4/(3*5) cos(a)^5 + ...))   n odd
        P(|T| <= t) = sin(a) * (1 + 1/2 cos(a)^2 + 1*3/(2*4) cos(a)^4 + ...)                       n even

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # to the last digit of a float
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, degrees) < CONFIDENCE else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _student_within(angle: float, degrees: int) -> float:
    power = degrees % 2
    term, total = math.cos(angle) ** power, 0.0
    while power <= degrees - 2:
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
        power += 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if degrees % 2 else total


class Side(NamedTuple):
    """One of the two that are compared."""

    name: str
    tree: Path
    options: Sequence[str]  # in addition to the task's
    in_terminal: bool = False  # it is shown in a terminal, not told to a file


@contextlib.contextmanager
def running(task: str, side: Side, folder: Path) -> Iterator[Runner]:
    """A run of one side, frozen once it has warmed up.

    Args:
        task: of `TASKS`.
        side: what runs.
        folder: for what it writes; not there yet.

    Raises:
        MeasurementError: it does not count frames.
    """
    folder.mkdir(parents=True)
    run, log = our_run([*TASKS[task].split(), *COMPARISON.split(), *side.options], folder), folder / "log.txt"
    command = [*IN_TERMINAL, *run.command] if side.in_terminal else run.command
    with started(command, log, cwd=side.tree) as (process, _):
        runner, deadline = Runner(run, psutil.Process(process.pid)), time.monotonic() + START_LIMIT_S
        while runner.told()[1] == 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise MeasurementError(f"{side.tree}: no frame; see {log}: {log.read_text()[-500:]}")
            time.sleep(POLL_S)
        time.sleep(WARM_UP_S)
        runner.freeze()
        try:
            yield runner
        finally:
            runner.thaw()


def take_turns(ours: Runner, other: Runner, turns: int, seconds: float) -> Rates:
    """Frames per second of each turn; the first one alternates, so that a drift favours neither.

    Raises:
        MeasurementError: one of them ended.
    """
    rates: dict[Runner, list[float]] = {ours: [], other: []}
    for turn in range(turns):
        for runner in (ours, other) if turn % 2 == 0 else (other, ours):
            runner.thaw()
            rates[runner].append(runner.frames_per_second(seconds))
            runner.freeze()
    return Rates(rates[ours], rates[other])


def measure_pairs(
    task: str, sides: tuple[Side, Side], pairs: int, turns: int, seconds: float, folder: Path
) -> Iterator[Rates]:
    """Start both sides anew for each pair, this tree first in every other one.

    Raises:
        MeasurementError: a run ended, or does not count frames.
    """
    for pair in range(pairs):
        with contextlib.ExitStack() as stack:
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            runs = {at: stack.enter_context(running(task, sides[at], folder / f"{pair}_{at}")) for at in order}
            rates = take_turns(runs[0], runs[1], turns, seconds)
        yield rates


def rows(pair: int, sides: tuple[Side, Side], rates: Rates) -> list[list[str]]:
    """The cells of both sides of one pair."""
    return [
        [str(pair), side.name, f"{statistics.median(turns):.0f}", f"{min(turns):.0f}", f"{max(turns):.0f}"]
        for side, turns in zip(sides, rates, strict=True)
    ]


def main(argv: Sequence[str]) -> int:
    """Measure, print the table; 1 when this tree is slower by more than was allowed, 2 when nothing was measured."""
    chosen, sides = _parse(argv)
    measured: list[Rates] = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for rates in measure_pairs(chosen.env, sides, chosen.pairs, chosen.turns, chosen.seconds, Path(scratch)):
                measured.append(rates)
                if chosen.pairs > 1:
                    tell(f"pair {len(measured)} of {chosen.pairs}: this / other {Verdict.of(*rates).ratio:.3f}")
        except MeasurementError as error:
            print(f"ab_test: {error}", file=sys.stderr)
            return EXIT_NOT_MEASURED
    show(COLUMNS, [row for pair, rates in enumerate(measured, start=1) for row in rows(pair, sides, rates)])
    verdict = Verdict.over(measured)
    source = f"{chosen.pairs} pairs of runs" if chosen.pairs > 1 else "the turns of these two runs"
    ratio, low, high = (f"{value:.3f}" for value in verdict)
    tell(f"this / other: {ratio}, with 95 % confidence {low} .. {high}, from {source}")
    return EXIT_SLOWER if verdict.ratio < 1.0 - chosen.allowed else 0


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, tuple[Side, Side]]:
    """What was typed, and what is compared; exits when that cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the folder of the other tree")
    parser.add_argument("--env", choices=tuple(TASKS), default="cartpole", help="the task")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of runs, each started anew")
    parser.add_argument("--turns", type=int, default=40, help="of each run")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a turn")
    parser.add_argument("--allowed", type=float, default=0.02, help="share by which this tree may be slower")
    parser.add_argument("--ours", default="", help="further options of this tree's run only")
    parser.add_argument("--terminal", action="store_true", help="this tree's run is shown in a terminal of 120x40")
    parser.add_argument("options", nargs="*", help="after --: further options of both runs")
    chosen = parser.parse_args(argv)
    other = chosen.other.absolute()
    if not (other / "train_appo.py").is_file():
        parser.error(f"--other={chosen.other} holds no train_appo.py")
    if chosen.pairs < 1 or chosen.turns < 2 or chosen.seconds < 4.0:
        parser.error("--pairs must be at least 1, --turns at least 2 and --seconds at least 4")
    ours = Side("this", ROOT, [*chosen.options, *shlex.split(chosen.ours)], chosen.terminal)
    return chosen, (ours, Side(str(chosen.other), other, chosen.options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
