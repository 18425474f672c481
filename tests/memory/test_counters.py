"""Signs of life, time and events: each process writes its own cells only."""

import time

import numpy as np

from appo.algorithms.memory.counters import EventCounter, Phase, Timer, WorkerCounters
from appo.algorithms.memory.layout import all_arrays
from tests.memory.memory_cases import shared


def test_a_process_touches_its_own_cells_only():
    arrays = shared()
    counters = WorkerCounters(arrays, 3)
    counters.enter(Phase.STEP)
    counters.count(EventCounter.POLICY_ROWS, 5)
    counters.count(EventCounter.POLICY_ROWS)
    counters.lap(Timer.POLICY_WAIT)
    counters.reports_sent[0] = 2
    assert arrays["event_counts"][3, EventCounter.POLICY_ROWS] == 6
    assert arrays["timers"][3, Timer.POLICY_WAIT] > 0
    assert counters.phase is Phase.STEP
    assert arrays["phase"].tolist() == [0, 0, 0, Phase.STEP, 0, 0, 0]
    for spec in all_arrays(arrays.sizes):
        if spec.shape[:1] == (arrays.sizes.processes,):
            assert not np.delete(arrays[spec.name], 3, axis=0).any(), spec.name
        else:
            assert not arrays[spec.name].any(), spec.name


def test_a_beat_is_the_time_of_the_monotonic_clock_that_all_processes_share():
    arrays = shared()
    before = time.monotonic()
    WorkerCounters(arrays, 0).beat()
    assert before <= arrays["heartbeat"][0] <= time.monotonic()


def test_a_stop_is_seen_by_the_process_it_is_meant_for():
    arrays = shared()
    counters = [WorkerCounters(arrays, process) for process in range(7)]
    arrays["stop"][5] = 1
    assert [counter.stop_requested for counter in counters] == [False] * 5 + [True, False]


def test_laps_add_up_to_the_time_that_passed():
    arrays = shared()
    before = time.perf_counter()
    counters = WorkerCounters(arrays, 1)
    time.sleep(0.02)
    counters.lap(Timer.ACTOR_ENV_STEP)
    counters.lap(Timer.ACTOR_WAIT_POLICY)
    time.sleep(0.01)
    counters.lap(Timer.ACTOR_ENV_STEP)
    after = time.perf_counter()
    assert arrays["timers"][1, Timer.ACTOR_ENV_STEP] >= 0.03
    assert arrays["timers"][1].sum() <= after - before
    assert np.flatnonzero(arrays["timers"][1]).tolist() == [Timer.ACTOR_ENV_STEP, Timer.ACTOR_WAIT_POLICY]


def test_a_clock_that_starts_anew_forgets_the_time_before_and_counts_no_event_away():
    arrays = shared()
    counters = WorkerCounters(arrays, 1)
    counters.lap(Timer.ACTOR_ENV_STEP)
    counters.count(EventCounter.ACTOR_ROLLOUTS, 3)
    before = time.perf_counter()
    counters.restart_clock()
    assert not arrays["timers"].any() and arrays["event_counts"][1, EventCounter.ACTOR_ROLLOUTS] == 3
    counters.lap(Timer.ACTOR_ENV_STEP)
    assert 0 < arrays["timers"][1, Timer.ACTOR_ENV_STEP] <= time.perf_counter() - before


def test_every_timer_belongs_to_a_kind_of_process_and_has_a_cell():
    arrays = shared()
    assert {timer.name.split("_")[0] for timer in Timer} == {"ACTOR", "POLICY", "OPPONENT", "LEARNER", "EVALUATION"}
    assert max(Timer) < arrays["timers"].shape[1] and max(EventCounter) < arrays["event_counts"].shape[1]
