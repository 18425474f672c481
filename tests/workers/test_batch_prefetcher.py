"""Full batches on demand: filled by the caller or ahead by a thread, each column once, actors woken, nothing stuck."""

import threading
import time

import numpy as np
import pytest

from appo.algorithms.memory.blocks import SplitBlocks, block_states
from appo.algorithms.memory.collate import BatchAssembler, allocate_staging
from appo.algorithms.memory.counters import EventCounter, Timer, WorkerCounters
from appo.algorithms.workers.batch_prefetcher import BatchPrefetcher
from appo.algorithms.workers.release_pacer import ReleasePacer
from appo.utils.doorbells import Doorbell
from tests.memory.memory_cases import shared

WIDTH = 10  # columns of two blocks


class Case:
    """Two actors that number their columns, and a prefetcher."""

    def __init__(self, stagings, *, hold=False, blocks=2, pacer=None):
        self.arrays = shared(actors=2, splits=1, blocks=blocks)
        self.splits = [SplitBlocks(self.arrays, actor, 0) for actor in range(2)]
        self.assembler = BatchAssembler(self.arrays, 0, WIDTH, hold_blocks=hold)
        self.bell = Doorbell()
        self.rung: list[set[int]] = []
        plain = [allocate_staging(self.arrays, WIDTH, np.zeros) for _ in range(stagings)]
        counters = WorkerCounters(self.arrays, 6)
        ring = self.rung.append
        self.prefetcher = BatchPrefetcher(self.assembler, plain, self.bell, ring, counters, pacer)
        self.columns = 0

    def fill(self):
        """One rollout of every split that has a free block; how many."""
        began = [split for split in self.splits if split.begin_next()]
        for split in began:
            actor = self.splits.index(split)
            self.arrays["rewards"][actor, 0, split.block] = self.columns + np.arange(5)
            self.columns += 5
            split.complete()
        self.bell.ring()
        return len(began)

    def close(self):
        self.prefetcher.close()
        self.bell.close()


@pytest.fixture
def make():
    cases = []

    def build(stagings, **options):
        cases.append(Case(stagings, **options))
        return cases[-1]

    yield build
    for case in cases:
        case.close()


BOTH_MODES = pytest.mark.parametrize("stagings", [1, 2])


@BOTH_MODES
def test_the_bell_is_the_caller_s_once_the_feeder_is_closed(make, stagings):
    case = make(stagings)
    case.prefetcher.close()
    case.prefetcher.close()
    assert "batch prefetcher" not in {thread.name for thread in threading.enumerate()}
    for _ in range(5):
        assert not case.bell.wait(0.02)


@BOTH_MODES
def test_batches_hold_every_column_once_and_in_order(make, stagings):
    case = make(stagings)
    seen: list[float] = []
    while len(seen) < 20 * WIDTH:
        case.fill()
        staging = case.prefetcher.next(0.2)
        if staging is not None:
            assert (staging.arrays["rewards"] == staging.arrays["rewards"][0]).all()
            seen += staging.arrays["rewards"][0].tolist()
            case.prefetcher.done(staging)
    assert seen == list(range(len(seen)))


@BOTH_MODES
def test_without_a_full_batch_it_returns_in_time_and_books_the_wait(make, stagings):
    case = make(stagings)
    began = time.monotonic()
    assert case.prefetcher.next(0.1) is None
    assert 0.09 <= time.monotonic() - began < 5.0
    assert case.arrays["timers"][6, Timer.LEARNER_WAIT_BATCH] > 0.05


@BOTH_MODES
def test_a_bell_wakes_the_filling_thread(make, stagings):
    case = make(stagings)
    later = threading.Timer(0.1, case.fill)
    later.start()
    began = time.monotonic()
    assert case.prefetcher.next(30.0) is not None
    assert time.monotonic() - began < 15.0
    later.join()


@BOTH_MODES
def test_actors_are_woken_once_per_look_for_the_blocks_they_get_back(make, stagings):
    case = make(stagings)
    case.fill()
    staging = case.prefetcher.next(10.0)
    case.prefetcher.done(staging)
    assert set().union(*case.rung) == {0, 1}
    assert case.arrays["event_counts"][6, EventCounter.LEARNER_BLOCKS] == 2


def test_a_thread_prepares_the_next_batch_while_the_caller_trains(make):
    case = make(2)
    case.fill()
    training = case.prefetcher.next(10.0)
    before = training.arrays["rewards"].copy()
    case.fill()
    deadline = time.monotonic() + 30.0
    while block_states(case.arrays).any() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not block_states(case.arrays).any()  # the second batch is copied, the first still in use
    np.testing.assert_array_equal(training.arrays["rewards"], before)
    case.prefetcher.done(training)
    ahead = case.prefetcher.next(10.0)
    assert ahead is not training
    assert ahead.arrays["rewards"][0].tolist() == list(range(WIDTH, 2 * WIDTH))


