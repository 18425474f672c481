"""What a user reads of an evaluation: lines of episodes, a table at the end."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from appo.algorithms.evaluation.evaluate import EvalResult
from appo.algorithms.messages import EpisodeFinished
from appo.utils.files import atomic_write_json
from appo.utils.logs import terminal

_MOST_LINES, _LINES = 20, 10  # more episodes than these are told in about so many lines
_COLUMNS = ("episode", "environment", "agent", "return", "true_return", "length")


class EpisodeLines:
    """Prints one line per episode, numbered in the order in which they end; of very many, one in so many."""

    def __init__(self, agents_per_env: int, num_episodes: int | None = None) -> None:
        """No episode has ended yet.

        Args:
            agents_per_env: an episode of several agents has a line for each.
            num_episodes: how many will be played; None: that is open, and all are told.
        """
        self._agents = agents_per_env
        self._every = 1 if num_episodes is None or num_episodes <= _MOST_LINES else -(-num_episodes // _LINES)
        self._count = 0

    def __call__(self, agent: int, episode: EpisodeFinished) -> None:
        """Tell of one more episode of an agent."""
        self._count += 1
        if -(-self._count // self._agents) % self._every:
            return
        of_agent = f", agent {agent}" if self._agents > 1 else ""
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
    titles = {"return": "return", "true_return": "true return", "length": "frames"}
    counts = {"return": len(result.returns), "true_return": len(result.true_returns), "length": len(result.lengths)}
    for name, summary in result.summaries.items():
        table.add_row(titles[name], *[_number(value) for value in summary], str(counts[name]))
    for name, summary in result.extra_summaries.items():
        table.add_row(name, *[_number(value) for value in summary], str(len(result.extras[name])))
    console.print(table)
    lost = f"; {result.aborted} episodes were lost with their environment and played again" if result.aborted else ""
    console.print(speed + lost, soft_wrap=True)
    if not result.is_complete:
        console.print("stopped early: short episodes are over-represented", soft_wrap=True)


class Conditions(NamedTuple):
    """What episodes were played with."""

    deterministic: bool
    seed: int
    num_envs: int
    checkpoints: dict[str, str]  # player -> file


def why_kept(path: Path, new: Mapping[str, Any], count: str = "episodes") -> str:
    """Why a file of results is not replaced by new ones; empty: it may be.

    Complete results are replaced by complete ones only, and by those of fewer episodes only where these were played by
    other checkpoints or in another way.

    Args:
        path: the file.
        new: what it would contain.
        count: the entry that counts episodes, or matches.
    """
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not (isinstance(old, dict) and old.get("complete", True)):
        return ""
    if not new["complete"]:
        return f"{path} is complete, these are not"
    if any(old.get(name) != new.get(name) for name in ("checkpoints", "deterministic", "players")):
        return ""
    before, now = old.get(count), new[count]
    if isinstance(before, int) and before > now:
        return f"{path} has {before} {count.replace('_', ' ')}, these are {now}; delete it to keep these"
    return ""


def save_result(result: EvalResult, path: Path, title: str, conditions: Conditions) -> str:
    """Write the summary as JSON, and a line per episode as CSV beside it.

    Returns:
        Why not all was written, see `why_kept`, or what the disk says; empty: both were.
    """
    content = {
        "title": title,
        "complete": result.is_complete,
        "episodes": len(result.returns),
        "frames": result.frames,
        "seconds": result.wall_time,
        "aborted": result.aborted,
        "summary": {name: summary._asdict() for name, summary in result.summaries.items()},
        "extra": {name: summary._asdict() for name, summary in result.extra_summaries.items()},
        **conditions._asdict(),
    }
    if reason := why_kept(path.with_suffix(".json"), content):
        return reason
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(path.with_suffix(".json"), content, durable=False)
        _write_table(result, path.with_suffix(".csv"))
    except OSError as error:
        return str(error)
    return ""


def _write_table(result: EvalResult, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        extras = list(result.extras)
        writer.writerow([*_COLUMNS, *(f"extra_{name}" for name in extras)])
        for number, (env, agent, episode) in enumerate(
            zip(result.env_ids, result.agents, result.episodes, strict=True), 1
        ):
            objective = "" if math.isnan(episode.true_return) else episode.true_return
            row = [number, env, agent, episode.episode_return, objective, episode.length_frames]
            writer.writerow([*row, *(episode.extra.get(name, "") for name in extras)])


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
