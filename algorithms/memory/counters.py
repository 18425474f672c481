"""Signs of life, time and events of every process, as numbers that the driver reads whenever it likes."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
    """Where a worker's time goes; the tags under `stats/` are these names in lower case."""

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
        self._timers = arrays["timers"][process]
        self._event_counts = arrays["event_counts"][process]
        self._since = time.perf_counter()

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
        self._timers[:] = 0.0
        self._since = time.perf_counter()

    def lap(self, timer: Timer) -> None:
        """Book the time since the last lap under `timer`."""
        now = time.perf_counter()
        self._timers[timer] += now - self._since
        self._since = now

    def count(self, event: EventCounter, number: int = 1) -> None:
        """Count events."""
        self._event_counts[event] += number
