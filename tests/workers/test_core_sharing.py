"""What is particular to machines with few cores: dedicated and shared ones."""

import pytest

from appo.algorithms.memory.counters import Timer
from appo.algorithms.workers import core_sharing, placement
from appo.algorithms.workers.core_sharing import CoreSharing, dedicated_cores, shared_cores
from appo.algorithms.workers.placement import Placement, place_actor
from tests.memory.memory_cases import shared


@pytest.fixture
def cores(monkeypatch):
    def have(*numbers):
        for module in (placement, core_sharing):
            monkeypatch.setattr(module, "usable_cores", lambda: list(numbers))
            monkeypatch.setattr(module, "core_count", lambda: len(numbers))

    return have


def test_dedicated_torch_workers_have_a_core_for_each_thread_and_actors_the_others(cores):
    cores(0, 1, 2, 4, 5)
    places = dedicated_cores(Placement((), threads=2, niceness=1), 2)
    assert places == [Placement((0, 1), 2, 1), Placement((2, 4), 2, 1)]
    assert [place_actor(index, True, 0, (), (0, 1, 2, 4)).cores for index in range(2)] == [(5,), (5,)]


@pytest.mark.parametrize(("num_cores", "threads", "count"), [(1, 1, 1), (4, 4, 1), (4, 2, 2)])
def test_no_cores_are_dedicated_where_that_would_leave_no_core_to_actors(cores, num_cores, threads, count):
    cores(*range(num_cores))
    assert dedicated_cores(Placement((), threads, 0), count) == [Placement((), threads, 0)] * count


@pytest.mark.parametrize(
    ("numbers", "threads", "left"), [((3, 5), 1, (5,)), ((3, 5), 2, ()), ((0,), 1, ()), ((0, 1, 2, 3), 1, ())]
)
def test_a_learner_with_one_thread_leaves_the_other_of_two_cores(cores, numbers, threads, left):
    cores(*numbers)
    assert shared_cores(threads) == left


@pytest.fixture
def moves(monkeypatch, cores):
    """Where a worker has moved to; it looks whenever it is asked."""
    cores(0, 1)
    moved: list[tuple[int, ...]] = []
    monkeypatch.setattr(core_sharing, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(core_sharing, "move_to_cores", moved.append)
    return moved


def learner_spends(arrays, waiting, training):
    arrays["timers"][-1, [Timer.LEARNER_WAIT_BATCH, Timer.LEARNER_TRAIN]] += (waiting, training)


@pytest.mark.parametrize(("home", "everywhere"), [((0,), (0,)), ((), (0, 1))])
def test_a_worker_keeps_to_the_shared_cores_while_the_learner_has_enough_to_do(moves, home, everywhere, monkeypatch):
    arrays = shared()
    sharing = CoreSharing(arrays, Placement(home, 1, 0, shared_cores=(1,)))
    arrays["timers"][0, Timer.ACTOR_WAIT_POLICY] = 100.0  # no learner's
    sharing.follow()
    assert not sharing.is_on  # nothing is known yet

    def look(waiting):
        learner_spends(arrays, waiting, 5.0 - waiting)
        sharing.follow()
        is_on = sharing.is_on
        sharing.follow()  # the learner computes and has told nothing since
        assert sharing.is_on == is_on
        return is_on

    assert [look(waiting) for waiting in (2.0, 0.2, 1.2, 1.5)] == [False, True, True, False]
    assert not look(0.0), "it let the learner starve"
    monkeypatch.setattr(sharing, "_not_before", 0.0)
    assert look(0.0), "much later it tries again"
    assert moves == [(1,), everywhere, (1,)]


def test_a_learner_that_was_replaced_counts_from_zero(moves):
    arrays = shared()
    sharing = CoreSharing(arrays, Placement((0,), 1, 0, shared_cores=(1,)))
    learner_spends(arrays, 0.0, 500.0)
    sharing.follow()
    arrays["timers"][-1] = 0.0
    learner_spends(arrays, 4.0, 1.0)
    sharing.follow()  # nothing is known of this one yet
    assert sharing.is_on and moves == [(1,)]
    learner_spends(arrays, 4.0, 1.0)
    sharing.follow()
    assert not sharing.is_on and moves == [(1,), (0,)]


def test_a_worker_without_shared_cores_stays_where_it_is(moves):
    arrays = shared()
    sharing = CoreSharing(arrays, Placement((0,), 1, 0))
    learner_spends(arrays, 0.0, 5.0)
    sharing.follow()
    assert not sharing.is_on and not moves
