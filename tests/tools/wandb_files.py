"""What Weights & Biases has kept on disk, read from its files: blocks of records, as LevelDB writes a log."""

import importlib
import json
import struct
from pathlib import Path

_FILE_HEADER, _RECORD_HEADER, _BLOCK = 7, 7, 32768
_FULL, _LAST = 1, 4


def kept_points(folder: Path):
    """Every point of an experiment's offline runs, in the order in which they were sent."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    return [point for path in files for point in _points(path)]


def kept_config(folder: Path):
    """The options that came with the first run."""
    records = _records(next(folder.glob("wandb/offline-run-*/run-*.wandb")))
    run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    return {item.key: json.loads(item.value_json) for item in run.config.update}


def kept_ends(folder: Path):
    """Why each of the offline runs has ended, in their order."""
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    summaries = [r.summary for path in files for r in _records(path) if r.WhichOneof("record_type") == "summary"]
    return [json.loads(item.value_json) for each in summaries for item in each.update if item.key == "ended"]


def _points(path):
    for record in _records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(path):
    new_record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    content, place, begun = path.read_bytes(), _FILE_HEADER, b""
    while place + _RECORD_HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD_HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        place += _RECORD_HEADER
        begun += content[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            record = new_record()
            record.ParseFromString(begun)
            begun = b""
            yield record
