"""What is known of a sweep's trials: `sweep.json`, what the trials' own folders tell, and a table of both.

Options are stored as they are: `sweep_plan.checked_options` has let only such values in that JSON gives back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.run.config import METRICS_FILE, STATUS_FILE, SUMMARY_FILE
from appo.utils.files import atomic_write_json, read_json_lines
from appo.utils.options import ConfigError

STATE_FILE = "sweep.json"
WAITING, RUNNING, DONE, FAILED, REFUSED = "waiting", "running", "done", "failed", "refused"
STATES = (WAITING, RUNNING, DONE, FAILED, REFUSED)
# Reasons in summary.json of runs that ended because what they were to do was done.
_MET = ("reached ", "callback: ")


@dataclass
class Record:
    """One trial, as `sweep.json` has it."""

    options: dict[str, Any]
    state: str = WAITING
    failures: int = 0
    said: str = ""  # the last line of its last try that failed
    is_injected: bool = False
    varied: dict[str, Any] = field(default_factory=dict)  # what a search has chosen


class Result(NamedTuple):
    """What a trial's folder tells."""

    frames: int | None  # env frames so far
    minutes: float | None  # of training
    objective: float | None
    reason: str  # why it ended; empty while it has not

    def cost(self, kind: str) -> float | None:
        """What it has cost, in minutes or in frames."""
        return self.minutes if kind == "minutes" else self.frames


class Sweep(NamedTuple):
    """The whole of `sweep.json`."""

    objective: str
    direction: str
    records: dict[str, Record]
    cost: str = ""  # of a search that keeps it small as well: minutes or frames


def read_sweep(folder: Path) -> Sweep | None:
    """The state in a sweep's folder; None where no sweep has begun.

    Raises:
        ConfigError: it is damaged.
    """
    path = folder / STATE_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        records = {name: Record(**entry) for name, entry in document["trials"].items()}
        sweep = Sweep(document["objective"], document["direction"], records, document.get("cost", ""))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not what a sweep writes ({error!r}); move it aside: trials are found by their folders as well"
        ) from error
    return sweep


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Replace `sweep.json`.

    Raises:
        OSError: it could not be written; the old one is untouched.
    """
    trials = {name: dataclasses.asdict(record) for name, record in sweep.records.items()}
    document = {"objective": sweep.objective, "direction": sweep.direction, "cost": sweep.cost, "trials": trials}
    atomic_write_json(folder / STATE_FILE, document)


def result_of(folder: Path, objective: str, direction: str) -> Result:
    """What the files of a trial tell, while it runs or afterwards; of several policies, the best one counts."""
    summary = _document(folder / SUMMARY_FILE)
    told = summary or _document(folder / STATUS_FILE)
    values = _objectives(folder, told, objective)
    best = (max if direction == "maximize" else min)(values, default=None)
    seconds = _number(told.get("train_seconds"))
    frames = _number(told.get("env_frames"))
    return Result(
        None if frames is None else int(frames),
        None if seconds is None else seconds / 60.0,
        best,
        str(summary.get("reason", "")),
    )


def is_met(result: Result) -> bool:
    """The trial's run has done what it was to do."""
    return result.reason.startswith(_MET)


def in_order(sweep: Sweep, results: Mapping[str, Result]) -> list[str]:
    """Names of all trials, the best one first; those without an objective last, in the order of the plan."""
    sign = -1.0 if sweep.direction == "maximize" else 1.0

    def rank(name: str) -> float:
        value = results[name].objective
        return math.inf if value is None else sign * value

    return sorted(sweep.records, key=rank)


def front_of(sweep: Sweep, results: Mapping[str, Result]) -> set[str]:
    """Done trials than which no other is at least as good and at least as cheap, and one of both more so.

    Without a cost, none. `results` has those of all trials.
    """
    if not sweep.cost:
        return set()
    sign = 1.0 if sweep.direction == "maximize" else -1.0
    done = {
        name: (sign * results[name].objective, -cost)  # type: ignore[operator]  # not None
        for name, record in sweep.records.items()
        if record.state == DONE
        and results[name].objective is not None
        and (cost := results[name].cost(sweep.cost)) is not None
    }
    return {
        name
        for name, own in done.items()
        if not any(other != own and other[0] >= own[0] and other[1] >= own[1] for other in done.values())
    }


def table_of(
    sweep: Sweep, results: Mapping[str, Result], names: Iterable[str], front: Collection[str] = frozenset()
) -> Any:
    """A table for rich: a row per trial.

    Args:
        sweep: of the trials.
        results: of the named trials at least.
        names: of the trials to be shown.
        front: those that get a star, as `front_of` tells.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if front:
        table.caption = f"*: no other trial is both better and cheaper in {sweep.cost}"
    table.add_column("trial", overflow="fold")
    for column in ("state", "tries", "frames", sweep.objective, "minutes"):
        table.add_column(column, justify="left" if column == "state" else "right", no_wrap=True)
    for name in names:
        record, result = sweep.records[name], results[name]
        has_begun = record.state != WAITING or result.frames is not None
        tries = record.failures + (record.state not in (FAILED, REFUSED)) if has_begun else 0
        frames = "" if result.frames is None else f"{result.frames:,}"
        objective = "" if result.objective is None else f"{result.objective:.4g}"
        minutes = "" if result.minutes is None else f"{result.minutes:.2f}"
        table.add_row(f"{name} *" if name in front else name, record.state, str(tries), frames, objective, minutes)
    return table


def results_of(folder: Path, sweep: Sweep) -> dict[str, Result]:
    """The results of all trials by name."""
    return {name: result_of(folder / name, sweep.objective, sweep.direction) for name in sweep.records}


def counts(sweep: Sweep) -> str:
    """How many trials are in which state, in words."""
    states = [record.state for record in sweep.records.values()]
    return ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)


def last_line(path: Path) -> str:
    """The last line with something in it."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def clock() -> str:
    """The time of day, for a line that tells of something."""
    return time.strftime("%H:%M:%S")


def _objectives(folder: Path, told: Mapping[str, Any], objective: str) -> list[float]:
    if "/" in objective:
        found = _last_of_tag(folder / METRICS_FILE, objective)
    elif objective == "best":
        found = told.get("best", [])
    elif objective in ("reward", "true_reward"):
        found = [policy.get(f"avg_{objective}") for policy in told.get("policies", [])]
    else:
        found = [told.get(objective)]
    return [number for value in found if (number := _number(value)) is not None]


def _last_of_tag(path: Path, tag: str) -> list[Any]:
    """The newest value of a tag for each policy."""
    last: dict[Any, Any] = {}
    try:
        for record in read_json_lines(path):
            if record.get(tag) is not None:
                last[record.get("policy")] = record[tag]
    except OSError:
        return []
    return list(last.values())


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
