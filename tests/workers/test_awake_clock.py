"""A clock that leaves out the time in which the whole machine stood still."""

import pytest

from appo.algorithms.workers.awake_clock import GAP_S, AwakeClock


def test_without_gaps_it_is_ordinary_time():
    clock = AwakeClock(100.0)
    for tenth in range(1, 101):
        clock.look(100.0 + tenth / 10.0)
    assert clock.now() - AwakeClock(100.0).now() == pytest.approx(10.0)
    assert clock.since(103.0) == pytest.approx(7.0)


def test_a_gap_does_not_count_whether_a_moment_lies_before_in_or_behind_it():
    clock = AwakeClock(0.0)
    clock.look(1.0)
    clock.look(1001.0)
    clock.look(1001.0 + GAP_S / 2.0)
    assert clock.now() == pytest.approx(1.0 + GAP_S / 2.0)
    assert clock.since(0.5) == pytest.approx(0.5 + GAP_S / 2.0)
    assert clock.since(500.0) == pytest.approx(GAP_S / 2.0)
    assert clock.since(1001.5) == pytest.approx(GAP_S / 2.0 - 0.5)


def test_several_gaps_add_up_and_a_slow_look_is_none():
    clock = AwakeClock(0.0)
    for now in (50.0, 51.0, 151.0, 151.0 + 0.9 * GAP_S):
        clock.look(now)
    assert clock.since(0.0) == clock.now() == pytest.approx(1.0 + 0.9 * GAP_S)
