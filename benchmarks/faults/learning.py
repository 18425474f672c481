"""Does it still learn while its workers are killed? Undisturbed runs until the bar, then one under faults.

    python -m benchmarks.faults.learning --minutes=10 --interval=5 --seeds=3

Every run is CartPole with the load of `benchmarks.faults.chaos`. Undisturbed ones, seed after seed, end when the mean
return of the last 100 episodes is at the bar. The disturbed run gets faults from its first frames on for as long as was
asked, may take so many times the frames of the others' median, and has to hold what `benchmarks.faults.chaos` demands.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.faults import report
from benchmarks.faults.chaos import REST_S, Plan, begun, disturb
from benchmarks.faults.events import frames_at
from benchmarks.faults.injection import SIGNALS
from benchmarks.faults.report import Bars, Check
from benchmarks.faults.run_watch import AtRest
from benchmarks.measuring import MeasurementError, started, tell

BAR, EPISODES, TIMES = 475.0, 100, 1.5
LIMIT_S = 180.0


def undisturbed(chosen: Plan, folder: Path) -> tuple[int, AtRest]:
    """Frames until the bar while nothing happens, and what such a run holds.

    Raises:
        MeasurementError: it ended, hung, or did not come to the bar.
    """
    folder.mkdir()
    run, log = chosen.run_in(folder), folder / "log.txt"
    with started(run.command, log) as (process, _):
        watch = begun(chosen, run, process, log)
        watch.until(lambda: frames_at(watch.samples, BAR, EPISODES) is not None, LIMIT_S)
        frames = frames_at(watch.samples, BAR, EPISODES)
        if frames is None:
            raise MeasurementError(f"undisturbed, the mean return was not {BAR:g} within {LIMIT_S:g} s")
        return frames, watch.at_rest(REST_S)


def learned(frames: int | None, without: Sequence[int]) -> Check:
    """Whether the bar was reached soon enough."""
    limit = TIMES * statistics.median(without)
    told = f"{'never' if frames is None else frames}; undisturbed {', '.join(map(str, without))}"
    return Check(
        f"frames until a mean return of {BAR:g}", told, f"<= {limit:.0f}", frames is not None and frames <= limit
    )


def measure(chosen: Plan, seeds: int, folder: Path) -> list[Check]:
    """Everything that was found; the last of `seeds` + 1 runs is the disturbed one.

    Raises:
        MeasurementError: one did not begin to train, or an undisturbed one did not learn.
    """
    without, at_rest = [], None
    for seed in range(1, seeds + 1):
        plan = replace(chosen, options=(f"--seed={seed}", *chosen.options))
        frames, at_rest = undisturbed(plan, folder / f"undisturbed_{seed}")
        without.append(frames)
        tell(f"undisturbed, seed {seed}: {frames} frames")
    disturbed = folder / "disturbed"
    disturbed.mkdir()
    found = disturb(chosen, disturbed, tell, at_rest)
    return [learned(frames_at(found.samples, BAR, EPISODES), without), *report.checks(found, Bars())]


def main(argv: Sequence[str]) -> int:
    """Train, disturb, print the table; 1 when a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it is disturbed")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two signals on average")
    parser.add_argument(
        "--signals", default="kill,kill,stop,term", help=f"of {', '.join(SIGNALS)}; twice: twice as often"
    )
    parser.add_argument("--seeds", type=int, default=3, help="undisturbed runs, seeds 1, 2, ...")
    parser.add_argument("--seed", type=int, default=1, help="of the moments, the victims and the signals")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for what was found")
    parser.add_argument("options", nargs="*", help="after --: further options of the runs")
    chosen = parser.parse_args(argv)
    signals = tuple(chosen.signals.split(","))
    if unknown := [word for word in signals if word not in SIGNALS]:
        parser.error(f"{', '.join(unknown)} is unknown; there are {', '.join(SIGNALS)}")
    if chosen.seeds < 1 or chosen.minutes <= 0 or chosen.interval <= 0:
        parser.error("--seeds must be at least 1, --minutes and --interval more than 0")
    seconds = 60.0 * chosen.minutes
    kills = max(1, round(seconds / chosen.interval))
    plan = Plan(seed=chosen.seed, kills=kills, interval_s=chosen.interval, signals=signals)
    plan = replace(plan, fault_phase_s=2.0 * seconds, options=tuple(chosen.options))
    folder = Path(tempfile.mkdtemp(prefix="chaos_learning."))
    try:
        results = measure(plan, chosen.seeds, folder)
    except MeasurementError as error:
        print(f"chaos_learning: {error}; the runs' folder is kept: {folder}", file=sys.stderr)
        return 1
    if chosen.out is not None:
        chosen.out.write_text(json.dumps([check._asdict() for check in results], indent=1) + "\n")
    return int(not report.conclude(results, folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
