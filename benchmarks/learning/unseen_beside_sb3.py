"""Tasks that no default was made for, beside Stable-Baselines3: the same frames, each its own defaults, in turns.

    python -m benchmarks.learning.unseen_beside_sb3 --peer_python=PATH [--tasks=...] [--half=...] [--seeds=3]
        [--frames=N] [--peers_at_once=1] [--out=FILE]

Ours is `train_appo.py` with no option but the environment; the peer is PPO, MaskablePPO or RecurrentPPO, whichever the
task needs, with 8 environments. Both train for the whole budget of the task, or for `--frames` if that is less: the
peer needs a day for all budgets. The score is the mean return of the last 100 training episodes; the time goes from the
command to its end. "At least as good" allows for the standard error of the difference over seeds, or for 5 % of the way
from random play to the good score if that is more.
`--peers_at_once` lets so many seeds of a task share the cores when the peer trains, each with its part of the threads;
on two cores two runs of one thread each take as long as one that has both (RecurrentPPO 31.1 s and 30.5 s, PPO 3.8 s
and 3.9 s for 12,000 frames). Ours always has the machine to itself.
With `--out`, what was interrupted goes on where it stopped, and tasks or seeds are added to those that the file has.
What the peer could not run is tried again.

The peer's Python, outside of this project's folder:

    python3.11 -m venv ../peers/stable-baselines3
    ../peers/stable-baselines3/bin/python -m pip install "stable-baselines3==2.9.2" "sb3-contrib==2.9.2" \\
        -r benchmarks/learning/unseen/requirements.txt
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.learning import table
from benchmarks.learning.unseen.tasks import DEVELOPMENT, HALVES, UNSEEN, UnseenTask, choose, require_packages
from benchmarks.measuring import POLL_S, ROOT, last_line, mean_and_range, parser_of, refuse_output, show, started, tell
from benchmarks.speed.side_by_side import Refusal, imported_version

PROGRAM = ROOT / "benchmarks" / "peers" / "stable_baselines3_unseen.py"
RESULT = "result: "  # begins the line with which the peer's program tells its score
EPISODES = 100  # fewer make no score
TOLERATED = 0.05  # of the way from random play to the good score
MOST_TIME = 0.5  # of the peer's


class Run(NamedTuple):
    """One run to the budget."""

    score: float  # minus infinity: it failed, or had fewer than 100 episodes
    seconds: float  # infinity: it failed
    frames: int


class Comparison(NamedTuple):
    """The runs of one task, a pair for each seed."""

    task: str
    ours: list[Run]
    peers: list[Run]
    cannot: str = ""  # why the peer does not run the task

    def of_seeds(self, seeds: int) -> Comparison:
        """The first so many runs of each."""
        return self._replace(ours=self.ours[:seeds], peers=self.peers[:seeds])

    @property
    def is_as_good(self) -> bool:
        """Whether our mean score reaches the peer's, noise allowed for."""
        mine, theirs = _scores(self.ours), _scores(self.peers)
        if not all(map(math.isfinite, mine)):
            return False
        task = UNSEEN[self.task]
        allowed = max(noise(mine, theirs), TOLERATED * (task.good - task.random))
        return statistics.mean(mine) >= statistics.mean(theirs) - allowed

    @property
    def time_ratio(self) -> float:
        """Our seconds in units of the peer's, the median over pairs."""
        return statistics.median(a.seconds / b.seconds for a, b in zip(self.ours, self.peers, strict=True))


class CannotRunError(RuntimeError):
    """The peer did not train the task to its budget. The message says why."""


