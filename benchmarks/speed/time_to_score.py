"""Time to a score: seconds and frames from the command to a score, ours and Sample Factory's in alternation.

    python -m benchmarks.speed.time_to_score --peer_python=PATH --env=doom_basic [--rounds=2] [--out=race.json]

Ours is `train_appo.py` with no option but the environment; the peer trains in the configuration of comparison. The
score is the mean return of the last 100 episodes, as each program itself tells it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.learning import table
from benchmarks.measuring import MeasurementError, markdown, started
from benchmarks.speed.side_by_side import FRAMES, LoggedNumber, Refusal, sample_factory, version_of

LIMIT_S = 900.0
POLL_S = 0.25
COLUMNS = (
    "environment",
    "score",
    "ours, s",
    "ours, frames",
    "Sample Factory, s",
    "Sample Factory, frames",
    "time: ratio",
)
SCORE = r"Avg episode reward: \[\(0, '(-?[\d.]+)'\)\]"  # in Sample Factory's log


class Race(NamedTuple):
    """A score and how the peer tells it."""

    task: str  # of `table.TASKS`
    score: float
    peers_score: float


RACES = {
    "cartpole": Race("cartpole", 475.0, 475.0),
    # Sample Factory divides this environment's rewards by 100.
    "doom_basic": Race("doom_basic", 80.0, 0.8),
}


class Finish(NamedTuple):
    """One run that reached its score."""

    seconds: float
    frames: int


def ours(race: Race, seed: int, folder: Path) -> Finish:
    """Our program to the score.

    Raises:
        MeasurementError: it did not get there within the frames of its bar.
    """
    outcome = table.run(race.task, table.TASKS[race.task], seed, folder)
    if not outcome.reached:
        raise MeasurementError(f"ours did not reach {race.score:g}: {outcome}")
    return Finish(outcome.seconds, outcome.frames)


def peers(env: str, race: Race, folder: Path, python: Path) -> Finish:
    """Sample Factory to the score.

    Raises:
        MeasurementError: it ended, or did not get there in time.
    """
    program, log = sample_factory(env, folder, python, False), folder / "log.txt"
    score, frames = LoggedNumber(log, SCORE, -math.inf), LoggedNumber(log, FRAMES)
    began = time.monotonic()
    with started(program.command, log, cwd=program.cwd) as (process, _):
        while time.monotonic() < began + LIMIT_S:
            if process.poll() is not None:
                raise MeasurementError(f"Sample Factory ended with {process.returncode}; see {log}")
            if score() >= race.peers_score:
                return Finish(time.monotonic() - began, int(frames()))
            time.sleep(POLL_S)
    raise MeasurementError(f"Sample Factory did not reach {race.peers_score:g} within {LIMIT_S:.0f} s")


def row(env: str, race: Race, mine: Sequence[Finish], theirs: Sequence[Finish]) -> list[str]:
    """Medians, and the spread of the times."""

    def seconds(finishes: Sequence[Finish]) -> str:
        times = [finish.seconds for finish in finishes]
        return f"{statistics.median(times):.0f} ({min(times):.0f} .. {max(times):.0f})"

    def frames(finishes: Sequence[Finish]) -> str:
        return f"{statistics.median(finish.frames for finish in finishes) / 1000:.0f}k"

    ratio = statistics.median(f.seconds for f in mine) / statistics.median(f.seconds for f in theirs)
    return [env, f"{race.score:g}", seconds(mine), frames(mine), seconds(theirs), frames(theirs), f"{ratio:.2f}"]


def run(env: str, python: Path, rounds: int, tell: Callable[[str], None]) -> tuple[list[Finish], list[Finish]]:
    """Ours and the peer in turns.

    Raises:
        MeasurementError: one of them did not reach the score.
    """
    race, mine, theirs = RACES[env], [], []
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            mine.append(ours(race, number, Path(folder)))
            tell(f"{number}. ours: {mine[-1]}")
            theirs.append(peers(env, race, Path(folder), python))
            tell(f"{number}. Sample Factory: {theirs[-1]}")
    return mine, theirs


def main(argv: Sequence[str]) -> int:
    """Race, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer_python", type=Path, required=True, help="the python of the peer's own environment")
    parser.add_argument("--env", choices=tuple(RACES), required=True, help="the task")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each, in alternation")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for every number")
    chosen = parser.parse_args(argv)
    python = chosen.peer_python.expanduser().absolute()
    try:
        version_of("sample-factory", python, chosen.env)
        mine, theirs = run(chosen.env, python, chosen.rounds, lambda line: print(line, flush=True))
    except Refusal as refusal:
        parser.error(str(refusal))
    except MeasurementError as error:
        print(f"race: {error}", file=sys.stderr)
        return 1
    print(markdown(COLUMNS, [row(chosen.env, RACES[chosen.env], mine, theirs)]))
    if chosen.out is not None:
        finishes = {"ours": [f._asdict() for f in mine], "peer": [f._asdict() for f in theirs]}
        chosen.out.write_text(json.dumps(finishes, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
