"""Find the stage that blocks progress, and the workers responsible, when nothing moves although every process lives."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from appo.algorithms.memory.blocks import BlockState, block_states
from appo.algorithms.memory.counters import Phase
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.messages import Command, ReplaceWorkers, Report
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import ControllerContext
from appo.algorithms.workers.awake_clock import AwakeClock
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.roster import ACTOR, LEARNER, POLICY_WORKER

# Beside what a reset may take: the supervisor replaces the actors whose resets take longer.
GRACE_S = 60.0

log = logging.getLogger(__name__)


class Stall(NamedTuple):
    """What has not moved for too long."""

    what: str
    stage: str  # that blocks progress
    culprits: str  # kind of the workers responsible
    in_a_row: int  # 2 and more: replacing them has not helped


class StallDetector:
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
            culprits, stage = _find_blocking_stage(self._arrays)
            return Stall(f"no environment frame for {timeout_s:g} s", stage, culprits, self._frame_stalls)
        if self._learns and now - self._versions_moved > self._timeout_s and self._is_learner_s(now):
            self._versions_moved = now
            self._version_stalls += 1
            stage = "environments are stepped, and a learner does not learn from it"
            what = f"no new policy version for {self._timeout_s:g} s"
            return Stall(what, stage, LEARNER, self._version_stalls)
        return None

    def _some_actor_builds(self) -> bool:
        actors = slice(self._arrays.sizes.actors)
        phases, quarantined = self._arrays["phase"][actors], self._arrays["quarantined"][actors]
        return bool(((phases == Phase.RESET) & (quarantined == 0)).any())

    def _is_learner_s(self, now: float) -> bool:
        """Versions are overdue: frames still come, and there is something to learn from. Else frames will tell more."""
        has_work = bool((block_states(self._arrays) >= BlockState.READY).any())
        return has_work and now - self._frames_moved < self._timeout_s / 2.0


class Watchdog:
    """The first time, lets the workers be replaced that block progress; the second time in a row, ends the run."""

    def __init__(self, context: ControllerContext) -> None:
        """Begins to watch."""
        config = context.config
        self._event_log = context.event_log
        self._log_dir = context.log_dir
        self._clock = AwakeClock(time.monotonic())
        self._detector = StallDetector(
            context.arrays,
            config.workers.stall_timeout_seconds,
            self._clock.now(),
            grace_s=config.sampling.reset_timeout_seconds + GRACE_S,
            learns=not config.run.sampler_only,
        )

    def note(self, report: Report) -> None:
        """Reports say nothing about progress: counters do."""

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """Replace the workers that block progress, once.

        Raises:
            RunFailed: it has not helped.
        """
        del snapshot
        self._clock.look(time.monotonic())
        stall = self._detector.look(self._clock.now())
        if stall is None:
            return ()
        told = f"{stall.what}: {stall.stage}"
        self._event_log.write("stall", stall._asdict())
        if stall.in_a_row > 1:
            raise RunFailed(f"{told}; replacing each {stall.culprits} has not helped")
        log.error("%s; the stacks of all processes follow in their logs in %s", told, self._log_dir)
        with contextlib.suppress(OSError), (self._log_dir / "driver.txt").open("a") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        reason = f"was replaced because the run waited for it ({stall.what})"
        return (ReplaceWorkers(stall.culprits, reason),)


def _find_blocking_stage(arrays: SharedArrays) -> tuple[str, str]:
    asked = arrays["asked"] > np.maximum(arrays["answered"], arrays["unasked"]).min(axis=0)  # [A, S]
    if asked.any():
        if not arrays["policy_begun"].all():
            return LEARNER, "policy workers wait for the first weights of a learner"
        waiting = f"{np.count_nonzero(asked)} of {asked.size} splits wait for actions"
        return POLICY_WORKER, f"{waiting} of a policy worker"
    served = block_states(arrays)[arrays["quarantined"][: arrays.sizes.actors] == 0]
    if (served >= BlockState.READY).all():
        return LEARNER, "actors wait for blocks, all of which a learner has to take first"
    return ACTOR, "environments do not return from a step or a reset"
