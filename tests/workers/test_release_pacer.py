"""Actors begin so late that a batch is full as training ends, and at once wherever the learner would wait for them."""

import pytest

from appo.algorithms.workers.release_pacer import ReleasePacer


class Run:
    """A learner that trains for some seconds on what takes some seconds to collect; time goes by in hundredths."""

    def __init__(self):
        self.now = 0.0
        self.pacer = ReleasePacer(lambda: self.now)
        self.holds = False

    def iterate(self, train_s, collect_s):
        """Seconds after the beginning of training at which actors began, and seconds that the learner waited."""
        began = self.now
        self.pacer.begin(is_released=not self.holds)
        released = None if self.holds else began
        is_full = False
        while self.now < began + train_s:
            if self.pacer.is_due():
                self.pacer.release()
                released = self.now
            elif released is not None and not is_full and self.now >= released + collect_s:
                assert self.pacer.expects
                self.pacer.full()
                is_full = True
            self.now += 0.01
        released = self.now if released is None else released
        self.pacer.end()
        self.holds = self.pacer.holds
        waited = max(0.0, released + collect_s - self.now)
        self.now += waited
        return released - began, waited


def test_actors_begin_late_where_training_takes_longer():
    run = Run()
    assert run.iterate(10.0, 2.0) == (0.0, 0.0)  # nothing is known yet
    for _ in range(5):
        released, waited = run.iterate(10.0, 2.0)
        assert released == pytest.approx(10.0 - 1.1 * 2.0, abs=0.2) and waited == 0.0


@pytest.mark.parametrize("collect_s", [9.5, 30.0])
def test_actors_begin_at_once_where_collecting_takes_longer(collect_s):
    run = Run()
    for _ in range(5):
        released, waited = run.iterate(10.0, collect_s)
        assert released == 0.0 and waited == pytest.approx(max(0.0, collect_s - 10.0), abs=0.02)


def test_the_learner_waits_once_for_actors_that_have_become_slower():
    run = Run()
    for _ in range(5):
        run.iterate(10.0, 2.0)
    _, waited = run.iterate(10.0, 6.0)
    assert waited == pytest.approx(6.0 - 1.1 * 2.0, abs=0.2)
    released, waited = run.iterate(10.0, 6.0)
    assert released == pytest.approx(10.0 - 1.1 * 6.0, abs=0.2) and waited == 0.0


def test_a_batch_slower_than_training_is_answered_at_once():
    run = Run()
    for _ in range(5):
        run.iterate(10.0, 2.0)
    run.iterate(10.0, 30.0)
    assert run.holds  # nobody knew yet when its blocks were copied
    assert run.iterate(10.0, 30.0)[0] == 0.0


def test_a_single_slow_batch_is_forgotten_by_and_by():
    run = Run()
    for _ in range(5):
        run.iterate(10.0, 2.0)
    run.iterate(10.0, 8.0)
    begins = [run.iterate(10.0, 2.0)[0] for _ in range(12)]
    assert begins == sorted(begins) and begins[0] < 2.0 and begins[-1] > 7.0


def test_training_that_has_become_shorter_costs_a_few_waits():
    run = Run()
    for _ in range(5):
        run.iterate(10.0, 2.0)
    waits = [run.iterate(5.0, 2.0)[1] for _ in range(8)]
    assert waits[0] == pytest.approx(2.0, abs=0.02) and waits[-1] == 0.0


def test_a_batch_that_was_full_is_measured_once():
    run = Run()
    run.iterate(10.0, 2.0)
    run.pacer.begin(is_released=False)
    run.now += 9.0
    assert run.pacer.is_due() and not run.pacer.expects
    run.pacer.release()
    assert not run.pacer.is_due() and run.pacer.expects
    run.now += 0.5
    run.pacer.full()
    assert not run.pacer.expects