def test_without_a_thread_nothing_is_taken_before_it_is_asked_for(make):
    case = make(1)
    case.fill()
    staging = case.prefetcher.next(10.0)
    case.fill()
    time.sleep(0.05)
    assert (block_states(case.arrays) != 0).sum() == 2
    case.prefetcher.done(staging)


def test_held_blocks_come_back_when_the_batch_is_done(make):
    case = make(1, hold=True, blocks=1)
    case.fill()
    staging = case.prefetcher.next(10.0)
    assert case.fill() == 0 and case.rung == []
    case.prefetcher.done(staging)
    assert set().union(*case.rung) == {0, 1}
    assert case.fill() == 2


def test_blocks_come_back_as_late_as_the_next_batch_allows(make):
    now = 0.0
    case = make(1, blocks=1, pacer=ReleasePacer(lambda: now))
    case.fill()
    staging = case.prefetcher.next(10.0)
    assert case.fill() == 2  # nothing is known yet: at once
    now += 2.0
    case.prefetcher.between_minibatches()  # the next batch was full after 2 s
    now += 8.0
    case.prefetcher.done(staging)
    staging = case.prefetcher.next(10.0)
    case.rung.clear()
    now += 7.0
    case.prefetcher.between_minibatches()
    assert case.fill() == 0 and case.rung == []
    now += 1.0
    case.prefetcher.between_minibatches()
    assert case.rung == [{0, 1}] and case.fill() == 2
    now += 2.0
    case.prefetcher.done(staging)
    assert case.prefetcher.next(10.0).arrays["rewards"][0].tolist() == list(range(2 * WIDTH, 3 * WIDTH))


def test_blocks_that_were_kept_too_long_come_back_with_the_end_of_training(make):
    now = 0.0
    case = make(1, blocks=1, pacer=ReleasePacer(lambda: now))
    for seconds in (10.0, 1.0):  # training takes a tenth of what it took
        case.fill()
        staging = case.prefetcher.next(10.0)
        case.fill()
        now += 0.1
        case.prefetcher.between_minibatches()
        now += seconds
        case.rung.clear()
        case.prefetcher.done(staging)
    assert case.rung == [{0, 1}]


class HandClock:
    """Shows what a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


def paced(make, clock):
    """A learner that collects for 1 s of each iteration, trains for 9, and is about to hold the next batch's blocks."""
    case = make(1, blocks=1, pacer=ReleasePacer(clock))
    for _ in range(2):
        case.fill()
        staging = case.prefetcher.next(10.0)
        case.fill()
        clock.now += 1.0
        case.prefetcher.between_minibatches()
        clock.now += 9.0
        case.prefetcher.done(staging)
    case.prefetcher.done(case.prefetcher.next(10.0))
    return case


def test_held_blocks_come_back_at_once_when_collecting_takes_longer_than_training(make):
    clock = HandClock()
    case = paced(make, clock)
    clock.now += 20.0  # the blocks of this batch were to be held
    case.fill()
    assert case.prefetcher.next(10.0) is not None
    assert case.fill() == 2


def test_an_actor_that_hangs_does_not_keep_the_others_waiting(make):
    clock = HandClock()
    case = paced(make, clock)
    alone = case.splits[0]

    def play():
        if not alone.begin_next():
            return False
        alone.complete()
        return True

    assert play() and case.prefetcher.next(0.01) is None and not play()
    clock.now += 3.0  # thrice as long as ever before
    assert case.prefetcher.next(0.05) is None
    assert play() and case.prefetcher.next(10.0) is not None


def test_sampling_without_a_learner_gives_every_block_back_unseen(make):
    case = make(1)
    for _ in range(5):
        assert case.fill() == 2
        case.prefetcher.drop_ready(0.0)
        assert not block_states(case.arrays).any()
    assert set().union(*case.rung) == {0, 1}


def test_the_error_of_the_thread_is_raised_where_its_batches_are_asked_for(make):
    case = make(2)
    case.assembler.blocks.ready = None  # not to be called: a TypeError
    case.bell.ring()
    with pytest.raises(RuntimeError, match="the thread that prepares batches failed") as caught:
        for _ in range(100):
            assert case.prefetcher.next(0.1) is None
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("batches_waiting", [0, 1, 2])
def test_the_thread_ends_at_once_however_many_batches_wait(make, batches_waiting):
    case = make(2, blocks=4)
    for _ in range(batches_waiting):
        case.fill()
    deadline = time.monotonic() + 30.0
    while block_states(case.arrays).any() and time.monotonic() < deadline:
        time.sleep(0.01)
    began = time.monotonic()
    case.prefetcher.close()
    assert time.monotonic() - began < 1.0
    assert not case.prefetcher._thread.is_alive()
