"""What became of the policies of a run, beside their curves.

`pbt_history.jsonl` has a line per decision of population-based training, `policy_<NN>.json` what a policy has now.
`self_play.json` has who beat whom how often, and ratings.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from appo.algorithms.population.ratings import SELF_PLAY
from appo.utils.files import DiskFaults, JsonLines, atomic_write_json

HISTORY = "pbt_history.jsonl"
BEGIN, RESUME = "begin", "resume"  # kinds of rows, beside those of decisions


class PopulationLog:
    """Writes them; an error of the disk is survived and told."""

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

    def matches(self, content: dict[str, Any]) -> None:
        """Replace what is told of matches."""
        with self._disk_faults.survived(SELF_PLAY):
            atomic_write_json(self._folder / SELF_PLAY, content, durable=False)

    def close(self) -> None:
        """Close the file."""
        self._history.close()
