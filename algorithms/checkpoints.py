"""Checkpoints: written in one step, verified before anything in them is used, never deleted unless replaced.

A file is a `torch.save` archive followed by a trailer, MAGIC and the SHA-256 of the archive; `torch.load` reads it as
it stands. Name and content say the same thing twice (kind, train step, frames), so a renamed file is recognised.
Content is tensors and plain values only, and reading it executes nothing.

One learner at a time writes to a folder::

    checkpoint_<train_step>_<env_steps>.pth           kind "latest": the newest few
    best_<train_step>_<env_steps>[_<metric>].pth      kind "best": the newest one
    milestones/checkpoint_<train_step>_<env_steps>.pth    kind "milestone": all of them
    superseded/                                       files of a later train step than the run went on from
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from utils.failpoints import failpoint
from utils.files import anonymous_file, atomic_write, remove_temporaries

KINDS = ("latest", "best", "milestone")
_MAGIC = b"APPOckp1"
_REMEDY = "put back a copy, or begin anew with --restart_behavior=restart, which keeps the files"
_PIECE_BYTES = 2**20  # that a file is copied in
_TRAILER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_PLAIN = (type(None), bool, int, float, str, bytes)
# What a training checkpoint holds.
_PARTS = {"model": dict, "learner": dict, "run_state": dict}
# Part of a network -> what decides about its shapes.
_SHAPED_BY = {
    "encoder": "--encoder, --mlp_layers, --hidden_size, --encoder_extra_fc_layers, --use_spectral_norm, "
    "--actor_critic_share_weights, or what the environment observes",
    "core": "--use_rnn, --rnn_type, --rnn_num_layers, --hidden_size, --actor_critic_share_weights",
    "policy_head": "--hidden_size, --adaptive_stddev, or the actions of the environment",
    "value_head": "--hidden_size",
    "preprocessor": "--normalize_input, or what the environment observes",
    "returns_normalizer": "--normalize_returns",
}


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read or trusted. The message says what is untouched and what would work."""

    is_final = True  # for whoever decides about a restart


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
    env_steps: int
    metric: float  # as given to `save`


def save(
    folder: Path,
    kind: str,
    train_step: int,
    env_steps: int,
    payload: dict[str, Any],
    *,
    keep: int = 3,
    metric: float = math.nan,
) -> Path:
    """`encode` and `write` in one go; see there."""
    return write(folder, encode(kind, train_step, env_steps, payload, metric=metric), keep=keep)


def encode(kind: str, train_step: int, env_steps: int, payload: dict[str, Any], *, metric: float = math.nan) -> Encoded:
    """Copy everything that a checkpoint holds, so that it can be written while training goes on.

    Args:
        kind: "latest", "best" or "milestone".
        train_step: Optimizer steps so far.
        env_steps: Environment frames so far.
        payload: Tensors, plain values, and lists, tuples and dicts of them.
        metric: What makes a best checkpoint the best; NaN leaves it out of the file's name.

    Raises:
        TypeError: the payload holds what could not be read again.
        CheckpointError: there is no room for the copy.
    """
    _require_known(kind)
    _require_plain(payload, "payload")
    head = {"kind": kind, "train_step": train_step, "env_steps": env_steps, "metric": float(metric)}
    try:
        return Encoded(head, Archive(head | {"payload": payload}))
    except (OSError, RuntimeError) as error:  # torch's own, when what it writes to is full
        reason = f"{_file_name(head)} could not be written ({_first_line(error)}); the older checkpoints are untouched"
        raise CheckpointError(reason) from error


def write(folder: Path, encoded: Encoded, *, keep: int = 3) -> Path:
    """Write a checkpoint; once it is safely on disk, remove the ones that it replaces.

    Args:
        folder: Of one policy; made when it is missing.
        encoded: What to write.
        keep: How many of kind "latest" stay.

    Raises:
        CheckpointError: it could not be written; the older ones are untouched.
    """
    path = _folder_of(folder, encoded.kind) / _file_name(encoded.head)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(path.parent)
        atomic_write(path, _parts(encoded.archive), before_rename=lambda: failpoint("checkpoint-before-rename"))
    except OSError as error:
        raise CheckpointError(f"{path} could not be written ({error}); the older checkpoints are untouched") from error
    failpoint("checkpoint-after-rename")
    with contextlib.suppress(OSError):  # the new one is safe; what stays too long costs only space
        _retire(folder, encoded.kind, path, keep)
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
        payload, name = record["payload"], _file_name(head)
    except Exception as error:  # the unpickler raises whatever a crafted file provokes
        raise CheckpointError(f"{path} is no checkpoint of this program ({_first_line(error)})") from error
    if not isinstance(payload, dict) or path.name != name:
        raise CheckpointError(f"{path} is another checkpoint under a wrong name; its own is {name}")
    return Checkpoint(payload, path, [], head["train_step"], head["env_steps"], head["metric"])


