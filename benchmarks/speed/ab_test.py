"""Has a change cost speed? This tree and another one: while one trains, the other stands still, in turns.

    git worktree add ../before HEAD~1
    python -m benchmarks.speed.ab_test --other=../before --env=cartpole --turns=40 --seconds=8
    python -m benchmarks.speed.ab_test --other=. --ours="--worker_num_splits=4" --env=breakout an option, not a tree
    python -m benchmarks.speed.ab_test --other=. --terminal                 what it costs to be watched in a terminal

Starting anew for every measurement costs more time than measuring, and a machine drifts by ten percent meanwhile. Here
both are started once and stopped in turns (SIGSTOP to every process), so that each turn of one stands beside a turn of
the other a few seconds away. Options of both runs may follow after --. Nothing else should run on the machine.

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

from benchmarks.measuring import ROOT, MeasurementError, show, started
from benchmarks.ours import COMPARISON, TASKS, OurRun, our_run

COLUMNS = ("tree", "frames per second", "smallest turn", "largest turn")
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
        self._status = run.folder / "status.json"
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


class Verdict(NamedTuple):
    """How fast one is in units of the other."""

    ratio: float
    low: float  # with 95 % confidence, by Student's t of the turns
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], others: Sequence[float]) -> Verdict:
        """From turns side by side; the mean of the logarithms, so that neither is the one that counts."""
        logs = [math.log(a / b) for a, b in zip(ours, others, strict=True)]
        middle, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        reach = student_t(len(logs) - 1) * error
        return cls(*(math.exp(middle + way * reach) for way in (0.0, -1.0, 1.0)))


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


@contextlib.contextmanager
def running(
    task: str, options: Sequence[str], tree: Path, folder: Path, *, in_terminal: bool = False
) -> Iterator[Runner]:
    """A run of one tree, frozen once it has warmed up.

    Args:
        task: of `TASKS`.
        options: in addition to the task's.
        tree: where its program is.
        folder: for what it writes.
        in_terminal: it is shown in a terminal, not told to a file.

    Raises:
        MeasurementError: it does not count frames.
    """
    folder.mkdir()
    run, log = our_run([*TASKS[task].split(), *COMPARISON.split(), *options], folder), folder / "log.txt"
    command = [*IN_TERMINAL, *run.command] if in_terminal else run.command
    with started(command, log, cwd=tree) as (process, _):
        runner, deadline = Runner(run, psutil.Process(process.pid)), time.monotonic() + START_LIMIT_S
        while runner.told()[1] == 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise MeasurementError(f"{tree}: no frame; see {log}: {log.read_text()[-500:]}")
            time.sleep(POLL_S)
        time.sleep(WARM_UP_S)
        runner.freeze()
        try:
            yield runner
        finally:
            runner.thaw()


def take_turns(ours: Runner, other: Runner, turns: int, seconds: float) -> tuple[list[float], list[float]]:
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
    return rates[ours], rates[other]


def main(argv: Sequence[str]) -> int:
    """Measure, print the table; 1 when this tree is slower by more than was allowed, 2 when nothing was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the folder of the other tree")
    parser.add_argument("--env", choices=tuple(TASKS), default="cartpole", help="the task")
    parser.add_argument("--turns", type=int, default=40, help="of each")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a turn")
    parser.add_argument("--allowed", type=float, default=0.02, help="share by which this tree may be slower")
    parser.add_argument("--ours", default="", help="further options of this tree's run only")
    parser.add_argument("--terminal", action="store_true", help="this tree's run is shown in a terminal of 120x40")
    parser.add_argument("options", nargs="*", help="after --: further options of both runs")
    chosen = parser.parse_args(argv)
    other = chosen.other.absolute()
    if not (other / "train_appo.py").is_file():
        parser.error(f"--other={chosen.other} holds no train_appo.py")
    if chosen.turns < 2 or chosen.seconds < 4.0:
        parser.error("--turns must be at least 2 and --seconds at least 4")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            with (
                running(
                    chosen.env,
                    [*chosen.options, *shlex.split(chosen.ours)],
                    ROOT,
                    folder / "this",
                    in_terminal=chosen.terminal,
                ) as ours,
                running(chosen.env, chosen.options, other, folder / "other") as theirs,
            ):
                rates = take_turns(ours, theirs, chosen.turns, chosen.seconds)
        except MeasurementError as error:
            print(f"ab_test: {error}", file=sys.stderr)
            return EXIT_NOT_MEASURED
    named = zip(("this", str(chosen.other)), rates, strict=True)
    show(COLUMNS, [[n, f"{statistics.median(r):.0f}", f"{min(r):.0f}", f"{max(r):.0f}"] for n, r in named])
    verdict = Verdict.of(*rates)
    print(f"this / other: {verdict.ratio:.3f}, with 95 % confidence {verdict.low:.3f} .. {verdict.high:.3f}")
    return EXIT_SLOWER if verdict.ratio < 1.0 - chosen.allowed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
