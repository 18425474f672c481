"""Where checkpoints lie, what their names tell, and which files of a folder are some; nothing is opened here."""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

OPPONENT = "opponent"
KINDS = ("latest", "best", "milestone", OPPONENT)
_FOLDERS = {"milestone": "milestones", OPPONENT: "opponents"}
_NAME = re.compile(r"(checkpoint|best)_([0-9]+)_([0-9]+)(?:_(.+))?\.pth")
_UNFIT_FOR_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL = 60


class Named(NamedTuple):
    """What a name tells; it may lie, which `checkpoints.load` finds out."""

    path: Path
    steps: tuple[int, int]  # train step, frames
    label: str  # of the metric by which it is the best; empty for other kinds
    value: float  # of that metric; -inf where the name has none


def file_name(head: dict[str, Any]) -> str:
    """Padded with zeros, so that names sort as numbers do."""
    steps = f"{head['train_step']:012d}_{head['env_steps']:015d}"
    if head["kind"] != "best":
        return f"checkpoint_{steps}.pth"
    if math.isnan(head["metric"]):
        return f"best_{steps}.pth"
    words = ["best", steps, label_of(head["metric_name"]), _told(head["metric"])]
    return "_".join(filter(None, words)) + ".pth"


def label_of(metric_name: str) -> str:
    """How the name of a metric appears in names of files: the same for no two metrics."""
    label = _UNFIT_FOR_A_NAME.sub("-", metric_name)[:_LONGEST_LABEL]
    return label if label == metric_name else f"{label}-{zlib.crc32(metric_name.encode()):08x}"


def list_named(folder: Path, kind: str) -> list[Named]:
    """The files of a kind, newest first; files with other names are left out."""
    prefix = "best" if kind == "best" else "checkpoint"
    found = (_named(path) for path in folder_of(folder, kind).glob(f"{prefix}_*.pth"))
    return sorted((named for named in found if named is not None), key=lambda named: named.steps, reverse=True)


def list_best(folder: Path, metric_name: str) -> list[Named]:
    """Best checkpoints: those by this metric first, the best of them first; then the others, newest first."""
    label, everything = label_of(metric_name), list_named(folder, "best")
    by_metric = [named for named in everything if named.label == label]
    others = [named for named in everything if named.label != label]
    return sorted(by_metric, key=lambda named: (named.value, named.steps), reverse=True) + others


def policy_folder(experiment: Path, policy: int) -> Path:
    """Where the checkpoints of a policy lie in the folder of its experiment."""
    return experiment / f"checkpoint_p{policy}"


def folder_of(folder: Path, kind: str) -> Path:
    """Where files of a kind lie.

    Raises:
        ValueError: there is no such kind.
    """
    require_known(kind)
    return folder / _FOLDERS.get(kind, "")


def steps_of(path: Path) -> tuple[int, int]:
    """Train step and frames, as the name of a checkpoint tells them.

    Raises:
        ValueError: it is no name of one.
    """
    named = _named(path)
    if named is None:
        raise ValueError(f"{path} has no name of a checkpoint")
    return named.steps


def require_known(kind: str) -> None:
    """Refuse a kind that does not exist.

    Raises:
        ValueError: with the kinds that do.
    """
    if kind not in KINDS:
        raise ValueError(f"checkpoint kind {kind!r}; allowed: {', '.join(KINDS)}")


def _named(path: Path) -> Named | None:
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    label, _, value = (match[4] or "").rpartition("_")
    return Named(path, (int(match[2]), int(match[3])), label, _number(value))


def _told(metric: float) -> str:
    return f"{metric:.3f}" if abs(metric) < 1e12 else f"{metric:.6g}"


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return -math.inf
    return -math.inf if math.isnan(number) else number
