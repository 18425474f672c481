"""Options that a single policy follows over its frames, as a population found them: `--schedule_file`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from appo.algorithms.messages import Command, PolicyRestored, Report, SetHyperparameters, SetRewardShaping
from appo.algorithms.population.schedule import ScheduleStep, values_at
from appo.algorithms.population.tuned import learning_values, reward_weights, shaping_values
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.run.controllers.requests import ChangeRequests
from appo.algorithms.run.population_files import schedule

log = logging.getLogger(__name__)


class Schedule(Controller):
    """Sets the options of policy 0 when their frames have come. Does nothing without a file."""

    def __init__(self, context: ControllerContext) -> None:
        """Reads the file.

        Raises:
            ConfigError: it cannot be used.
        """
        self._steps: list[ScheduleStep] = schedule(context.config)
        self._statistics = context.statistics
        self._requests = ChangeRequests(context.roster)
        self._in_force: dict[str, float] = {}

    def note(self, report: Report) -> None:
        """Hear of what was set, and of what is in force after a resume."""
        if isinstance(report, PolicyRestored) and report.policy == 0:
            self._in_force |= report.values
        if (answer := self._requests.note(report)) is not None:
            values = answer.command.values
            self._in_force |= values  # what is refused now will be so again
            if not answer.was_refused:
                _tell(values)

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """What is to be set now."""
        if snapshot.state != "training" or not self._steps or 0 in self._requests:
            return self._requests.due()
        values = values_at(self._steps, self._statistics.env_frames(0))
        changed = {name: value for name, value in values.items() if self._in_force.get(name) != value}
        commands: list[Command] = []
        if weights := shaping_values(changed):
            commands.append(SetRewardShaping(0, weights))
            self._in_force |= reward_weights(changed)
            _tell(reward_weights(changed))
        if options := learning_values(changed):
            self._requests.ask(SetHyperparameters(0, options))
        return [*commands, *self._requests.due()]


def _tell(values: Mapping[str, float]) -> None:
    log.info("schedule: %s", ", ".join(f"{name}={value:.4g}" for name, value in values.items()))
