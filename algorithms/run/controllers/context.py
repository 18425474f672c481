"""What controllers are made from, and what the driver asks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.messages import Command, Report
from appo.algorithms.reporting.event_log import EventLog
from appo.algorithms.reporting.population_log import PopulationLog
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.statistics import Statistics
from appo.algorithms.train_config import TrainConfig, values_of
from appo.algorithms.workers.roster import Roster


class ControllerContext(NamedTuple):
    """The run that a controller decides about."""

    config: TrainConfig
    arrays: SharedArrays
    roster: Roster
    statistics: Statistics
    event_log: EventLog
    population_log: PopulationLog
    folder: Path  # of the experiment, absolute: environments may change the directory
    log_dir: Path
    run_state: Callable[[int], dict[str, Any]]  # policy -> what its checkpoints keep of the driver and the workers
    callback: Any = None  # the user's own object; None: there is none

    def options(self) -> dict[str, Any]:
        """Every option of the run by name."""
        return values_of(self.config)


class Controller(Protocol):
    """Decides one thing while a run goes on; carries nothing out itself."""

    def note(self, report: Report) -> None:
        """Take a report in; every controller is given every report."""

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """What is to be done now; asked about ten times a second, after the reports.

        Raises:
            RunFailed: the run cannot go on.
        """

    def end(self, last: RunSnapshot) -> None:
        """The run has ended as `last` says; the experiment's files are still open. Called once, also after a failure.

        Args:
            last: after the last reports. "starting": the run ended before every policy knew where it begins, so its
                numbers are not those of the experiment.
        """
        del last

    def ended_by(self) -> str:
        """Why the run should end now; empty: it goes on."""
        return ""

    def state(self, policy: int) -> dict[str, Any]:
        """What checkpoints of a policy keep of this, by names of its own; comes back in `PolicyRestored.run_state`."""
        del policy
        return {}

    def scalars(self, policy: int) -> dict[str, float]:
        """Tags of a policy, for its curves."""
        del policy
        return {}
