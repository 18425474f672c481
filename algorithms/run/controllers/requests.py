"""Commands to learners that are repeated until they are answered: a learner that is lost loses those it was sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from appo.algorithms.messages import (
    AdoptionRefused,
    AdoptPolicy,
    Command,
    HyperparametersChanged,
    HyperparametersRefused,
    PolicyAdopted,
    Report,
    SetHyperparameters,
    WorkerReady,
)
from appo.algorithms.workers.roster import LEARNER, Roster

ASK_AGAIN_S = 30.0

Change = SetHyperparameters | AdoptPolicy


class Answer(NamedTuple):
    """A command was carried out, or refused."""

    command: Change
    was_refused: bool


class _Open(NamedTuple):
    command: Change
    ask_again: float  # at this moment


class ChangeRequests:
    """At most one change of each policy that is under way."""

    def __init__(self, roster: Roster) -> None:
        """Begins with none."""
        self._roster = roster
        self._open: dict[int, _Open] = {}

    def __contains__(self, policy: int) -> bool:
        return policy in self._open

    def ask(self, command: Change) -> None:
        """Let `due` send it."""
        self._open[command.policy] = _Open(command, 0.0)

    def note(self, report: Report) -> Answer | None:
        """What a report says about a command that is under way."""
        match report:
            case HyperparametersChanged() | HyperparametersRefused() | PolicyAdopted() | AdoptionRefused():
                found = self._open.get(report.policy)
                if found is None or not _is_answer(report, found.command):
                    return None
                del self._open[report.policy]
                return Answer(found.command, isinstance(report, HyperparametersRefused | AdoptionRefused))
            case WorkerReady():
                worker = self._roster.named(report.worker)
                if worker is not None and worker.kind == LEARNER and worker.policy in self._open:
                    self._open[worker.policy] = self._open[worker.policy]._replace(ask_again=0.0)
        return None

    def due(self) -> Sequence[Command]:
        """What is to be sent now, for the first time or again."""
        now, commands = time.monotonic(), []
        for policy, found in self._open.items():
            if now >= found.ask_again:
                commands.append(found.command)
                self._open[policy] = found._replace(ask_again=now + ASK_AGAIN_S)
        return commands


def _is_answer(
    report: HyperparametersChanged | HyperparametersRefused | PolicyAdopted | AdoptionRefused, command: Change
) -> bool:
    """Whether a report is about this command, and not about an earlier one."""
    if isinstance(report, PolicyAdopted | AdoptionRefused):
        return isinstance(command, AdoptPolicy) and command.request == report.request
    return isinstance(command, SetHyperparameters) and command.values == report.values