def load_newest_valid(folder: Path, kind: str = "latest") -> Checkpoint | None:
    """The newest checkpoint of a kind that can be trusted; None when the folder has none at all.

    For "best", the newest ordinary checkpoint is taken where no best one can be read, and for "latest" the best one,
    which is all there is when a run was killed early; either with a warning.

    Raises:
        CheckpointError: there are checkpoints, but none of this kind can be read. Starting from nothing would
            bury them.
    """
    candidates = list_checkpoints(folder, kind)
    other = {"best": "latest", "latest": "best"}.get(kind)
    if other:
        candidates += list_checkpoints(folder, other)
    warnings: list[str] = []
    for path in candidates:
        try:
            found = load(path)
        except CheckpointError as error:
            warnings.append(str(error))
            continue
        if kind == "best" and not path.name.startswith("best_"):
            warnings.append(f"{folder} has no best checkpoint that can be read; {path.name} is used")
        if kind == "latest" and path.name.startswith("best_"):
            warnings.append(f"{folder} has no ordinary checkpoint that can be read; {path.name} is used")
        return found._replace(warnings=warnings)
    others = [path for each in KINDS for path in list_checkpoints(folder, each) if path not in candidates]
    if not candidates and not others:
        return None
    raise CheckpointError(_none_left(folder, kind, warnings, others))


def list_checkpoints(folder: Path, kind: str = "latest") -> list[Path]:
    """The files of a kind, newest first; by name only, unverified."""
    prefix = "best" if kind == "best" else "checkpoint"
    found = [path for path in _folder_of(folder, kind).glob(f"{prefix}_*.pth") if _steps(path) is not None]
    return sorted(found, key=lambda path: _steps(path) or (0, 0), reverse=True)


def is_intact(path: Path) -> bool:
    """The file is whole and unchanged since it was written; says nothing about what is in it."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size - _TRAILER_BYTES
            while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
                digest.update(piece)
                left -= len(piece)
            return file.read() == _MAGIC + digest.digest()
    except OSError:
        return False


def require_fit(found: Checkpoint, own: Mapping[str, torch.Tensor]) -> None:
    """Refuse a checkpoint of another network than the one whose tensors are `own`.

    Raises:
        CheckpointError: names the first tensor that differs, and the options that decide about it.
    """
    for part, kind in _PARTS.items():
        if not isinstance(found.payload.get(part), kind):
            raise CheckpointError(f"{found.path} holds no {part!r}, so training cannot go on from it; {_REMEDY}")
    saved = found.payload["model"]
    for name in dict.fromkeys([*own, *saved]):  # each once, in the order of the network
        theirs, ours = _shape(saved, name), _shape(own, name)
        if theirs != ours:
            options = next((options for part, options in _SHAPED_BY.items() if part in name), "the model's")
            raise CheckpointError(
                f"{found.path} is of another network: {name} is {theirs} there and {ours} with the options in force; "
                f"compare {options}. Nothing was changed; leave out the options that differ from training, or {_REMEDY}"
            )


def _shape(tensors: Mapping[str, Any], name: str) -> str:
    if name not in tensors:
        return "missing"
    return str(tuple(tensors[name].shape)) if isinstance(tensors[name], torch.Tensor) else "no tensor"


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


def _retire(folder: Path, kind: str, newest: Path, keep: int) -> None:
    """Remove what `newest` replaces. What cannot be read is never removed, and does not count as kept."""
    if kind == "milestone":
        return
    kept = 1
    for path in list_checkpoints(folder, kind):
        if path == newest:
            continue
        if (_steps(path) or (0, 0)) > (_steps(newest) or (0, 0)):
            # The run went on from an older checkpoint than this. Were it left, the next resume would jump to it.
            _move_aside(path)
        elif is_intact(path):
            if kept >= (1 if kind == "best" else keep):
                path.unlink()
            else:
                kept += 1


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
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    archive, trailer = content[:-_TRAILER_BYTES], content[-_TRAILER_BYTES:]
    if len(trailer) < _TRAILER_BYTES or trailer[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(f"{path} is empty, cut off, or no checkpoint of this program ({len(content)} bytes)")
    if hashlib.sha256(archive).digest() != trailer[len(_MAGIC) :]:
        raise CheckpointError(f"{path} is damaged: its content does not match its checksum")
    return archive


def _require_known(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"checkpoint kind {kind!r}; allowed: {', '.join(KINDS)}")


def _folder_of(folder: Path, kind: str) -> Path:
    _require_known(kind)
    return folder / "milestones" if kind == "milestone" else folder


def _file_name(head: dict[str, Any]) -> str:
    """Padded with zeros, so that names sort as numbers do."""
    steps = f"{head['train_step']:012d}_{head['env_steps']:015d}"
    if head["kind"] == "best":
        return f"best_{steps}.pth" if math.isnan(head["metric"]) else f"best_{steps}_{head['metric']:.3f}.pth"
    return f"checkpoint_{steps}.pth"


def _steps(path: Path) -> tuple[int, int] | None:
    """(train step, frames) that a file's name tells; None for a file of somebody else's."""
    words = path.stem.split("_")
    if len(words) < 3 or not (words[1].isdigit() and words[2].isdigit()):
        return None
    return int(words[1]), int(words[2])


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


def _none_left(folder: Path, kind: str, warnings: list[str], others: list[Path]) -> str:
    reasons = "; ".join(warnings) if warnings else f"there is none of kind {kind!r}"
    if others:
        remedy = f"there is {others[0]}: try --load_checkpoint_kind=best, or copy a milestone into the folder"
    else:
        remedy = _REMEDY
    return f"no checkpoint in {folder} can be used: {reasons}. Nothing was changed; {remedy}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
