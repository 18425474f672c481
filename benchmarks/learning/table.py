"""Does it learn? Runs tasks from the command line, seed after seed, until each has reached its bar or its frames.

    python -m benchmarks.learning --tasks=cartpole,pendulum --seeds=3 --out=learning.json
    python -m benchmarks.learning --suite=unseen [--half=development|report|all] [--tasks=...] [--measure_random]

To be started in the root of the checkout. Every run is a whole `train_appo.py` with no option but the environment,
unless the task's row says more, and it is stopped as soon as the mean return of its last 100 episodes is at the bar.
The table shows, per task, how many seeds reached it, the frames and the seconds at which they did, and its limits.

The suite `unseen` has the tasks that no default was made for (`benchmarks/learning/unseen`); its bar is a good score,
and the table says besides what random play earns and how many seeds came clearly above it. Only the development half
may be looked at while defaults are made, so that is the half that runs unless another is named.
"""

from __future__ import annotations

import argparse
import difflib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from appo.algorithms.run.config import STATUS_FILE
from benchmarks.learning.unseen import random_play
from benchmarks.learning.unseen.tasks import DEVELOPMENT, HALVES, UNSEEN, choose, require_packages
from benchmarks.measuring import last_line, parser_of, refuse_output, show, started

POLL_S = 0.25
RANDOM_EPISODES = 200
COLUMNS = ("environment", "options", "bar", "reached", "frames", "seconds", "best mean of 100")
UNSEEN_COLUMNS = ("task", "random", "good", "reached", "frames", "seconds", "best mean of 100", "above chance")
# The best mean of 100 episodes is above random play's by luck alone: this share of the way to the good score is not.
CLEARLY = 0.2
TUNED_SUITE, UNSEEN_SUITE = "tuned", "unseen"


class Task(NamedTuple):
    """One row of the table of learning bars."""

    env: str
    bar: float  # mean return of the last 100 episodes
    frames: int  # within which
    seconds: float = float("inf")
    options: tuple[str, ...] = ()
    must_fail: bool = False  # the bar is out of reach by design: reaching it would prove the task wrong
    random: float = float("nan")  # what random play earns, where the suite tells it

    def is_above_chance(self, score: float) -> bool:
        """A score that random play does not reach."""
        return score > self.random + CLEARLY * (self.bar - self.random)


TASKS = {
    "identity": Task("synthetic_identity", 18.0, 50_000),
    "bandit": Task("synthetic_bandit", 13.5, 50_000),
    "masked": Task("synthetic_masked", 18.0, 50_000),
    "tuple": Task("synthetic_tuple", 18.0, 50_000),
    "dict": Task("synthetic_dict", 18.0, 50_000),
    "image": Task("synthetic_image", 18.0, 50_000),
    # Untrained, an episode costs about 27; nine tenths of the way to the optimum, 0.
    "continuous": Task("synthetic_continuous", -2.7, 50_000),
    "memory": Task("synthetic_memory", 0.9, 50_000),
    "cartpole": Task("CartPole-v1", 475.0, 500_000, 40.0),
    "cartpole_gru": Task("classic_cartpole_no_velocity", 450.0, 1_000_000),
    "cartpole_blind": Task(
        "classic_cartpole_no_velocity", 450.0, 1_000_000, options=("--use_rnn=False",), must_fail=True
    ),
    # Raises in a thousandth of its steps, stalls for 2 to 5 s in half as many.
    "cartpole_unreliable": Task(
        "synthetic_unreliable_cartpole", 400.0, 250_000, options=("--num_workers=4", "--num_envs_per_worker=16")
    ),
    "acrobot": Task("Acrobot-v1", -100.0, 1_000_000),
    "lunarlander": Task("LunarLander-v3", 200.0, 2_000_000),
    "pendulum": Task("Pendulum-v1", -250.0, 1_000_000),
    "doorkey": Task("MiniGrid-DoorKey-5x5-v0", 0.93, 500_000),
    "inverted_pendulum": Task("InvertedPendulum-v5", 950.0, 1_000_000),
    "halfcheetah": Task("HalfCheetah-v5", 1500.0, 1_000_000),
    "doom_basic": Task("doom_basic", 80.0, 540_000, 120.0),
}


