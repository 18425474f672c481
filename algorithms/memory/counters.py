"""Signs of life, time and events of every process, as numbers that the driver reads whenever it likes."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from appo.algorithms.memory.layout import NUM_EVENT_COUNTERS, NUM_TIMERS, SharedArrays


class Phase(enum.IntEnum):
    """What a worker is doing; decides how long it may show no sign of life."""

    NOT_STARTED = 0
    SETUP = 1
    RESET = 2
    STEP = 3
    TEARDOWN = 4
    ENDED = 5


class Timer(enum.IntEnum):
    """Where a worker's time goes; the tags under `stats/` are these names in lower case. See `PART_OF`."""

    ACTOR_ENV_STEP = 0
    ACTOR_BOOKKEEPING = 1
    ACTOR_WAIT_POLICY = 2
    ACTOR_WAIT_BLOCK = 3
    POLICY_GATHER = 4
    POLICY_FORWARD = 5
    POLICY_SCATTER = 6
    POLICY_WAIT = 7
    POLICY_ADOPT = 8
    LEARNER_WAIT_BATCH = 9
    LEARNER_COLLATE = 10
    LEARNER_TRAIN = 11
    LEARNER_PUBLISH = 12
    LEARNER_SAVE = 13
    OPPONENT_GATHER = 14
    OPPONENT_FORWARD = 15
    OPPONENT_SCATTER = 16
    OPPONENT_WAIT = 17
    OPPONENT_ADOPT = 18
    EVALUATION_PLAY = 19
    EVALUATION_WAIT = 20
    ACTOR_SIMULATE = 21
    ACTOR_PROCESSES_STEP = 22
    LEARNER_COLLATE_AHEAD = 23
    LEARNER_PREPARE = 24
    LEARNER_LOSS = 25
    LEARNER_BACKWARD = 26
    LEARNER_OPTIMIZE = 27


# Part -> the stage, or the part, that includes its time. None: it runs beside all stages. All other timers are stages.
PART_OF = {
    Timer.ACTOR_SIMULATE: Timer.ACTOR_ENV_STEP,
    Timer.ACTOR_PROCESSES_STEP: Timer.ACTOR_SIMULATE,
    Timer.LEARNER_COLLATE_AHEAD: None,
    Timer.LEARNER_PREPARE: Timer.LEARNER_TRAIN,
    Timer.LEARNER_LOSS: Timer.LEARNER_TRAIN,
    Timer.LEARNER_BACKWARD: Timer.LEARNER_TRAIN,
    Timer.LEARNER_OPTIMIZE: Timer.LEARNER_TRAIN,
}
# Spent by other processes or threads, several at one time.
IN_PARALLEL = {Timer.ACTOR_PROCESSES_STEP, Timer.LEARNER_COLLATE_AHEAD}


class EventCounter(enum.IntEnum):
    """What a worker counts."""

    ACTOR_STEPS_OF_SPLITS = 0
    ACTOR_ROLLOUTS = 1
    POLICY_BATCHES = 2
    POLICY_ROWS = 3
    POLICY_ADOPTIONS = 4
    LEARNER_BATCHES = 5
    LEARNER_BLOCKS = 6
    REPORTS_DROPPED = 7
    ENV_CRASHES = 8
    ENV_BAD_DATA = 9
    LEARNER_SKIPPED_STEPS = 10
    LEARNER_ROLLBACKS = 11
    OPPONENT_BATCHES = 12
    OPPONENT_ROWS = 13
    OPPONENT_ADOPTIONS = 14
    EVALUATIONS = 15


assert len(Timer) <= NUM_TIMERS and len(EventCounter) <= NUM_EVENT_COUNTERS


class WorkerCounters:
    """The cells of one process, written by nobody else (except `stop` and `commands_sent`, the driver's)."""

    def __init__(self, arrays: SharedArrays, process: int) -> None:
        """`process` counts actors first, then policy workers, then learners."""
        self._heartbeat = arrays["heartbeat"][process : process + 1]
        self._phase = arrays["phase"][process : process + 1]
        self._stop = arrays["stop"][process : process + 1]
        self.commands_sent = arrays["commands_sent"][process : process + 1]
        self.reports_sent = arrays["reports_sent"][process : process + 1]
        # Through memoryviews a lap takes 0.3 us, through arrays 1.2.
        self._timers = cast("memoryview[float]", memoryview(arrays["timers"][process]))
        self._laps = memoryview(arrays["laps"][process])
        self._event_counts = arrays["event_counts"][process]
        self._since = self._part_since = time.perf_counter()

    def beat(self) -> None:
        """Show a sign of life."""
        self._heartbeat[0] = time.monotonic()

    def enter(self, phase: Phase) -> None:
        """Say what follows, with a sign of life."""
        self._phase[0] = phase
        self.beat()

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Be in another phase for a while."""
        before = self.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    @property
    def phase(self) -> Phase:
        """What the worker is doing."""
        return Phase(int(self._phase[0]))

    @property
    def stop_requested(self) -> bool:
        """The driver wants this worker to end."""
        return bool(self._stop[0])

    def restart_clock(self) -> None:
        """What took time until now was preparation, and belongs to no stage."""
        # Times first: the driver, which reads them last, may see them gone and the laps not yet, and no time twice.
        for timer in range(NUM_TIMERS):
            self._timers[timer] = 0.0
        for timer in range(NUM_TIMERS):
            self._laps[timer] = 0
        self._since = self._part_since = time.perf_counter()

    def lap(self, timer: Timer) -> None:
        """Book the time since the last lap under a stage."""
        now = time.perf_counter()
        self._timers[timer] += now - self._since
        self._laps[timer] += 1
        self._since = self._part_since = now

    def part(self, timer: Timer) -> None:
        """Book the time since the last part or lap under a part of a stage, which goes on."""
        now = time.perf_counter()
        self.add_time(timer, now - self._part_since)
        self._part_since = now

    def add_time(self, timer: Timer, seconds: float, times: int = 1) -> None:
        """Book time that was measured elsewhere under a part."""
        self._timers[timer] += seconds
        self._laps[timer] += times

    def count(self, event: EventCounter, number: int = 1) -> None:
        """Count events."""
        self._event_counts[event] += number
