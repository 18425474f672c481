"""Has it become slower? Compares R of a few short runs with the stored ones.

    python -m benchmarks.speed.regression [--tasks=cartpole,breakout,doom_basic] [--seconds=20] [--report_only]
        [--update]

R, what was measured in units of what the machine could do at that time, depends less on the machine than frames per
second. A task whose R is more than 5 percent below `baseline.json` is measured once more, since such machines are
noisy; twice in a row fails. `--update` stores what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from appo.algorithms.config import resolve
from appo.algorithms.workers.process_launcher import RunFailed
from benchmarks.measuring import MeasurementError, markdown
from benchmarks.ours import COMPARISON, TASKS
from benchmarks.speed.roofline import find_out

BASELINE = Path(__file__).with_name("baseline.json")
TOLERANCE = 0.05
EXIT_OK, EXIT_FAILED = 0, 1
COLUMNS = ("task", "R stored", "R now", "verdict")


class Verdict(NamedTuple):
    """How one task stands."""

    task: str
    stored: float | None
    measured: list[float]

    @property
    def is_slower(self) -> bool:
        """Every attempt fell below what is tolerated."""
        return self.stored is not None and all(r < self.stored * (1.0 - TOLERANCE) for r in self.measured)

    def row(self) -> list[str]:
        """Its cells."""
        stored = "none" if self.stored is None else f"{self.stored:.3f}"
        verdict = "new" if self.stored is None else "SLOWER" if self.is_slower else "ok"
        return [self.task, stored, ", ".join(f"{r:.3f}" for r in self.measured), verdict]


def judge(task: str, stored: float | None, measure_ratio: Callable[[str], float]) -> Verdict:
    """Measure once, and once more when it seems slower."""
    verdict = Verdict(task, stored, [measure_ratio(task)])
    return Verdict(task, stored, [*verdict.measured, measure_ratio(task)]) if verdict.is_slower else verdict


def ratio_of(task: str, seconds: float) -> float:
    """R of one task in the configuration of comparison.

    Raises:
        RunFailed, MeasurementError: it could not be measured.
    """
    options = [*TASKS[task].split(), *COMPARISON.split()]
    with tempfile.TemporaryDirectory() as nowhere:
        return find_out(resolve([*options, f"--train_dir={nowhere}"]), options, seconds, term_seconds=2.0).ratio


def main(argv: Sequence[str]) -> int:
    """Measure, print the table; 1 when a task became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"comma separated: {', '.join(TASKS)}")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each run's measured window")
    parser.add_argument("--report_only", action="store_true", help="exit 0 whatever was measured")
    parser.add_argument("--update", action="store_true", help="store what was measured")
    chosen = parser.parse_args(argv)
    names = chosen.tasks.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"unknown tasks {', '.join(unknown)}; there are {', '.join(TASKS)}")
    baseline: dict[str, float] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    try:
        verdicts = [judge(name, baseline.get(name), lambda task: ratio_of(task, chosen.seconds)) for name in names]
    except (RunFailed, MeasurementError) as error:
        print(f"guard: {error}", file=sys.stderr)
        return EXIT_OK if chosen.report_only else EXIT_FAILED
    print(markdown(COLUMNS, [verdict.row() for verdict in verdicts]))
    if chosen.update:
        measured = {verdict.task: round(max(verdict.measured), 3) for verdict in verdicts}
        BASELINE.write_text(json.dumps(baseline | measured, indent=1) + "\n")
        return EXIT_OK
    return EXIT_FAILED if any(verdict.is_slower for verdict in verdicts) and not chosen.report_only else EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
