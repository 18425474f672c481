"""Where workers run."""

import pytest

from appo.algorithms.workers import placement
from appo.algorithms.workers.placement import Placement, place_actor, place_learner, place_policy_worker


@pytest.fixture
def cores(monkeypatch):
    def have(*numbers):
        monkeypatch.setattr(placement, "usable_cores", lambda: list(numbers))
        monkeypatch.setattr(placement, "core_count", lambda: len(numbers))

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
def test_learners_share_half_of_the_cores_and_take_at_most_eight(cores, num_cores, sharing, threads):
    cores(*range(num_cores))
    assert place_learner(0, sharing, 1, "cpu") == Placement((), threads, 1, tries_fewer_threads=threads > 1)
    assert place_learner(0, sharing, 1, "cuda:0") == Placement((), 1, 1)


def test_a_number_of_threads_that_was_asked_for_is_taken(cores):
    cores(0, 1)
    assert place_learner(5, 3, 0, "cpu") == place_learner(5, 3, 0, "cuda:0") == Placement((), 5, 0)
    assert place_policy_worker(5, 0) == Placement((), 5, 0)


def test_a_policy_worker_has_one_thread(cores):
    cores(*range(16))
    assert place_policy_worker(0, 2) == Placement((), 1, 2)
