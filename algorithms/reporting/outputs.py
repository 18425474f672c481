"""Where a run writes its numbers, and what a writer of them has to offer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from appo.algorithms.reporting.snapshot import RunSnapshot


class OutputFiles(NamedTuple):
    """Paths in an experiment's folder; none of them has to exist."""

    events: tuple[Path, ...]  # folder of TensorBoard events, per policy
    metrics: Path
    status: Path
    summary: Path
    timing: Path
    options: Mapping[str, Any] = MappingProxyType({})  # every option of the run, as config.json has them


class Sink(Protocol):
    """Writes snapshots, each kind of sink in its own way and at its own pace.

    An error of the disk is survived and told; it ends neither the run nor the sink.
    """

    def write(self, snapshot: RunSnapshot) -> None:
        """Take a snapshot, about ten a second; the last one has the state "ended"."""

    def close(self) -> None:
        """Close what is open."""
