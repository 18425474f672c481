"""Signals that end a run: the first is noted, a second Ctrl+C ends at once."""

import os
import signal

import pytest

from utils.signals import StopSignals


class EndedAtOnce(Exception):
    pass


@pytest.fixture
def stop():
    def end_at_once():
        raise EndedAtOnce

    signals = StopSignals(end_at_once)
    yield signals
    signals.restore()


def receive(number):
    os.kill(os.getpid(), number)


def test_without_a_signal_the_exit_code_is_zero(stop):
    assert stop.received is None and stop.exit_code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_is_noted_and_decides_the_exit_code(stop, number, code):
    receive(number)
    assert stop.received is number and stop.exit_code == code


def test_a_second_ctrl_c_ends_at_once(stop):
    receive(signal.SIGINT)
    with pytest.raises(EndedAtOnce):
        receive(signal.SIGINT)


def test_ctrl_c_after_a_polite_request_ends_at_once(stop):
    receive(signal.SIGTERM)
    with pytest.raises(EndedAtOnce):
        receive(signal.SIGINT)
    assert stop.received is signal.SIGTERM


def test_asking_politely_again_changes_nothing(stop):
    receive(signal.SIGINT)
    receive(signal.SIGTERM)
    receive(signal.SIGTERM)
    assert stop.received is signal.SIGINT and stop.exit_code == 130


def test_the_earlier_handlers_come_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signals = StopSignals(lambda: None)
    assert {number: signal.getsignal(number) for number in before} != before
    signals.restore()
    assert {number: signal.getsignal(number) for number in before} == before


def test_sigusr1_asks_for_a_save_every_time_and_for_no_end():
    earlier = signal.getsignal(signal.SIGUSR1)
    signals = StopSignals(lambda: None)
    try:
        for number in range(1, 4):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.saves_requested == number
        assert signals.received is None and signals.exit_code == 0
    finally:
        signals.restore()
    assert signal.getsignal(signal.SIGUSR1) == earlier
