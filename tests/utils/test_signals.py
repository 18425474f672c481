"""Signals that end a run: the first is noted, a second Ctrl+C ends at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appo.utils.signals import MAIN_PROCESS_DECIDES, TOGETHER_S, StopSignals, withheld_from_new_processes

ROOT = Path(__file__).resolve().parents[2]


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


def later(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr("appo.utils.signals.time.monotonic", lambda: now + TOGETHER_S)


def test_without_a_signal_the_exit_code_is_zero(stop):
    assert stop.received is None and stop.exit_code == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 140)],
)
def test_the_first_signal_is_noted_and_decides_the_exit_code(stop, number, code):
    receive(number)
    assert stop.received is number and stop.exit_code == code


def test_a_second_ctrl_c_ends_at_once(stop, monkeypatch):
    receive(signal.SIGINT)
    later(monkeypatch)
    with pytest.raises(EndedAtOnce):
        receive(signal.SIGINT)


def test_what_a_launcher_sends_to_the_program_and_to_its_group_is_one_request(stop, monkeypatch):
    monkeypatch.setattr("appo.utils.signals.time.monotonic", lambda: 7.0)
    receive(signal.SIGINT)
    receive(signal.SIGINT)
    assert stop.received is signal.SIGINT


def test_ctrl_c_after_a_polite_request_ends_at_once(stop, monkeypatch):
    receive(signal.SIGTERM)
    later(monkeypatch)
    with pytest.raises(EndedAtOnce):
        receive(signal.SIGINT)
    assert stop.received is signal.SIGTERM


def test_asking_politely_again_changes_nothing(stop):
    receive(signal.SIGINT)
    receive(signal.SIGTERM)
    receive(signal.SIGTERM)
    assert stop.received is signal.SIGINT and stop.exit_code == 130


def test_the_earlier_handlers_come_back():
    before = {number: signal.getsignal(number) for number in MAIN_PROCESS_DECIDES}
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


def test_sighup_stays_ignored_where_the_run_was_started_so():
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        signals = StopSignals()
        receive(signal.SIGHUP)
        assert signals.received is None and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signals.restore()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, earlier)


def test_new_processes_do_not_receive_what_this_one_receives(stop):
    code = "import os, signal, sys\nfor word in sys.argv[1:]:\n    os.kill(os.getpid(), int(word))\nprint('alive')"
    words = [str(int(number)) for number in MAIN_PROCESS_DECIDES]
    with withheld_from_new_processes():
        receive(signal.SIGTERM)
        child = subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout == "alive\n"
    assert stop.received is signal.SIGTERM
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(MAIN_PROCESS_DECIDES)


WORKER = """
import os, signal, subprocess, sys, time
from appo.utils.signals import MAIN_PROCESS_DECIDES, leave_to_main_process
signal.pthread_sigmask(signal.SIG_BLOCK, MAIN_PROCESS_DECIDES)
leave_to_main_process()
for number in MAIN_PROCESS_DECIDES:
    os.kill(os.getpid(), number)
simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
simulator.terminate()
print(simulator.wait(30.0), flush=True)
"""


def test_a_worker_ignores_the_signals_and_ends_what_it_executes_with_them():
    done = subprocess.run([sys.executable, "-c", WORKER], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    assert int(done.stdout) == -signal.SIGTERM
