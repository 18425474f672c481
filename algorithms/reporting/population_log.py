"""What population-based training did: a line in `pbt_history.jsonl` per decision, and `policy_<NN>.json` per policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from appo.utils.files import DiskFaults, JsonLines, atomic_write_json

HISTORY = "pbt_history.jsonl"
BEGIN, RESUME = "begin", "resume"  # kinds of rows, beside those of decisions


class PopulationLog:
    """Writes both; an error of the disk is survived and told."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the experiment. Files appear with what they tell."""
        self._folder = folder
        self._history = JsonLines(folder / HISTORY)
        self._disk_faults = DiskFaults()

    def decision(self, row: dict[str, Any]) -> None:
        """Add a decision to those of earlier starts."""
        with self._disk_faults.survived(HISTORY):
            self._history.append({"time": time.time()} | row)

    def resumed(self, policy: int, env_frames: int, state: dict[str, Any]) -> None:
        """What was told of this policy beyond these frames is lost: it goes on from an earlier checkpoint."""
        self.decision({"kind": RESUME, "policy": policy, "env_frames": env_frames, "state": state})

    def member(self, policy: int, state: dict[str, Any]) -> None:
        """Replace what is told of one policy."""
        name = f"policy_{policy:02d}.json"
        with self._disk_faults.survived(name):
            atomic_write_json(self._folder / name, state, durable=False)

    def close(self) -> None:
        """Close the file."""
        self._history.close()
