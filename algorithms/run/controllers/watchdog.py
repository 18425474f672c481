"""Find the stage that blocks progress, and the workers responsible, when nothing moves although every process lives."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.blocks import BlockState, block_states
from appo.algorithms.memory.counters import Phase
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.messages import Command, ReplaceWorkers, Report
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.workers.awake_clock import AwakeClock
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.roster import ACTOR, LEARNER, OPPONENT_WORKER, POLICY_WORKER

# Beside what a reset may take: the supervisor replaces the actors whose resets take longer.
GRACE_S = 60.0

log = logging.getLogger(__name__)


class Stall(NamedTuple):
    """What has not moved for too long."""

    what: str
    stage: str  # that blocks progress
    culprits: str  # kind of the workers responsible
    policy: int | None  # that they work for; None: all workers of the kind
    in_a_row: int  # 2 and more: replacing them has not helped


class _Progress:
    """When one counter moved last."""

    def __init__(self, now: float) -> None:
        self._count = -1
        self.counted = self.moved = now  # `moved` also when it had no work, or its standstill was told
        self._stalls = 0

    def follow(self, count: int, now: float) -> None:
        if count != self._count:
            self._count, self._stalls = count, 0
            self.counted = self.moved = now

    def has_stood_still(self, now: float, timeout_s: float, *, has_work: bool = True) -> bool:
        if not has_work:
            self.moved = now
        return now - self.moved > timeout_s

    def told(self, now: float) -> int:
        """It is told that this stands still, and again after the same time; how often that was in a row."""
        self.moved = now
        self._stalls += 1
        return self._stalls


class StallDetector:
    """Looks at frames and policy versions now and then: at all frames, and at those and the versions of each policy."""

    def __init__(
        self,
        arrays: SharedArrays,
        timeout_s: float,
        now: float,
        *,
        grace_s: float,
        learns: bool,
        policies_per_worker: int = 1,
    ) -> None:
        """Begins at `now`.

        Args:
            grace_s: how long the first frame may take.
            learns: there are policy versions to wait for.
            policies_per_worker: policies served by one policy worker.
        """
        self._arrays = arrays
        self._timeout_s = timeout_s
        self._grace_s = max(timeout_s, grace_s)
        self._learns = learns
        self._policies_per_worker = policies_per_worker
        self._all_frames = _Progress(now)
        self._frames = [_Progress(now) for _ in range(arrays.sizes.acting_policies)]
        self._versions = [_Progress(now) for _ in range(arrays.sizes.learning_policies)]

    def look(self, now: float) -> Stall | None:
        """What has not moved for the time allowed; told once per that time."""
        frames = self._follow(now)
        timeout_s = self._timeout_s if frames else self._grace_s
        if self._all_frames.has_stood_still(now, timeout_s):
            culprits, stage = _find_blocking_stage(self._arrays)
            if culprits == LEARNER and any(now - each.counted <= self._timeout_s for each in self._versions):
                return self._stalled_learner(now)  # frames go on when the iteration that others train on is done
            for each in [*self._frames, *self._versions]:
                each.moved = now  # they cannot move without frames
            what = f"no environment frame for {timeout_s:g} s"
            return Stall(what, stage, culprits, None, self._all_frames.told(now))
        if now - self._all_frames.moved >= self._timeout_s / 2.0:
            return None  # frames will tell more
        return self._stalled_learner(now) or self._stalled_policy_worker(now)

    def _follow(self, now: float) -> int:
        arrays = self._arrays
        frames = arrays["env_frames"].sum(axis=0)
        total = int(frames.sum())
        self._all_frames.follow(total, now)
        if not total and self._some_actor_builds():
            self._all_frames.moved = now  # each environment in its own time, which the supervisor watches
        for policy, progress in enumerate(self._frames):
            # Frames of frozen policies are not counted.
            is_frozen = policy >= len(frames)
            progress.follow(int(self._arrays["answered"][policy].sum() if is_frozen else frames[policy]), now)
        for policy, progress in enumerate(self._versions):
            # A learner that takes blocks is alive, however long it takes to fill its batch.
            progress.follow(int(arrays["train_steps"][policy]) + int(arrays["taking_sequence"][policy].sum()), now)
        return total

    def _some_actor_builds(self) -> bool:
        actors = slice(self._arrays.sizes.actors)
        phases, quarantined = self._arrays["phase"][actors], self._arrays["quarantined"][actors]
        return bool(((phases == Phase.RESET) & (quarantined == 0)).any())

    def _stalled_learner(self, now: float) -> Stall | None:
        """One that has something to learn from, and takes and publishes nothing."""
        for policy, progress in enumerate(self._versions):
            settled = np.maximum(self._arrays["taken_sequence"][policy], self._arrays["unplayed_sequence"][policy])
            has_work = self._learns and bool((self._arrays["ready_sequence"] > settled).any())
            if not progress.has_stood_still(now, self._timeout_s, has_work=has_work):
                continue
            stage = "environments are stepped, and a learner does not learn from it"
            what = f"no new version of policy {policy} for {self._timeout_s:g} s"
            return Stall(what, stage, LEARNER, policy, progress.told(now))
        return None

    def _stalled_policy_worker(self, now: float) -> Stall | None:
        """One that is asked for actions and answers nothing, while others do."""
        for policy, progress in enumerate(self._frames):
            settled = np.maximum(self._arrays["answered"][policy], self._arrays["unasked"][policy])
            # Without its learner's first weights it cannot answer; those of a frozen policy are there from the start.
            has_weights = policy >= len(self._versions) or self._arrays["policy_begun"][policy]
            has_work = bool(has_weights and (self._arrays["asked"] > settled).any())
            if not progress.has_stood_still(now, self._timeout_s, has_work=has_work):
                continue
            stage = "other policies act, and a policy worker does not answer"
            what = f"no frame of policy {policy} for {self._timeout_s:g} s"
            if policy >= len(self._versions):
                what = f"no action of a past self for {self._timeout_s:g} s"
                stage = "policies act, and the opponent worker does not answer"
                return Stall(what, stage, OPPONENT_WORKER, None, progress.told(now))
            for other in self._served_with(policy):
                other.moved = now  # one replacement is for all of them
            return Stall(what, stage, POLICY_WORKER, policy, progress.told(now))
        return None

    def _served_with(self, policy: int) -> list[_Progress]:
        first = policy - policy % self._policies_per_worker
        return self._frames[: len(self._versions)][first : first + self._policies_per_worker]


class Watchdog(Controller):
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
            policies_per_worker=config.workers.served_together,
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
            which = "each" if stall.policy is None else f"policy {stall.policy}'s"
            raise RunFailed(f"{told}; replacing {which} {stall.culprits} has not helped")
        log.error("%s; the stacks of all processes follow in their logs in %s", told, self._log_dir)
        with contextlib.suppress(OSError), (self._log_dir / "driver.txt").open("a") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        reason = f"was replaced because the run waited for it ({stall.what})"
        return (ReplaceWorkers(stall.culprits, stall.policy, reason),)


def _waiting(arrays: SharedArrays, policies: slice) -> NDArray[np.bool_]:
    """[A, S] splits that wait for some of these policies."""
    settled = np.maximum(arrays["answered"][policies], arrays["unasked"][policies])
    waiting: NDArray[np.bool_] = (arrays["asked"] > settled).any(axis=0)
    return waiting


def _find_blocking_stage(arrays: SharedArrays) -> tuple[str, str]:
    asked = _waiting(arrays, slice(None))
    if asked.any():
        if not arrays["policy_begun"].all():
            return LEARNER, "policy workers wait for the first weights of a learner"
        waiting = f"{np.count_nonzero(asked)} of {asked.size} splits wait for actions"
        if not np.count_nonzero(_waiting(arrays, slice(arrays.sizes.learning_policies))):
            return OPPONENT_WORKER, f"{waiting} of the opponent worker"
        return POLICY_WORKER, f"{waiting} of a policy worker"
    served = block_states(arrays)[arrays["quarantined"][: arrays.sizes.actors] == 0]
    if (served >= BlockState.READY).all():
        return LEARNER, "actors wait for blocks, all of which a learner has to take first"
    return ACTOR, "environments do not return from a step or a reset"
