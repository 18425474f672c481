"""Results of well-known tasks: long training runs whose scores and curves are kept.

    python -m benchmarks.learning.results --tasks=hopper,walker2d [--seeds=3] [--train_dir=train_dir/results]
    python -m benchmarks.learning.results --tasks=hopper,walker2d --plot=mujoco.png

Each run is `train_appo.py` with no option but environment, seed and budget. What was interrupted, by Ctrl+C or worse,
goes on where it stopped when the same command is given again. When the budget is spent, `enjoy_appo.py` plays 100
episodes with the last checkpoint; then scores and curve are added to `--out` (`results.json` in `--train_dir`), and the
run is not made again. `--plot` trains nothing: it draws the curves of `--out`, or those of docs/results.md where that
file is not there.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from appo.algorithms.run.config import COMMAND_LINES_FILE, STATUS_FILE, SUMMARY_FILE
from appo.tools.arguments import EXIT_REFUSED, Refused
from appo.tools.curves import RETURN, Group, Series, group_of, read_points, series_of
from appo.tools.plot import draw_groups
from appo.utils.processes import usable_cores
from benchmarks.learning.table import log_name
from benchmarks.measuring import ROOT, last_line, mean_and_range, parser_of, refuse_output, show, started, tell

KEPT = ROOT / "benchmarks" / "learning" / "results.json"
EPISODES = 100
EVAL_NUM_ENVS = 8
MOST_POINTS = 150  # of a curve that is kept
GAME_SCORE = "0_aux/avg_true_reward"  # of whole games, where an episode is a life
COLUMNS = ("task", "environment", "frames", "seeds", "return while learning", "return afterwards", "minutes", "starts")


class KnownTask(NamedTuple):
    """What is trained, and what is told of it."""

    env: str
    frames: int
    metric: str = RETURN  # mean of the last 100 episodes


KNOWN = {
    "cartpole": KnownTask("CartPole-v1", 300_000),
    "lunarlander": KnownTask("LunarLander-v3", 1_000_000),
    "bipedalwalker": KnownTask("BipedalWalker-v3", 3_000_000),
    "doorkey6": KnownTask("MiniGrid-DoorKey-6x6-v0", 500_000),
    "doorkey8": KnownTask("MiniGrid-DoorKey-8x8-v0", 2_000_000),
    "halfcheetah_1m": KnownTask("HalfCheetah-v5", 1_000_000),
    "hopper_1m": KnownTask("Hopper-v5", 1_000_000),
    "walker2d_1m": KnownTask("Walker2d-v5", 1_000_000),
    "halfcheetah": KnownTask("HalfCheetah-v5", 3_000_000),
    "hopper": KnownTask("Hopper-v5", 3_000_000),
    "walker2d": KnownTask("Walker2d-v5", 3_000_000),
    "ant": KnownTask("Ant-v5", 3_000_000),
    "pong": KnownTask("atari_pong", 20_000_000, GAME_SCORE),
    "breakout": KnownTask("atari_breakout", 20_000_000, GAME_SCORE),
    "doom_basic": KnownTask("doom_basic", 600_000),
    "health_gathering": KnownTask("doom_health_gathering", 2_000_000),
    "my_way_home": KnownTask("doom_my_way_home", 6_000_000),
    "deadly_corridor": KnownTask("doom_deadly_corridor", 6_000_000),
}


class Result(NamedTuple):
    """One run that has spent its budget."""

    task: str
    seed: int
    frames: int
    seconds: float  # of training, over all starts
    starts: int
    machine: str
    last: float  # mean return of the last 100 episodes of training
    played: float  # mean return of 100 episodes afterwards
    played_error: float  # standard error of that
    points: list[list[float]]  # (frames, mean return of the last 100 episodes)


def train(name: str, seed: int, train_dir: Path) -> str:
    """Train until the budget is spent, or go on doing so; why that failed, else empty."""
    task, log = KNOWN[name], train_dir / log_name(name, seed)
    experiment = f"{name}_{seed}"
    command = [sys.executable, "train_appo.py", f"--env={task.env}", f"--experiment={experiment}", f"--seed={seed}"]
    command += [f"--train_dir={train_dir}", f"--train_for_env_steps={task.frames}"]
    failure = "" if _has_spent(train_dir / experiment, task.frames) else _failure(command, log)
    return failure or play(task.env, experiment, train_dir)


def _has_spent(folder: Path, frames: int) -> bool:
    """A run has spent its budget, and only its episodes afterwards are missing."""
    summary = folder / SUMMARY_FILE
    return summary.exists() and json.loads(summary.read_text())["env_frames"] >= frames


def play(env: str, experiment: str, train_dir: Path) -> str:
    """Play with what was learned; why that failed, else empty."""
    command = [sys.executable, "enjoy_appo.py", f"--env={env}", f"--experiment={experiment}", "--no_render"]
    command += [f"--train_dir={train_dir}", f"--max_num_episodes={EPISODES}", f"--eval_num_envs={EVAL_NUM_ENVS}"]
    return _failure(command, train_dir / f"{experiment}_played.log")


def _failure(command: Sequence[str], log: Path) -> str:
    with started(command, log) as (process, _):
        process.wait()
    return f"exit code {process.returncode}: {last_line(log)}" if process.returncode else ""


def result_of(name: str, seed: int, train_dir: Path) -> Result:
    """Read what a run and its episodes afterwards have left."""
    folder, metric = train_dir / f"{name}_{seed}", KNOWN[name].metric
    curve = series_of(read_points(folder)[0], metric)
    status = json.loads((folder / STATUS_FILE).read_text())
    newest = max((folder / "evaluation").glob("policy0_step*.json"), key=lambda path: path.stat().st_mtime_ns)
    played = json.loads(newest.read_text())["summary"]["true_return" if metric == GAME_SCORE else "return"]
    return Result(
        name,
        seed,
        status["env_frames"],
        status["train_seconds"],
        len((folder / COMMAND_LINES_FILE).read_text().splitlines()),
        machine(),
        curve.values[-1],
        played["mean"],
        played["sem"],
        thinned(curve),
    )


def thinned(curve: Series) -> list[list[float]]:
    """At most `MOST_POINTS` of a curve, the first and the last among them."""
    count = len(curve.frames)
    places = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(int)).tolist()
    return [[curve.frames[place], round(curve.values[place], 4)] for place in places]


def machine() -> str:
    """The processor, how many of its cores this process may use, and the widest vectors that PyTorch finds there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{len(usable_cores())} cores, {name}, {torch.backends.cpu.get_cpu_capability()}"