def noise(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The standard error of the difference between two means over seeds; 0 where it is not known."""
    if min(len(mine), len(theirs)) < 2 or not all(map(math.isfinite, [*mine, *theirs])):
        return 0.0
    return math.sqrt(statistics.variance(mine) / len(mine) + statistics.variance(theirs) / len(theirs))


def ours(name: str, task: UnseenTask, seed: int, folder: Path) -> Run:
    """Our program to the budget, whatever its score on the way."""
    began = time.monotonic()
    outcome = table.run(name, table.Task(task.env, math.inf, task.frames), seed, folder)
    if outcome.exit_code:
        reason = last_line(folder / table.log_name(name, seed))
        tell(f"{name} {seed}, ours failed with exit code {outcome.exit_code}: {reason}")
        return Run(-math.inf, math.inf, outcome.frames)
    return Run(outcome.last, time.monotonic() - began, outcome.frames)


def peers(name: str, task: UnseenTask, seeds: Sequence[int], folder: Path, python: Path) -> list[Run]:
    """Stable-Baselines3 to the budget, all seeds at once, each with an equal part of the cores.

    Raises:
        CannotRunError: one ended before, with an error; the others are stopped.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // len(seeds))
    command = ["env", f"OMP_NUM_THREADS={threads}"] if len(seeds) > 1 else []
    command += [str(python), str(PROGRAM), f"--env={task.env}", f"--algorithm={task.peer}", f"--frames={task.frames}"]
    logs = {seed: folder / f"peer-{name}-{seed}.log" for seed in seeds}
    ended: dict[int, Run] = {}
    with ExitStack() as stack:
        began = time.monotonic()
        # In a folder of its own: our packages must not be taken for the peer's modules.
        processes = {
            seed: stack.enter_context(started([*command, f"--seed={seed}"], log, cwd=folder))[0]
            for seed, log in logs.items()
        }
        while len(ended) < len(seeds):
            for seed, process in processes.items():
                if seed not in ended and process.poll() is not None:
                    ended[seed] = _peers_run(logs[seed], process.returncode, time.monotonic() - began)
            time.sleep(POLL_S)
    return [ended[seed] for seed in seeds]


def _peers_run(log: Path, exit_code: int, seconds: float) -> Run:
    # Its environments may have a word to say after it.
    results = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(RESULT)]
    if exit_code or not results:
        raise CannotRunError(last_line(log))
    result = json.loads(results[-1].removeprefix(RESULT))
    return Run(result["score"] if result["episodes"] >= EPISODES else -math.inf, seconds, result["frames"])


def limited(name: str, frames: int | None) -> UnseenTask:
    """A task of which no more than so many frames are played."""
    task = UNSEEN[name]
    return task if frames is None else task._replace(frames=min(frames, task.frames))


def compare(
    begun: Comparison,
    task: UnseenTask,
    seeds: int,
    python: Path,
    folder: Path,
    report: Callable[[Comparison, str], None],
    peers_at_once: int = 1,
) -> Comparison:
    """One task, ours and the peer in turns, beginning with the runs that there are; `report` is told of each run."""
    name, comparison = begun.task, begun._replace(cannot="")
    if task.peer == "none":
        comparison = comparison._replace(cannot="it has no space for what this task observes or does")

    def run_ours(until: int) -> None:
        for seed in range(len(comparison.ours) + 1, until + 1):
            comparison.ours.append(ours(name, task, seed, folder))
            report(comparison, f"{name} {seed}, ours: {comparison.ours[-1]}")

    while len(comparison.peers) < seeds and not comparison.cannot:
        done = len(comparison.peers)
        turn = range(done + 1, min(done + peers_at_once, seeds) + 1)
        run_ours(until=turn[-1])
        try:
            comparison.peers.extend(peers(name, task, turn, folder, python))
        except CannotRunError as error:
            comparison = comparison._replace(cannot=str(error))
            continue
        for seed in turn:
            report(comparison, f"{name} {seed}, Stable-Baselines3: {comparison.peers[seed - 1]}")
    run_ours(until=seeds)
    if comparison.cannot:
        report(comparison, f"{name}: Stable-Baselines3 cannot run it: {comparison.cannot}")
    return comparison


def row(comparison: Comparison) -> list[str]:
    """The cells of one task."""
    task = UNSEEN[comparison.task]
    cells = [comparison.task, f"{task.random:g}", f"{task.good:g}", mean_and_range(_scores(comparison.ours))]
    if comparison.cannot:
        return [*cells, "cannot", "", ""]
    ratio = comparison.time_ratio
    told = f"{ratio:.2f}" + ("" if ratio <= MOST_TIME else f" (above {MOST_TIME:g})")
    return [
        *cells,
        f"{task.peer} {mean_and_range(_scores(comparison.peers))}",
        "yes" if comparison.is_as_good else "no",
        told,
    ]


def verdict(comparisons: Sequence[Comparison]) -> str:
    """How many tasks, of those that both can run."""
    both = [comparison for comparison in comparisons if not comparison.cannot]
    good, fast = sum(each.is_as_good for each in both), sum(each.time_ratio <= MOST_TIME for each in both)
    return (
        f"Of {len(both)} tasks that both can run: at least as good on {good}, "
        f"at most {MOST_TIME:g} of the peer's time on {fast}."
    )


def _scores(runs: Sequence[Run]) -> list[float]:
    return [run.score for run in runs]


