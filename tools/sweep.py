"""Run many trainings: every combination of some options, draws, seeds, as many at a time as the cores allow.

    python -m appo.tools.sweep plan.toml [--parallel=N] [--cores_per_run=N] [--retries=N] [--retry_failed]
    python -m appo.tools.sweep --status train_dir/<sweep>

Trials lie in train_dir/<sweep>/<trial>, each an experiment like any other, and `sweep.json` beside them. The same
command again goes on with what is not done, whatever has ended the launcher. `inject.toml` in the sweep's folder adds
trials while it runs. docs/sweeps.md explains plans.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import NoReturn

from appo.tools.arguments import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REFUSED,
    OneLineParser,
    Refused,
    as_program,
)
from appo.tools.experiments import place_of
from appo.tools.sweep_cluster import Cluster, unfinished_job
from appo.tools.sweep_launcher import Launcher, Settings
from appo.tools.sweep_plan import Plan, read_plan
from appo.tools.sweep_processes import Slot, holder, lock_file, slots_of
from appo.tools.sweep_screen import show_all
from appo.tools.sweep_state import DONE, RUNNING, WAITING, is_met, read_sweep, result_of
from appo.utils.options import ConfigError
from appo.utils.processes import usable_cores
from appo.utils.signals import StopSignals

MOST_JOBS = 100  # queued or running at the same time, where neither the plan nor the command line says how many
_SHOW_CURSOR = b"\x1b[?25h"  # a table that is kept up to date hides it


def show_status(folder: Path) -> None:
    """Print a table of all trials, the best one first.

    Raises:
        ConfigError: the folder is not a sweep's.
    """
    sweep = read_sweep(folder)
    if sweep is None:
        raise ConfigError(f"{folder} is not the folder of a sweep; name one such as train_dir/plan")
    for name, record in sweep.records.items():
        lock = lock_file(folder, name)
        if record.state == RUNNING and holder(lock) is None and unfinished_job(folder, lock) is None:
            # Its launcher is gone, and so is the trial, of which the next launcher will say the same.
            record.state = DONE if is_met(result_of(folder / name, sweep.objective, sweep.direction)) else WAITING
    show_all(folder, sweep)


def main(argv: Sequence[str], program: Sequence[str] | None = None) -> int:
    """Run a sweep to its end, or show how one stands; the exit code.

    Args:
        argv: words after the program's name.
        program: what starts a trial; None: train_appo.py.
    """
    stop = StopSignals(_leave_trials)
    try:
        asked = _asked(argv)
        if asked.status is not None:
            show_status(place_of(asked.status))
            return EXIT_OK
        plan = read_plan(Path(asked.plan))
        return Launcher(plan, _settings(asked, argv, plan, program or _trainer()), stop).run()
    except (ConfigError, Refused) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        stop.restore()


def _asked(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="appo-tools sweep", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("plan", nargs="?", help="what to try: a file of TOML or Python")
    parser.add_argument("--status", metavar="FOLDER", help="show how the sweep in a folder stands")
    parser.add_argument("--train_dir", help="folder of the sweep's folder; by default the plan's, or ./train_dir")
    parser.add_argument("--parallel", type=int, help="trials at the same time; by default as many as the cores allow")
    parser.add_argument("--cores_per_run", type=int, help="cores of each trial; by default an equal share, or 2")
    parser.add_argument("--retries", type=int, help="how often a trial that fails is tried again (default: 2)")
    parser.add_argument("--retry_failed", action="store_true", help="try those again that an earlier start gave up")
    asked = parser.parse_args(argv)
    if (asked.plan is None) == (asked.status is None):
        raise ConfigError("name a plan, such as plan.toml, or --status=train_dir/plan")
    for name, least in (("parallel", 1), ("cores_per_run", 1), ("retries", 0)):
        value = getattr(asked, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name}={value}; at least {least}")
    return asked


def _settings(asked: argparse.Namespace, argv: Sequence[str], plan: Plan, program: Sequence[str]) -> Settings:
    parallel = plan.parallel if asked.parallel is None else asked.parallel
    cores_per_run = plan.cores_per_run if asked.cores_per_run is None else asked.cores_per_run
    train_dir = asked.train_dir or plan.train_dir
    cluster = None
    if plan.slurm is not None:
        if plan.gpus or cores_per_run:
            raise ConfigError("with [slurm], jobs have what that asks for; leave out gpus and cores_per_run")
        cluster = Cluster(Path(train_dir).expanduser() / plan.name, plan.slurm)
        slots = (Slot((), None),) * (parallel or MOST_JOBS)
    else:
        slots = slots_of(usable_cores(), plan.gpus, parallel, cores_per_run)
    return Settings(
        train_dir=train_dir,
        slots=slots,
        retries=plan.retries if asked.retries is None else asked.retries,
        retry_failed=asked.retry_failed,
        program=tuple(program),
        again=f"{typed_as()} {shlex.join(argv)}",
        cluster=cluster,
    )


def typed_as() -> str:
    """How this command was started, as it can be typed again."""
    return "appo-tools sweep" if Path(sys.argv[0]).name == "appo-tools" else "python -m appo.tools.sweep"


def _trainer() -> list[str]:
    found = util.find_spec("appo.train_appo")
    assert found is not None and found.origin is not None
    return [sys.executable, str(Path(found.origin).resolve())]


def _leave_trials() -> NoReturn:
    if os.isatty(1):
        os.write(1, _SHOW_CURSOR)
    os.write(2, b"sweep: interrupted again: ended at once; trials that still run go on, the same command finds them\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(as_program(main))