def read(out: Path) -> list[Result]:
    """The runs of a file, in their order; none where there is no file yet.

    Raises:
        ValueError: it holds something else.
    """
    if not out.exists():
        return []
    try:
        return [Result(**run) for run in json.loads(out.read_text())]
    except (ValueError, TypeError) as error:
        raise ValueError(f"--out={out} holds no runs of this command ({error}); name another file") from error


def write(out: Path, results: Sequence[Result]) -> None:
    """A line for each run, in the order of the tasks."""
    order = list(KNOWN)
    ordered = sorted(results, key=lambda result: (order.index(result.task), result.seed))
    lines = [json.dumps(result._asdict(), separators=(",", ":")) for result in ordered]
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def row(name: str, results: Sequence[Result]) -> list[str]:
    """The cells of one task."""
    minutes = statistics.median(result.seconds for result in results) / 60
    return [
        name,
        KNOWN[name].env,
        f"{KNOWN[name].frames / 1e6:g}M",
        str(len(results)),
        _told([result.last for result in results]),
        _told([result.played for result in results]),
        f"{minutes:.1f}" if minutes < 10 else f"{minutes:.0f}",
        "-".join(map(str, sorted({result.starts for result in results}))),
    ]


def _told(values: Sequence[float]) -> str:
    return mean_and_range(values) if len(values) > 1 else f"{values[0]:.4g}"


