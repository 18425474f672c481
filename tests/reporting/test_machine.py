"""Processor time of this process and of all below it, and of the machine."""

import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from appo.algorithms.reporting.machine import LIST_EVERY_S, Machine
from appo.algorithms.run.controllers.bottlenecks import LOOK_EVERY_S

SPIN_S = 0.5
CODE = f"""
import os, sys, time
if len(sys.argv) > 1:
    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
while time.process_time() < {SPIN_S}:
    pass
print("done", flush=True)
time.sleep(60)
"""


@contextmanager
def computing(number=1, *words):
    """Children that have computed for half a second each, and live until the block ends."""
    children = [subprocess.Popen([sys.executable, "-c", CODE, *words], stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == b"done\n"
        yield
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_what_children_compute_counts_while_they_live_and_when_they_have_ended():
    before = Machine().look()
    with computing():
        machine = Machine()
        alive = machine.look()
        assert alive.run_s - before.run_s >= 0.9 * SPIN_S
        assert alive.busy_s - before.busy_s >= 0.9 * SPIN_S and alive.clock_s > before.clock_s
    assert machine.look().run_s - before.run_s >= 0.9 * SPIN_S


def test_a_process_that_was_started_since_is_seen_when_processes_are_listed_again():
    machine = Machine()
    before = machine.look()
    with computing():
        own_s = machine.look().run_s - before.run_s
        machine.list_again()
        assert machine.look().run_s - before.run_s >= own_s + 0.9 * SPIN_S


@pytest.mark.skipif(sys.platform != "linux", reason="waiting for a core is known on Linux only")
def test_processes_that_share_a_core_wait_for_it():
    before = Machine().look()
    with computing(2, "on one core"):
        assert Machine().look().waited_s - before.waited_s > 0.5 * SPIN_S


def test_looking_takes_less_than_a_thousandth_of_the_time():
    machine = Machine()

    def least_seconds(*, listing: bool) -> float:
        """The least of ten looks: Python may collect the garbage of earlier tests during one of them."""
        spent = []
        for _ in range(10):
            if listing:
                machine.list_again()
            before = time.thread_time()
            machine.look()
            spent.append(time.thread_time() - before)
        return min(spent)

    assert least_seconds(listing=False) / LOOK_EVERY_S + least_seconds(listing=True) / LIST_EVERY_S < 1e-3
