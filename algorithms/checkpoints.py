"""Checkpoints: written in one step, verified before anything in them is used, never deleted unless replaced.

A file is a `torch.save` archive followed by a trailer, MAGIC and the SHA-256 of the archive; `torch.load` reads it as
it stands. Name and content say the same thing twice (kind, train step, frames), so a renamed file is recognised.
Content is tensors and plain values only, and reading it executes nothing.

One learner at a time writes to a folder::

    checkpoint_<train_step>_<env_steps>.pth           kind "latest": the newest few
    best_<train_step>_<env_steps>_<metric>_<value>.pth    kind "best": the best one by each metric
    milestones/checkpoint_<train_step>_<env_steps>.pth    kind "milestone": all of them
    opponents/checkpoint_<train_step>_<env_steps>.pth     kind "opponent": networks alone, as --self_play keeps them
    superseded/                                       files of a later train step than the run went on from
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from appo.algorithms.checkpoint_names import (
    KINDS,
    OPPONENT,
    Named,
    file_name,
    folder_of,
    label_of,
    list_best,
    list_named,
    require_known,
)
from appo.utils.failpoints import failpoint
from appo.utils.files import anonymous_file, atomic_write, remove_temporaries
from appo.utils.options import Refusal

_MAGIC = b"APPOckp1"
# What to do when no checkpoint can be used.
REMEDY = "put back a copy"
OR_BEGIN_ANEW = ", or begin anew with --restart_behavior=restart, which keeps the files"
_PIECE_BYTES = 2**20  # that a file is copied in
_TRAILER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_PLAIN = (type(None), bool, int, float, str, bytes)


class CheckpointError(Refusal, RuntimeError):
    """A checkpoint cannot be written, read or trusted. The message says what is untouched and what would work."""


class Archive:
    """What `torch.save` makes of a record, in a file without a name that goes with this object.

    In the memory of the process that trains, it would leave a hole of its size there for good.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self._descriptor = anonymous_file("checkpoint")
        weakref.finalize(self, os.close, self._descriptor)
        with os.fdopen(os.dup(self._descriptor), "wb") as file:
            torch.save(record, file)
        self.size = os.fstat(self._descriptor).st_size

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from start to end, in order."""
        while piece := os.pread(self._descriptor, min(_PIECE_BYTES, end - start), start):
            start += len(piece)
            yield piece


class Encoded(NamedTuple):
    """A checkpoint to be written: nothing in it changes any more, whatever becomes of the tensors it was made from."""

    head: dict[str, Any]
    archive: Archive

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return str(self.head["kind"])


class Checkpoint(NamedTuple):
    """A checkpoint that was verified."""

    payload: dict[str, Any]
    path: Path
    warnings: list[str]  # newer checkpoints that were passed over, and why
    train_step: int
    env_frames: int
    metric: float  # as given to `save`
    metric_name: str


def save(
    folder: Path,
    kind: str,
    train_step: int,
    env_frames: int,
    payload: dict[str, Any],
    *,
    keep: int = 3,
    metric: float = math.nan,
    metric_name: str = "",
) -> Path:
    """`encode` and `write` in one go; see there."""
    encoded = encode(kind, train_step, env_frames, payload, metric=metric, metric_name=metric_name)
    return write(folder, encoded, keep=keep)


def encode(
    kind: str,
    train_step: int,
    env_frames: int,
    payload: dict[str, Any],
    *,
    metric: float = math.nan,
    metric_name: str = "",
) -> Encoded:
    """Copy everything that a checkpoint holds, so that it can be written while training goes on.

    Args:
        kind: one of `KINDS`.
        train_step: Optimizer steps so far.
        env_frames: Environment frames so far.
        payload: Tensors, plain values, and lists, tuples and dicts of them.
        metric: What makes a best checkpoint the best; NaN leaves it out of the file's name.
        metric_name: What that number is; best checkpoints by several metrics lie side by side.

    Raises:
        TypeError: the payload holds what could not be read again.
        CheckpointError: there is no room for the copy.
    """
    require_known(kind)
    _require_plain(payload, "payload")
    head = {"kind": kind, "train_step": train_step, "env_steps": env_frames, "metric": float(metric)}
    head["metric_name"] = metric_name
    try:
        return Encoded(head, Archive(head | {"payload": payload}))
    except (OSError, RuntimeError) as error:  # torch's own, when what it writes to is full
        reason = f"{file_name(head)} could not be written ({_first_line(error)}); the older checkpoints are untouched"
        raise CheckpointError(reason) from error


def write(folder: Path, encoded: Encoded, *, keep: int) -> Path:
    """Write a checkpoint; once it is safely on disk, remove the ones that it replaces.

    Args:
        folder: Of one policy; made when it is missing.
        encoded: What to write.
        keep: How many of kind "latest" stay.

    Raises:
        CheckpointError: it could not be written; the older ones are untouched.
    """
    path = folder_of(folder, encoded.kind) / file_name(encoded.head)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(path.parent)
        atomic_write(path, _parts(encoded.archive), before_rename=lambda: failpoint("checkpoint-before-rename"))
    except OSError as error:
        raise CheckpointError(f"{path} could not be written ({error}); the older checkpoints are untouched") from error
    failpoint("checkpoint-after-rename")
    with contextlib.suppress(OSError):  # the new one is safe; what stays too long costs only space
        _retire(folder, encoded, path, keep)
    return path


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, verified.

    Raises:
        CheckpointError: the file is missing, damaged, renamed, or holds more than tensors and plain values.
    """
    content = _verified_archive(path)
    try:
        record = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        head = {name: record[name] for name in ("kind", "train_step", "env_steps", "metric")}
        head["metric_name"] = record.get("metric_name", "")
        payload, name = record["payload"], file_name(head)
    except Exception as error:  # the unpickler raises whatever a crafted file provokes
        raise CheckpointError(f"{path} is no checkpoint of this program ({_first_line(error)})") from error
    if not isinstance(payload, dict) or path.name != name:
        raise CheckpointError(f"{path} is another checkpoint under a wrong name; its own is {name}")
    return Checkpoint(payload, path, [], *(head[name] for name in ("train_step", "env_steps", "metric", "metric_name")))


