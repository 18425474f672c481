"""Which workers are replaced, when, and when the run ends: the one restart policy, without processes.

A worker that had done some work since its last start is replaced at once, however often: kills from outside, a machine
short of memory, an environment that crashes every hour. Failures *in a row*, without any work in between, point to a
cause that will not go away: they are answered with pauses that double, and in the end with giving up.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

LONGEST_PAUSE_S = 30.0


class Loss(NamedTuple):
    """How one incarnation ended."""

    in_setup: bool  # before its first step
    by_exception: bool  # its own, not a kill from outside
    retryable: bool  # no exception says that another try would end the same way
    has_worked: bool  # it did some of its work


class Verdict(enum.Enum):
    """What follows."""

    REPLACE = "replace"
    QUARANTINE = "quarantine"
    END = "end"


class Decision(NamedTuple):
    """What follows, and when."""

    verdict: Verdict
    pause_s: float = 0.0
    reason: str = ""  # why the run ends, or the worker is quarantined


class RestartLimits(NamedTuple):
    """The options; see `WorkersConfig` for their meaning."""

    failures_in_a_row: int = 3
    setup_retries: int = 2
    first_pause_s: float = 0.5
    quarantined_share: float = 0.5


class RestartPolicy:
    """Counts failures in a row per worker, and decides."""

    def __init__(self, limits: RestartLimits, num_actors: int) -> None:
        """No worker has failed yet."""
        self.limits = limits
        self._num_actors = num_actors
        self._in_a_row: dict[str, int] = {}
        self._setups_in_a_row: dict[str, int] = {}  # that raised, since the worker worked last
        self.quarantined: set[str] = set()

    def judge(self, name: str, loss: Loss, *, can_be_spared: bool, is_optional: bool = False) -> Decision:
        """What follows when worker `name` was lost.

        Args:
            name: of the worker.
            loss: how.
            can_be_spared: the run goes on without it, while enough of its kind are left.
            is_optional: the run goes on without it.
        """
        decision = self._judge(name, loss, can_be_spared=can_be_spared)
        if is_optional and decision.verdict is Verdict.END:
            return Decision(Verdict.QUARANTINE, reason=decision.reason or "it fails in the same way each time")
        return decision

    def _judge(self, name: str, loss: Loss, *, can_be_spared: bool) -> Decision:
        limits = self.limits
        failures = self._in_a_row[name] = 1 if loss.has_worked else self._in_a_row.get(name, 0) + 1
        if not loss.retryable or limits.failures_in_a_row == 0:
            return Decision(Verdict.END)
        has_raised_in_setup = loss.in_setup and loss.by_exception
        before = 0 if loss.has_worked else self._setups_in_a_row.get(name, 0)
        setups = self._setups_in_a_row[name] = before + has_raised_in_setup
        if has_raised_in_setup:
            # What builds the same thing from the same options will fail the same way; a simulator may be luckier.
            if not can_be_spared or setups > limits.setup_retries:
                return Decision(Verdict.END)
        elif failures > limits.failures_in_a_row:
            return self._quarantine(name, failures, can_be_spared=can_be_spared)
        return Decision(Verdict.REPLACE, self._pause(failures))

    def _quarantine(self, name: str, failures: int, *, can_be_spared: bool) -> Decision:
        reason = f"{failures} times in a row soon after its start"
        if not can_be_spared:
            return Decision(Verdict.END, reason=reason)
        quarantined = len(self.quarantined | {name})
        if quarantined > self.limits.quarantined_share * self._num_actors or quarantined == self._num_actors:
            so_far = f"; {len(self.quarantined)} of {self._num_actors} actors were quarantined before it"
            return Decision(Verdict.END, reason=reason + so_far)
        self.quarantined.add(name)
        return Decision(Verdict.QUARANTINE, reason=reason)

    def _pause(self, failures: int) -> float:
        if failures <= 1:
            return 0.0
        return min(LONGEST_PAUSE_S, self.limits.first_pause_s * 2.0 ** (failures - 2))
