"""Nothing moves any more, although every process shows signs of life: since when, and whom does everybody wait for?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from algorithms.memory.blocks import BlockState, block_states
from algorithms.memory.counters import Phase
from algorithms.memory.layout import SharedArrays
from algorithms.workers.restarts import Kind


class Stall(NamedTuple):
    """What has not moved for too long."""

    what: str
    stage: str  # what everybody waits for
    culprits: Kind
    in_a_row: int  # 2 and more: replacing them has not helped


class Watchdog:
    """Looks at frames and policy versions now and then."""

    def __init__(self, arrays: SharedArrays, timeout_s: float, now: float, *, grace_s: float, learns: bool) -> None:
        """`grace_s`: how long the first frame may take; `learns`: there are policy versions to wait for."""
        self._arrays = arrays
        self._timeout_s = timeout_s
        self._grace_s = max(timeout_s, grace_s)
        self._learns = learns
        self._frames = self._versions = -1
        self._frames_moved = self._versions_moved = now
        self._frame_stalls = self._version_stalls = 0

    def look(self, now: float) -> Stall | None:
        """What has not moved for the time allowed; told once per that time."""
        frames = int(self._arrays["env_frames"].sum())
        # A learner that takes blocks is alive, however long it takes to fill its batch.
        versions = int(self._arrays["train_steps"].sum()) + int(self._arrays["taking_sequence"].sum())
        if frames != self._frames:
            self._frames, self._frames_moved, self._frame_stalls = frames, now, 0
        elif not frames and self._some_actor_builds():
            self._frames_moved = now  # each environment in its own time, which the supervisor watches
        if versions != self._versions:
            self._versions, self._versions_moved, self._version_stalls = versions, now, 0
        timeout_s = self._timeout_s if frames else self._grace_s
        if now - self._frames_moved > timeout_s:
            self._frames_moved = self._versions_moved = now  # versions cannot come without frames
            self._frame_stalls += 1
            culprits, stage = _who_holds_frames_up(self._arrays)
            return Stall(f"no environment frame for {timeout_s:g} s", stage, culprits, self._frame_stalls)
        if self._learns and now - self._versions_moved > self._timeout_s and self._is_learner_s(now):
            self._versions_moved = now
            self._version_stalls += 1
            stage = "environments are stepped, and a learner does not learn from it"
            what = f"no new policy version for {self._timeout_s:g} s"
            return Stall(what, stage, Kind.LEARNER, self._version_stalls)
        return None

    def _some_actor_builds(self) -> bool:
        phases, given_up = self._arrays["phase"][: self._arrays.sizes.actors], self._arrays["quarantined"]
        return bool(((phases == Phase.RESET) & (given_up == 0)).any())

    def _is_learner_s(self, now: float) -> bool:
        """Versions are overdue: frames still come, and there is something to learn from. Else frames will tell more."""
        has_work = bool((block_states(self._arrays) >= BlockState.READY).any())
        return has_work and now - self._frames_moved < self._timeout_s / 2.0


def _who_holds_frames_up(arrays: SharedArrays) -> tuple[Kind, str]:
    asked = arrays["asked"] > arrays["answered"].min(axis=0)  # [A, S]
    if asked.any():
        if not arrays["policy_begun"].all():
            return Kind.LEARNER, "policy workers wait for the first weights of a learner"
        waiting = f"{np.count_nonzero(asked)} of {asked.size} splits wait for actions"
        return Kind.POLICY_WORKER, f"{waiting} of a policy worker"
    served = block_states(arrays)[arrays["quarantined"] == 0]
    if (served >= BlockState.READY).all():
        return Kind.LEARNER, "actors wait for blocks, all of which a learner has to take first"
    return Kind.ACTOR, "environments do not return from a step or a reset"