class Outcome(NamedTuple):
    """How one run went."""

    task: str
    seed: int
    reached: bool
    frames: int
    seconds: float  # from the command to the bar, start-up included
    best: float
    exit_code: int  # 130: it was stopped at the bar
    last: float  # mean return of the last 100 episodes when it was over

    @property
    def has_failed(self) -> bool:
        """It ended neither with its frames nor because it was stopped at the bar."""
        return self.exit_code not in (0, 128 + signal.SIGINT)

    def __str__(self) -> str:
        how = "reached its bar" if self.reached else "did not reach its bar"
        measured = f"{_thousands(self.frames)} frames, {self.seconds:.0f} s, best mean of 100 {self.best:.4g}"
        return f"{self.task}, seed {self.seed}: {how}; {measured}"


def run(name: str, task: Task, seed: int, train_dir: Path) -> Outcome:
    """Train once, until the bar or the end of the frames."""
    experiment = f"{name}_{seed}"
    command = [sys.executable, "train_appo.py", f"--env={task.env}", f"--experiment={experiment}", "--device=cpu"]
    command += [f"--train_dir={train_dir}", f"--seed={seed}", f"--train_for_env_steps={task.frames}", *task.options]
    began = time.monotonic()
    best = last = float("-inf")
    frames, seconds, is_over = 0, 0.0, False
    with started(command, train_dir / log_name(name, seed)) as (process, _):
        # The last look is after the end: most of a short run may lie between two.
        while not is_over and best < task.bar:
            is_over = _has_ended(process, POLL_S)
            status = _status(train_dir / experiment / STATUS_FILE)
            if not status:
                continue
            policy = status["policies"][0]
            frames, seconds = status["env_frames"], time.monotonic() - began
            if policy["episodes"] >= 100 and policy["avg_reward"] is not None:
                last = policy["avg_reward"]
                best = max(best, last)
        if not is_over and status["state"] == "training":
            process.send_signal(signal.SIGINT)
        process.wait()
    # Frames are the run's own budget: it may play a little more until all have heard that it is spent.
    reached = best >= task.bar and seconds <= task.seconds
    return Outcome(name, seed, reached, frames, seconds, best, process.returncode, last)


def log_name(name: str, seed: int) -> str:
    """The file in `train_dir` that holds what a run printed."""
    return f"{name}_{seed}.log"