def load_newest_valid(
    folder: Path,
    kind: str = "latest",
    *,
    metric_name: str = "",
    why_unusable: Callable[[Checkpoint], str] = lambda found: "",
) -> Checkpoint | None:
    """The newest checkpoint of a kind that can be trusted; None when the folder has none at all.

    Args:
        folder: Of one policy.
        kind: "latest" is whichever was written last, be it an ordinary or a best one; for "best", the newest ordinary
            one is taken where no best one can be read, with a warning.
        metric_name: Of several best checkpoints, the one by this metric comes first.
        why_unusable: What else is wrong with one that was verified, in words; empty when nothing is.

    Raises:
        CheckpointError: there are checkpoints, but none of this kind can be read. Starting from nothing would
            bury them.
        ValueError: there is no such kind.
    """
    require_known(kind)
    candidates = _candidates(folder, kind, metric_name)
    warnings: list[str] = []
    for path in candidates:
        try:
            found = load(path)
            if reason := why_unusable(found):
                raise CheckpointError(f"{path} cannot be resumed from: {reason}")
        except CheckpointError as error:
            warnings.append(str(error))
            continue
        if kind == "best" and not path.name.startswith("best_"):
            warnings.append(f"{why_no_best(folder)}; {path.name}, the newest, is used")
        return found._replace(warnings=warnings)
    resumable = [each for each in KINDS if each != OPPONENT]
    others = [path for each in resumable for path in list_checkpoints(folder, each) if path not in candidates]
    if not candidates and not others:
        return None
    raise _none_left(folder, kind, warnings, others)


def why_no_best(folder: Path) -> str:
    """Why a policy's best checkpoint cannot be taken, in words."""
    if list_checkpoints(folder, "best"):
        return f"{folder} has no best checkpoint that can be read"
    return f"{folder} has no best checkpoint yet: one is kept from --save_best_after frames and --stats_avg episodes on"


def best_metric(folder: Path, metric_name: str, up_to: Checkpoint, why_unusable: Callable[[Checkpoint], str]) -> float:
    """The metric of the best checkpoint by it that can be used and is not newer than `up_to`; NaN: there is none.

    Newer ones belong to a future that the run does not go on from; the next checkpoint moves them aside.
    """
    for named in list_best(folder, metric_name):
        if named.label != label_of(metric_name) or named.steps > (up_to.train_step, up_to.env_frames):
            continue
        with contextlib.suppress(CheckpointError):  # told of where it was looked for
            found = load(named.path)
            if not why_unusable(found):
                return found.metric
    return math.nan


def list_checkpoints(folder: Path, kind: str = "latest") -> list[Path]:
    """The files of a kind, newest first; by name only, unverified."""
    return [named.path for named in list_named(folder, kind)]