def groups(results: Sequence[Result]) -> list[Group]:
    """The curves of each task as one group, as `appo.tools.plot` draws them.

    Tasks that differ only in their budget share a panel and are told apart by it.
    """
    by_task: dict[str, list[dict[int, Series]]] = {}
    for result in results:
        frames, values = (list(numbers) for numbers in zip(*result.points, strict=True))
        by_task.setdefault(result.task, []).append({0: Series(frames, values)})
    envs = [KNOWN[name].env for name in by_task]
    found = []
    for name, runs in by_task.items():
        env, budget, *_ = KNOWN[name]
        end = max(result.points[-1][0] for result in results if KNOWN[result.task].env == env)
        label = f"{budget / 1e6:g}M frames" if envs.count(env) > 1 else ""
        found.append(group_of(env, label, runs, end, budgets=[budget] * len(runs)))
    return found


def make_missing(names: Sequence[str], seeds: int, train_dir: Path, out: Path, results: list[Result]) -> bool:
    """Make the runs that `results` lacks, and add them to it and to `out`; whether all succeeded."""
    have_succeeded = True
    there_are = {(result.task, result.seed) for result in results}
    for name, seed in [(name, seed) for name in names for seed in range(1, seeds + 1) if (name, seed) not in there_are]:
        tell(f"{name}, seed {seed}: {KNOWN[name].frames:,} frames of {KNOWN[name].env} ...")
        if failure := train(name, seed, train_dir):
            tell(f"{name}, seed {seed} failed with {failure}")
            have_succeeded = False
            continue
        results.append(result_of(name, seed, train_dir))
        write(out, results)
    return have_succeeded


def draw(results: Sequence[Result], target: Path) -> None:
    """A picture of curves, a panel for each environment.

    Raises:
        ValueError, OSError: there is nothing to draw, or no such file can be written.
    """
    if not results:
        raise ValueError("no run of these tasks is there yet: leave out --plot to make them")
    try:
        draw_groups(groups(results), RETURN, "frames").savefig(target, dpi=120)
    except Refused as error:  # more environments than panels
        raise ValueError(str(error)) from error


def main(argv: Sequence[str]) -> int:
    """Make the runs that are missing, or draw those that there are; 1 when one failed."""
    chosen, results = _parse(argv)
    have_succeeded = True
    if chosen.plot is None:
        chosen.train_dir.mkdir(parents=True, exist_ok=True)
        have_succeeded = make_missing(chosen.tasks, chosen.seeds, chosen.train_dir, chosen.out, results)
    by_task = {name: [result for result in results if result.task == name] for name in chosen.tasks}
    if chosen.plot is not None:
        try:
            draw([run for runs in by_task.values() for run in runs], chosen.plot)
        except (ValueError, OSError) as error:
            print(f"results: {error}", file=sys.stderr)
            return EXIT_REFUSED
        tell(f"{chosen.plot}, of {chosen.out}")
    show(COLUMNS, [row(name, runs) for name, runs in by_task.items() if runs])
    return int(not have_succeeded)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[Result]]:
    """What was typed, and the runs that there are; exits when it cannot be done."""
    parser = parser_of("benchmarks.learning.results", __doc__)
    parser.add_argument("--tasks", default="all", help=f"comma separated, or all: {', '.join(KNOWN)}")
    parser.add_argument("--seeds", type=int, default=1, help="runs per task, seeds 1, 2, ...")
    parser.add_argument("--train_dir", type=Path, default=ROOT / "train_dir" / "results", help="where runs lie")
    parser.add_argument("--out", type=Path, default=None, help="JSON file of the runs that are complete")
    parser.add_argument("--plot", type=Path, default=None, help="draw the curves into this file instead of training")
    chosen = parser.parse_args(argv)
    chosen.tasks = list(KNOWN) if chosen.tasks == "all" else chosen.tasks.split(",")
    try:
        if unknown := [name for name in chosen.tasks if name not in KNOWN]:
            raise ValueError(f"unknown tasks {', '.join(unknown)}; there are {', '.join(KNOWN)}")
        if chosen.seeds < 1:
            raise ValueError(f"--seeds={chosen.seeds}: at least 1")
        refuse_output(chosen.out)
        if chosen.out is None:
            chosen.out = chosen.train_dir / "results.json"
            if chosen.plot is not None and not chosen.out.exists():
                chosen.out = KEPT
        return chosen, read(chosen.out)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
