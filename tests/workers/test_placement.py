"""Where workers run."""

import pytest

from algorithms.memory.counters import Timer
from algorithms.workers import placement
from algorithms.workers.placement import (
    Placement,
    PolicyRetreat,
    Retreat,
    apart,
    beside_learner,
    place_actor,
    place_torch_worker,
)
from tests.memory.memory_cases import shared


@pytest.fixture
def cores(monkeypatch):
    def have(*numbers):
        monkeypatch.setattr(placement, "usable_cores", lambda: list(numbers))

    return have


def test_actors_take_the_usable_cores_in_turn(cores):
    cores(2, 5, 7)
    assert [place_actor(index, True, 3).cores for index in range(5)] == [(2,), (5,), (7,), (2,), (5,)]
    assert place_actor(4, True, 3) == Placement((5,), threads=1, niceness=3)


def test_actors_take_the_gpus_of_the_option_in_turn(cores):
    cores(0)
    assert [place_actor(index, False, 0, (1, 3)).gpu for index in range(3)] == [1, 3, 1]


def test_an_actor_that_is_not_pinned_runs_anywhere(cores):
    cores(0, 1)
    assert place_actor(1, False, 0) == Placement((), 1, 0)


@pytest.mark.parametrize(
    ("num_cores", "sharing", "threads"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 2), (16, 1, 8), (64, 1, 8), (64, 8, 4), (2, 8, 1)],
)
def test_torch_workers_share_half_of_the_cores_and_take_at_most_eight(cores, num_cores, sharing, threads):
    cores(*range(num_cores))
    assert place_torch_worker(0, sharing, 1) == Placement((), threads, 1)


def test_a_number_of_threads_that_was_asked_for_is_taken(cores):
    cores(0, 1)
    assert place_torch_worker(5, 3, 0).threads == 5


def test_torch_workers_apart_have_a_core_for_each_thread_and_actors_the_others(cores):
    cores(0, 1, 2, 4, 5)
    places = apart(Placement((), threads=2, niceness=1), 2)
    assert places == [Placement((0, 1), 2, 1), Placement((2, 4), 2, 1)]
    assert [place_actor(index, True, 0, (), (0, 1, 2, 4)).cores for index in range(2)] == [(5,), (5,)]


@pytest.mark.parametrize(("num_cores", "threads", "count"), [(1, 1, 1), (4, 4, 1), (4, 2, 2)])
def test_torch_workers_are_not_apart_where_that_would_leave_no_core_to_actors(cores, num_cores, threads, count):
    cores(*range(num_cores))
    assert apart(Placement((), threads, 0), count) == [Placement((), threads, 0)] * count


@pytest.mark.parametrize(
    ("numbers", "threads", "left"), [((3, 5), 1, (5,)), ((3, 5), 2, ()), ((0,), 1, ()), ((0, 1, 2, 3), 1, ())]
)
def test_a_learner_with_one_thread_leaves_the_other_of_two_cores(cores, numbers, threads, left):
    cores(*numbers)
    assert beside_learner(threads) == left


@pytest.fixture
def moves(monkeypatch, cores):
    """Where a worker has moved to; its retreat looks whenever it is asked."""
    cores(0, 1)
    moved: list[tuple[int, ...]] = []
    monkeypatch.setattr(placement, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(placement, "move_to_cores", moved.append)
    return moved


def learner_spends(arrays, waiting, training):
    arrays["timers"][-1, [Timer.LEARNER_WAIT_BATCH, Timer.LEARNER_TRAIN]] += (waiting, training)


@pytest.mark.parametrize(("home", "everywhere"), [((0,), (0,)), ((), (0, 1))])
def test_a_worker_retreats_while_the_learner_has_enough_to_do(moves, home, everywhere):
    arrays = shared()
    retreat = Retreat(arrays, Placement(home, 1, 0, beside=(1,)))
    arrays["timers"][0, Timer.ACTOR_WAIT_POLICY] = 100.0  # no learner's
    retreat.follow()
    assert not retreat.is_on  # nothing is known yet
    for waiting, is_on in [(2.0, False), (0.2, True), (2.2, True), (3.0, False), (2.2, False), (0.0, True)]:
        learner_spends(arrays, waiting, 5.0 - waiting)
        retreat.follow()
        assert retreat.is_on == is_on
        retreat.follow()  # the learner computes and has told nothing since
        assert retreat.is_on == is_on
    assert moves == [(1,), everywhere, (1,)]


def test_a_learner_that_was_replaced_counts_from_zero(moves):
    arrays = shared()
    retreat = Retreat(arrays, Placement((0,), 1, 0, beside=(1,)))
    learner_spends(arrays, 0.0, 500.0)
    retreat.follow()
    arrays["timers"][-1] = 0.0
    learner_spends(arrays, 4.0, 1.0)
    retreat.follow()  # nothing is known of this one yet
    assert retreat.is_on and moves == [(1,)]
    learner_spends(arrays, 4.0, 1.0)
    retreat.follow()
    assert not retreat.is_on and moves == [(1,), (0,)]


def test_a_worker_without_a_place_to_retreat_to_stays_where_it_is(moves):
    arrays = shared()
    retreat = Retreat(arrays, Placement((0,), 1, 0))
    learner_spends(arrays, 0.0, 5.0)
    retreat.follow()
    assert not retreat.is_on and not moves


def test_a_policy_worker_computes_on_the_learners_core_while_the_learner_sleeps(moves, monkeypatch):
    arrays = shared()
    monkeypatch.setattr(placement, "move_this_thread", lambda cores: moves.append(("thread", *cores)))
    retreat = PolicyRetreat(arrays, Placement((), 1, 0, beside=(1,)), 0)

    def follow(sleeps):
        arrays["awaits_batch"][0] = sleeps
        retreat.follow()
        return retreat.shares_core

    assert not follow(1) and not follow(0) and not moves  # it is anywhere
    learner_spends(arrays, 0.0, 5.0)
    assert follow(0) and not follow(1) and not follow(1) and follow(0) and not follow(1)
    assert moves == [(1,), ("thread", 0), ("thread", 1), ("thread", 0)]
    learner_spends(arrays, 4.0, 1.0)
    assert not follow(1) and not follow(0)
    assert moves[4:] == [(0, 1)]
