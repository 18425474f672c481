"""Does population-based training help? Four policies on CartPole that begin with learning rates of 1e-6 to 1e-1.

    python -m benchmarks.learning.population --seeds=3 [--modes=pbt,nothing,copies] [--out=population.json]

`pbt` copies and mutates; `copies` never mutates; `nothing` never decides. A run ends when every policy has a mean
return of 400 or with its frames. The table shows how many of the four had reached that at the end, and after how many
frames all of them had. To be started in the root of the checkout.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from appo.algorithms.run.config import STATUS_FILE
from benchmarks.learning.table import log_name
from benchmarks.measuring import last_line, parser_of, refuse_output, show, started, tell

RATES = (1e-6, 1e-1, 1e-5, 1e-3)
BAR, FRAMES = 400.0, 3_000_000
MODES = {
    "pbt": (),
    "copies": ("--pbt_mutation_rate=0",),
    "nothing": ("--pbt_start_mutation=1e12",),
}
OPTIONS = (
    "--env=CartPole-v1 --device=cpu --with_pbt=True --pbt_start_mutation=100000 --pbt_period_env_steps=60000 "
    "--pbt_mutation_rate=0.5 --num_workers=2 --num_envs_per_worker=32 --stats_avg=50"
)
POLL_S = 0.25
COLUMNS = ("mode", "seed", "policies at 400", "frames of all", "seconds", "returns", "learning rates")


class Outcome(NamedTuple):
    """How one run ended."""

    mode: str
    seed: int
    reached: int  # policies whose mean return was 400 at the end
    frames: int
    seconds: float
    returns: tuple[float, ...]
    rates: tuple[float, ...]  # in force at the end
    exit_code: int  # 130: it was stopped when all were at 400


def run(mode: str, seed: int, folder: Path) -> Outcome:
    """Train one population, until all are at the bar or the frames are spent."""
    start = folder / "start.json"
    start.write_text(json.dumps([{"learning_rate": rate} for rate in RATES]))
    experiment = f"{mode}_{seed}"
    command = [sys.executable, "train_appo.py", *OPTIONS.split(), f"--num_policies={len(RATES)}", f"--seed={seed}"]
    command += [f"--experiment={experiment}", f"--train_dir={folder}", f"--pbt_start_values={start}"]
    command += [f"--train_for_env_steps={FRAMES}", *MODES[mode]]
    began, returns, frames = time.monotonic(), [0.0] * len(RATES), 0
    status_file = folder / experiment / STATUS_FILE
    with started(command, folder / log_name(mode, seed)) as (process, _):
        while process.poll() is None and min(returns) < BAR:
            time.sleep(POLL_S)
            if status_file.exists():
                status = json.loads(status_file.read_text())
                frames = status["env_frames"]
                returns = [policy["avg_reward"] or 0.0 for policy in status["policies"]]
        seconds = time.monotonic() - began
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait()
    states = [folder / experiment / f"policy_{policy:02d}.json" for policy in range(len(RATES))]
    rates = [json.loads(state.read_text())["values"]["learning_rate"] for state in states if state.exists()]
    reached = sum(value >= BAR for value in returns)
    return Outcome(mode, seed, reached, frames, seconds, tuple(returns), tuple(rates), process.returncode)


def row(outcome: Outcome) -> list[str]:
    """The cells of one run."""
    returns = ", ".join(f"{value:.0f}" for value in outcome.returns)
    rates = ", ".join(f"{rate:.2g}" for rate in outcome.rates)
    frames, seconds = f"{outcome.frames / 1000:.0f}k", f"{outcome.seconds:.0f}"
    return [outcome.mode, str(outcome.seed), f"{outcome.reached} of {len(RATES)}", frames, seconds, returns, rates]


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = parser_of("benchmarks.learning.population", __doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs per mode, seeds 1, 2, ...")
    parser.add_argument("--modes", default=",".join(MODES), help="comma separated")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the outcomes")
    chosen = parser.parse_args(argv)
    modes = chosen.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"unknown modes {', '.join(unknown)}; there are {', '.join(MODES)}")
    if chosen.seeds < 1:
        parser.error(f"--seeds={chosen.seeds}: at least 1")
    try:
        refuse_output(chosen.out)
    except ValueError as error:
        parser.error(str(error))
    return chosen, modes


def main(argv: Sequence[str]) -> int:
    """Run, print the table, write the JSON; 1 when PBT missed its bar, a control passed it, or a run failed."""
    chosen, modes = _parse(argv)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for mode in modes:
            for seed in range(1, chosen.seeds + 1):
                outcomes.append(run(mode, seed, folder))
                tell(" | ".join(row(outcomes[-1])))
                if outcomes[-1].exit_code not in (0, 128 + signal.SIGINT):
                    tell(f"{mode} {seed} failed: {last_line(folder / log_name(mode, seed))}")
    show(COLUMNS, [row(outcome) for outcome in outcomes])
    for mode in modes:
        reached = [outcome.reached for outcome in outcomes if outcome.mode == mode]
        tell(f"{mode}: {statistics.mean(reached):.1f} of {len(RATES)} policies at {BAR:g}")
    if chosen.out is not None:
        chosen.out.write_text(json.dumps([outcome._asdict() for outcome in outcomes], indent=1) + "\n")
    return int(not all(is_as_expected(outcome) for outcome in outcomes))


def is_as_expected(outcome: Outcome) -> bool:
    """PBT brings all policies to the bar; where nothing is decided at most half of them."""
    if outcome.exit_code not in (0, 128 + signal.SIGINT):
        return False
    if outcome.mode == "nothing":
        return outcome.reached <= len(RATES) // 2
    return outcome.mode != "pbt" or outcome.reached == len(RATES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