def _has_ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _status(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    status: dict[str, Any] = json.loads(path.read_text())
    return status


def summarise(task: Task, outcomes: list[Outcome]) -> list[str]:
    """The cells of one row."""
    limit = _thousands(task.frames) + (f", {task.seconds:.0f} s" if task.seconds < float("inf") else "")
    goal = f"{task.bar:g} in {limit}" + (" must fail" if task.must_fail else "")
    return [task.env, " ".join(task.options), goal, *_measured(outcomes)]


def summarise_unseen(name: str, task: Task, outcomes: list[Outcome]) -> list[str]:
    """The cells of one row of the suite that no option was tuned on."""
    above = sum(task.is_above_chance(outcome.best) for outcome in outcomes)
    goal = f"{task.bar:g} in {_thousands(task.frames)}"
    return [name, f"{task.random:g}", goal, *_measured(outcomes), f"{above} of {len(outcomes)}"]


def _measured(outcomes: list[Outcome]) -> list[str]:
    """How many seeds reached the bar, frames, seconds, and the best means."""
    reached, frames = sum(outcome.reached for outcome in outcomes), [outcome.frames for outcome in outcomes]
    seconds = f"{statistics.median(o.seconds for o in outcomes):.0f} (max {max(o.seconds for o in outcomes):.0f})"
    best = f"{min(o.best for o in outcomes):.4g} .. {max(o.best for o in outcomes):.4g}"
    told_frames = f"{_thousands(statistics.median(frames))} (max {_thousands(max(frames))})"
    return [f"{reached} of {len(outcomes)}", told_frames, seconds, best]


def _thousands(frames: float) -> str:
    return f"{frames / 1000:.0f}k"


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Task]]:
    """What was typed, and the tasks it names; exits when it cannot be done."""
    parser = parser_of("benchmarks.learning", __doc__)
    suites = (TUNED_SUITE, UNSEEN_SUITE)
    parser.add_argument("--suite", choices=suites, default=TUNED_SUITE, help="tasks with defaults, or without")
    parser.add_argument("--half", choices=HALVES, default=None, help=f"of the suite unseen; {DEVELOPMENT} by default")
    parser.add_argument("--tasks", default="all", help=f"comma separated, or all: {', '.join(TASKS)}; or of unseen")
    parser.add_argument("--seeds", type=int, default=3, help="runs per task, seeds 1, 2, ...")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for the outcomes")
    parser.add_argument("--measure_random", action="store_true", help="of the suite unseen: play at random instead")
    parser.add_argument("--episodes", type=int, default=None, help=f"random episodes per task; {RANDOM_EPISODES}")
    chosen = parser.parse_args(argv)
    if chosen.episodes is not None and not chosen.measure_random:
        parser.error("--episodes is for --measure_random")
    chosen.episodes = RANDOM_EPISODES if chosen.episodes is None else chosen.episodes
    if chosen.seeds < 1 or chosen.episodes < 2:
        parser.error(f"--seeds={chosen.seeds} --episodes={chosen.episodes}: at least 1 and 2")
    try:
        refuse_output(chosen.out)
        return chosen, _unseen_tasks(chosen) if chosen.suite == UNSEEN_SUITE else _tuned_tasks(chosen)
    except ValueError as error:
        parser.error(str(error))


def _unseen_tasks(chosen: argparse.Namespace) -> dict[str, Task]:
    names = choose(chosen.tasks, chosen.half or DEVELOPMENT)
    require_packages(names)
    rows = {name: UNSEEN[name] for name in names}
    return {name: Task(row.env, row.good, row.frames, random=row.random) for name, row in rows.items()}


def _tuned_tasks(chosen: argparse.Namespace) -> dict[str, Task]:
    if chosen.half is not None or chosen.measure_random:
        raise ValueError(f"--half and --measure_random are for --suite={UNSEEN_SUITE}")
    names = list(TASKS) if chosen.tasks == "all" else chosen.tasks.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        close = difflib.get_close_matches(unknown[0], TASKS, n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        hint = f"; {unknown[0]} is a task of --suite={UNSEEN_SUITE}" if unknown[0] in UNSEEN else hint
        raise ValueError(f"unknown tasks {', '.join(unknown) or '(empty)'}; there are {', '.join(TASKS)}{hint}")
    return {name: TASKS[name] for name in names}


def main(argv: Sequence[str]) -> int:
    """Run, print the table, write the JSON; 1 when a bar was missed or a run failed."""
    chosen, tasks = _parse(argv)
    console = Console()

    def report(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    if chosen.measure_random:
        return random_play.compare(list(tasks), chosen.episodes, chosen.out, report)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name, task in tasks.items():
            for seed in range(1, chosen.seeds + 1):
                report(f"{name}, seed {seed}: at most {_thousands(task.frames)} frames ...")
                outcomes.append(run(name, task, seed, Path(folder)))
                report(str(outcomes[-1]))
                if outcomes[-1].has_failed:
                    report(f"{name} {seed} failed: {last_line(Path(folder) / log_name(name, seed))}")
    by_task = {name: [outcome for outcome in outcomes if outcome.task == name] for name in tasks}
    if chosen.suite == UNSEEN_SUITE:
        show(UNSEEN_COLUMNS, [summarise_unseen(name, task, by_task[name]) for name, task in tasks.items()])
    else:
        show(COLUMNS, [summarise(task, by_task[name]) for name, task in tasks.items()])
    if chosen.out is not None:
        chosen.out.write_text(json.dumps([outcome._asdict() for outcome in outcomes], indent=1) + "\n")
    return int(any(each.has_failed or each.reached == tasks[each.task].must_fail for each in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