def write(file: Path, comparisons: Iterable[Comparison], version: str, frames: int | None) -> None:
    """Every run, as JSON; what is not finite as null. `frames`: the most that each task was given; None: its budget."""

    def plain(run: Run) -> dict[str, Any]:
        return {name: value if math.isfinite(value) else None for name, value in run._asdict().items()}

    runs = [
        each._asdict() | {"ours": list(map(plain, each.ours)), "peers": list(map(plain, each.peers))}
        for each in comparisons
    ]
    file.write_text(json.dumps({"peer_version": version, "frames": frames, "tasks": runs}, indent=1) + "\n")


def read(file: Path, version: str, frames: int | None) -> dict[str, Comparison]:
    """What `write` wrote, by task; nothing where there is no file yet.

    Raises:
        ValueError: the file holds something else, or runs of another version of the peer or of other lengths.
    """
    if not file.exists():
        return {}
    try:
        told = json.loads(file.read_text())
        found = {
            task["task"]: Comparison(
                task["task"], [_run(run) for run in task["ours"]], [_run(run) for run in task["peers"]], task["cannot"]
            )
            for task in told["tasks"]
        }
        of_file = told["peer_version"], told.get("frames")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--out={file} holds no runs of this command ({error!r}); name another file") from error
    if of_file[0] != version:
        raise ValueError(f"--out={file} holds runs of Stable-Baselines3 {of_file[0]}, not {version}")
    if of_file[1] != frames:
        limit = "no --frames" if of_file[1] is None else f"--frames={of_file[1]}"
        raise ValueError(f"--out={file} holds runs with {limit}; give the same, or name another file")
    return found


def _run(told: dict[str, Any]) -> Run:
    score, seconds = told["score"], told["seconds"]
    return Run(-math.inf if score is None else score, math.inf if seconds is None else seconds, told["frames"])


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Comparison], str]:
    """What was typed, the runs that there are by task, and the peer's version; exits when it cannot be done."""
    parser = parser_of("benchmarks.learning.unseen_beside_sb3", __doc__)
    parser.add_argument("--peer_python", type=Path, required=True, help="the python of the peer's own environment")
    parser.add_argument("--tasks", default="all", help="comma separated, or all of the half")
    parser.add_argument("--half", choices=HALVES, default=DEVELOPMENT, help="which tasks there are to name")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each per task, seeds 1, 2, ...")
    parser.add_argument("--frames", type=int, default=None, help="no task is given more than these")
    parser.add_argument("--peers_at_once", type=int, default=1, help="seeds that share the cores when the peer trains")
    parser.add_argument(
        "--out", type=Path, default=None, help="JSON file for every run; one that exists is gone on with"
    )
    chosen = parser.parse_args(argv)
    # The path as it is: the python of a virtual environment is a link, and not the same behind it.
    chosen.peer_python = chosen.peer_python.expanduser().absolute()
    try:
        if chosen.seeds < 1:
            raise ValueError(f"--seeds={chosen.seeds}: at least 1")
        cores = len(os.sched_getaffinity(0))
        if not 1 <= chosen.peers_at_once <= cores:
            raise ValueError(f"--peers_at_once={chosen.peers_at_once}: from 1 to {cores}, the cores there are")
        if chosen.frames is not None and chosen.frames < 1:
            raise ValueError(f"--frames={chosen.frames}: at least 1")
        refuse_output(chosen.out)
        names = choose(chosen.tasks, chosen.half)
        require_packages(names)
        packages = {UNSEEN[name].package for name in names if UNSEEN[name].peer != "none"} - {""}
        modules = ["stable_baselines3", "sb3_contrib", *sorted(packages)]
        version = imported_version("stable-baselines3", chosen.peer_python, modules)
        begun = read(chosen.out, version, chosen.frames) if chosen.out is not None else {}
        return chosen, begun, version
    except (Refusal, ValueError) as error:
        parser.error(str(error))


def main(argv: Sequence[str]) -> int:
    """Train in alternation, print the table, write the JSON."""
    chosen, begun, version = parse(argv)
    comparisons = dict(begun)

    def report(comparison: Comparison, line: str) -> None:
        tell(line)
        comparisons[comparison.task] = comparison
        if chosen.out is not None:
            write(chosen.out, comparisons.values(), version, chosen.frames)

    names = choose(chosen.tasks, chosen.half)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            so_far = begun.get(name, Comparison(name, [], []))
            comparisons[name] = compare(
                so_far,
                limited(name, chosen.frames),
                chosen.seeds,
                chosen.peer_python,
                Path(folder),
                report,
                chosen.peers_at_once,
            )
    columns = ["task", "random", "good", "ours", f"Stable-Baselines3 {version}", "at least as good", "time: ratio"]
    asked = [comparisons[name].of_seeds(chosen.seeds) for name in names]
    show(columns, [row(comparison) for comparison in asked])
    tell(verdict(asked))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
