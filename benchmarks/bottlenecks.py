"""Does a run name what limits it? Seven runs, each limited on purpose by one thing or by nothing alone.

Each runs the program for half a minute; the table says what it named. Exit code 1 if any answer is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.reporting import bottleneck
from appo.algorithms.run.config import SUMMARY_FILE
from appo.utils.processes import core_count
from benchmarks.measuring import parser_of, show, started, tell
from benchmarks.ours import our_run

SECONDS = 32.0  # of training; the first five, and what is left at the end of the last five, are not measured
START_S = 90.0
QUIET_SHARE = 0.15  # of the machine, which others may take when a run is started
COMMON = ("--device=cpu", "--seed=1", "--save_every_sec=1000", "--decorrelate_experience_max_seconds=0")


class Case(NamedTuple):
    """A run that one thing limits."""

    name: str
    expected: str  # kind of finding
    options: str
    spinners_per_core: int = 0  # other programs that compute meanwhile


CASES = (
    Case(
        "sleeping environments",
        bottleneck.ENVIRONMENTS,
        "--env=synthetic_slow --synthetic_step_ms=5 --num_workers=2 --num_envs_per_worker=8",
    ),
    Case(
        "heavy network",
        bottleneck.POLICY_WORKER,
        "--env=synthetic_identity --num_workers=2 --num_envs_per_worker=32 --mlp_layers=2048,2048,2048 "
        "--sampler_only=True",
    ),
    Case(
        "tiny batches",
        bottleneck.TINY_BATCHES,
        "--env=synthetic_identity --num_workers=1 --num_envs_per_worker=2 --ppo_epochs=1",
    ),
    Case(
        "slow learner",
        bottleneck.LEARNER,
        "--env=synthetic_identity --num_workers=2 --num_envs_per_worker=32 --ppo_epochs=40",
    ),
    Case("busy neighbours", bottleneck.NEIGHBOURS, "--env=CartPole-v1 --num_workers=2", spinners_per_core=2),
    Case(
        "one straggler",
        bottleneck.STRAGGLER,
        "--env=synthetic_slow --synthetic_step_ms=2 --synthetic_slow_env=0 --synthetic_slow_ms=40 --num_workers=3 "
        "--num_envs_per_worker=4",
    ),
    Case(
        "balanced",
        bottleneck.BALANCED,
        # Environments that compute, as networks do: their shares are the same on a faster machine.
        "--env=HalfCheetah-v5 --num_workers=1 --num_envs_per_worker=32 --worker_num_splits=1 --mlp_layers=768,768 "
        "--ppo_epochs=1",
    ),
)


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    parser = parser_of("benchmarks.bottlenecks", __doc__)
    parser.add_argument("--cases", default="", help="names to run, separated by commas; all without")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of training in each run, 25 at least")
    parser.add_argument("--tries", type=int, default=2, help="runs of a case until it is named right")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine before each")
    args = parser.parse_args(argv)
    cases = chosen(parser, args)
    rows, wrong = [], 0
    for case in cases:
        finding: dict[str, Any] = {}
        for _ in range(args.tries):
            if not wait_until_quiet(args.patience):
                tell(f"{case.name}: the machine is busy, which may be told instead")
            finding = run(case, args.seconds)
            tell(f"{case.name}: {finding['said']}")
            if finding["kind"] == case.expected:
                break
        is_right = finding["kind"] == case.expected
        wrong += not is_right
        rows.append((case.name, case.expected, finding["kind"] if not is_right else "right", finding["said"]))
    show(("made on purpose", "expected", "named", "said"), rows)
    return 1 if wrong else 0


def chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Case]:
    """The cases that were asked for; ends the program where there is none of a name, or a number makes no sense."""
    names = [name.strip() for name in args.cases.split(",") if name.strip()]
    unknown = [name for name in names if name not in {case.name for case in CASES}]
    if unknown:
        parser.error(f"--cases: there is no {unknown[0]!r}; there are {', '.join(case.name for case in CASES)}")
    if args.seconds < 25.0 or args.tries < 1:
        parser.error("--seconds of at least 25 and --tries of at least 1 are needed to measure anything")
    return [case for case in CASES if not names or case.name in names]


def run(case: Case, seconds: float) -> dict[str, Any]:
    """Run the program as a case says; its finding."""
    with tempfile.TemporaryDirectory(prefix="appo-bottlenecks-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ours = our_run([*case.options.split(), *COMMON, f"--train_for_seconds={seconds:g}"], folder)
        log = folder / "output.txt"
        with spinning(case.spinners_per_core * core_count()), started(ours.command, log) as (process, _):
            try:
                code: int | None = process.wait(seconds + START_S)
            except subprocess.TimeoutExpired:
                code = None
        summary = ours.folder / SUMMARY_FILE
        if code != 0 or not summary.exists():
            end = log.read_text(errors="replace").strip().splitlines()[-1:]
            return {"kind": "none", "said": f"the run ended with {code}: {' '.join(end)}"}
        found: dict[str, Any] | None = json.loads(summary.read_text())["bottleneck"]
        return found or {"kind": "none", "said": "nothing was said"}


@contextmanager
def spinning(number: int) -> Iterator[None]:
    """Other programs that compute as much as they can until the block ends."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def wait_until_quiet(patience_s: float) -> bool:
    """Wait until other programs leave the machine alone; False: they did not."""
    deadline = time.monotonic() + patience_s
    while psutil.cpu_percent(interval=1.0) > 100.0 * QUIET_SHARE:
        if time.monotonic() >= deadline:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