def _candidates(folder: Path, kind: str, metric_name: str) -> list[Path]:
    """What a run of this kind may begin with, in the order in which they are tried."""
    is_kept_for_good = kind in ("milestone", OPPONENT)
    ordinary = list_named(folder, kind if is_kept_for_good else "latest")
    if is_kept_for_good:
        return [named.path for named in ordinary]
    best = list_best(folder, metric_name)
    if kind == "best":
        return [named.path for named in best + ordinary]
    # Of two at the same step, the ordinary one: the sort keeps their order.
    return [named.path for named in sorted(ordinary + best, key=lambda named: named.steps, reverse=True)]


def is_intact(path: Path) -> bool:
    """The file is whole and unchanged since it was written; says nothing about what is in it."""
    digest = hashlib.sha256()
    try:
        with _open_file(path) as file:
            left = os.fstat(file.fileno()).st_size - _TRAILER_BYTES
            while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
                digest.update(piece)
                left -= len(piece)
            return file.read() == _MAGIC + digest.digest()
    except OSError:
        return False


def where_not_finite(value: Any, where: str) -> str | None:
    """The first floating-point tensor within `value` that holds an infinity or a NaN, in words; None: there is none."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or bool(torch.isfinite(value).all()):
            return None
        return f"{where} has {int((~torch.isfinite(value)).sum())} of {value.numel()} numbers that are not finite"
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    found = (where_not_finite(entry, f"{where}[{key!r}]") for key, entry in entries)
    return next(filter(None, found), None)


def _parts(archive: Archive) -> Iterator[bytes]:
    digest, half = hashlib.sha256(), archive.size // 2
    for start, end in ((0, half), (half, archive.size)):
        for piece in archive.pieces(start, end):
            digest.update(piece)
            yield piece
        if end == half:
            failpoint("checkpoint-half-written")
    yield _MAGIC
    yield digest.digest()
    failpoint("checkpoint-before-fsync")


def _retire(folder: Path, written: Encoded, path: Path, keep: int) -> None:
    """Remove what the file at `path` replaces. What cannot be read is never removed, and does not count as kept."""
    if written.kind in ("milestone", OPPONENT):
        return
    both = list_named(folder, "latest") + list_named(folder, "best")
    newest = next((named for named in both if named.path == path), None)
    if newest is None:  # it was removed meanwhile
        return
    for named in both:
        if named.steps > newest.steps:
            # The run went on from an older checkpoint than this. Were it left, the next resume would jump to it.
            _move_aside(named.path)
    kept = 1
    for named in list_named(folder, written.kind):
        if named != newest and named.steps <= newest.steps and is_intact(named.path):
            if _is_replaced(named, newest) if written.kind == "best" else kept >= keep:
                named.path.unlink()
            else:
                kept += 1


def _is_replaced(older: Named, newest: Named) -> bool:
    """A best checkpoint by another metric stays, and so does a better one."""
    return older.label == newest.label and older.value <= newest.value


def _move_aside(path: Path) -> None:
    aside = path.parent / "superseded"
    aside.mkdir(exist_ok=True)
    target, number = aside / path.name, 1
    while target.exists():
        number += 1
        target = aside / f"{path.name}.{number}"
    path.rename(target)


def _verified_archive(path: Path) -> memoryview:
    try:
        with _open_file(path) as file:
            content = memoryview(file.read())
    except (OSError, MemoryError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    archive, trailer = content[:-_TRAILER_BYTES], content[-_TRAILER_BYTES:]
    if len(trailer) < _TRAILER_BYTES or trailer[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(f"{path} is empty, cut off, or no checkpoint of this program ({len(content)} bytes)")
    if hashlib.sha256(archive).digest() != trailer[len(_MAGIC) :]:
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum")
    return archive


def _open_file(path: Path) -> BinaryIO:
    """Open what is a file: a pipe would wait for a writer, and a device may do anything.

    Raises:
        OSError: it is none, or cannot be opened.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _require_plain(value: Any, where: str) -> None:
    """What `torch.load(weights_only=True)` would refuse is refused before it is written."""
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return
    if isinstance(value, dict):
        for key, entry in value.items():
            _require_plain(key, f"a key of {where}")
            _require_plain(entry, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for index, entry in enumerate(value):
            _require_plain(entry, f"{where}[{index}]")
    else:
        raise TypeError(f"{where} is a {type(value).__name__}; checkpoints hold tensors and plain Python values")


def _none_left(folder: Path, kind: str, warnings: list[str], others: list[Path]) -> CheckpointError:
    reasons = "; ".join(warnings) if warnings else f"there is none of kind {kind!r}"
    told = f"no checkpoint in {folder} can be used: {reasons}. Nothing was changed; "
    if others:  # milestones: for a kind that a run goes on from, all else has been tried
        return CheckpointError(f"{told}copy a milestone into the folder, such as {others[0]}")
    return CheckpointError(told + REMEDY, OR_BEGIN_ANEW)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
