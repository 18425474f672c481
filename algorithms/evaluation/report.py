"""What a user reads of an evaluation: a line per episode, a table at the end."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from appo.algorithms.evaluation.evaluate import EvalResult, summarize
from appo.algorithms.messages import EpisodeFinished
from appo.utils.files import atomic_write_json
from appo.utils.logs import terminal


class EpisodeLines:
    """Prints one line per episode, numbered in the order in which they end."""

    def __init__(self, agents_per_env: int) -> None:
        self._names_agents = agents_per_env > 1
        self._count = 0

    def __call__(self, agent: int, episode: EpisodeFinished) -> None:
        """Tell of one more episode."""
        self._count += 1
        of_agent = f", agent {agent}" if self._names_agents else ""
        objective = "" if math.isnan(episode.true_return) else f"true return {episode.true_return:.3f}, "
        print(
            f"episode {self._count}{of_agent}: return {episode.episode_return:.3f}, "
            f"{objective}length {episode.length_frames} frames",
            flush=True,  # so that a reader of a pipe can follow
        )


def print_result(result: EvalResult, title: str, console: Console | None = None) -> None:
    """The table of all episodes, and how fast they were played."""
    console = console or terminal()
    episodes = len(result.returns)
    speed = f"{result.frames} frames in {result.wall_time:.1f} s"
    if not episodes:
        console.print(f"no episode ended: {speed}", soft_wrap=True)
        return
    table = Table("", "mean", "std", "std error", "min", "max", "episodes", title=title)
    rows = {"return": result.returns, "true return": result.true_returns, "frames": result.lengths}
    for name, values in rows.items():
        table.add_row(name, *[_number(value) for value in summarize(values)], str(len(values)))
    for name, values in result.extras.items():
        table.add_row(name, *[_number(value) for value in summarize(values)], str(len(values)))
    console.print(table)
    lost = f"; {result.aborted} episodes were lost with their environment and played again" if result.aborted else ""
    console.print(speed + lost, soft_wrap=True)


def save_result(result: EvalResult, path: Path, title: str) -> Path:
    """Write the summary as JSON, and a line per episode as CSV beside it; the path of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = {"return": result.returns, "true_return": result.true_returns, "length": result.lengths, **result.extras}
    content = {
        "title": title,
        "episodes": len(result.returns),
        "frames": result.frames,
        "seconds": result.wall_time,
        "aborted": result.aborted,
        "summary": {name: summarize(values)._asdict() for name, values in numbers.items()},
    }
    atomic_write_json(path.with_suffix(".json"), content, durable=False)
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["episode", "environment", "agent", "return", "length"])
        columns = (result.env_ids, result.agents, result.returns, result.lengths)
        writer.writerows([number, *row] for number, row in enumerate(zip(*columns, strict=True), 1))
    return path.with_suffix(".json")


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
