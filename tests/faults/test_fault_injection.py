"""The plan of a seed, and signals that reach processes with the titles of workers."""

import itertools
import os
import shutil
import statistics
import subprocess
import time

import psutil
import pytest

from benchmarks.faults.events import KINDS
from benchmarks.faults.injection import Fault, FaultInjector, plan, workers_below

SLEEP = shutil.which("sleep")


@pytest.fixture
def crew(tmp_path):
    """Processes that do nothing but bear the names of workers."""
    assert SLEEP is not None
    started = {}
    for title in ("actor-00", "actor-01", "learner-0", "bystander"):
        program = tmp_path / title
        shutil.copy(SLEEP, program)
        started[title] = subprocess.Popen([program, "60"])
    wait_until(lambda: set(workers_below(psutil.Process())) == {"actor-00", "actor-01", "learner-0"})
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def wait_until(holds, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(process):
    return psutil.Process(process.pid).status()


def test_a_seed_gives_the_same_plan_and_another_seed_another():
    arguments = (100, 2.0, KINDS, ["kill", "stop"])
    assert plan(7, *arguments) == plan(7, *arguments)
    assert plan(7, *arguments) != plan(8, *arguments)


def test_a_plan_has_the_mean_interval_and_the_shares_that_were_asked_for():
    faults = plan(1, 3000, 0.5, ["actor", "actor", "learner"], ["kill", "kill", "kill", "stop"])
    gaps = [after.at_s - before.at_s for before, after in itertools.pairwise(faults)]
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.1)
    assert statistics.pstdev(gaps) == pytest.approx(0.5, rel=0.1)  # at random: neither a beat nor a burst
    assert sum(fault.kind == "actor" for fault in faults) == pytest.approx(2000, rel=0.1)
    assert sum(fault.signal == "stop" for fault in faults) == pytest.approx(750, rel=0.2)
    assert all(0.0 <= fault.pick < 1.0 for fault in faults)


def test_a_kill_reaches_the_picked_worker_when_it_is_due_and_no_other(crew):
    injector = FaultInjector([Fault(0.2, "actor", "kill", 0.99)], stop_s=1.0)
    injector.act(psutil.Process())
    assert injector.hits == [] and not injector.is_done
    time.sleep(0.25)
    injector.act(psutil.Process())
    assert crew["actor-01"].wait(5.0) == -9
    assert [(hit.worker, hit.signal) for hit in injector.hits] == [("actor-01", "kill")]
    assert injector.is_done
    assert all(crew[title].poll() is None for title in ("actor-00", "learner-0", "bystander"))


def test_a_fault_waits_until_a_worker_of_its_kind_lives(crew):
    injector = FaultInjector([Fault(0.0, "learner", "kill", 0.0)] * 2, stop_s=1.0)
    injector.act(psutil.Process())
    crew["learner-0"].wait(5.0)
    injector.act(psutil.Process())
    assert len(injector.hits) == 1 and not injector.is_done
    injector.give_up()
    assert injector.is_done


def test_a_stopped_worker_goes_on_after_a_while_and_a_frozen_one_never(crew):
    faults = [Fault(0.0, "actor", "stop", 0.0), Fault(0.0, "learner", "freeze", 0.0)]
    injector = FaultInjector(faults, stop_s=0.3)
    injector.act(psutil.Process())
    for title in ("actor-00", "learner-0"):
        wait_until(lambda title=title: state(crew[title]) == psutil.STATUS_STOPPED)
    assert not injector.is_done
    time.sleep(0.35)
    injector.act(psutil.Process())
    wait_until(lambda: state(crew["actor-00"]) == psutil.STATUS_SLEEPING)
    assert state(crew["learner-0"]) == psutil.STATUS_STOPPED
    assert injector.is_done


def test_a_stopped_worker_gets_no_other_fault_before_it_goes_on(crew):
    injector = FaultInjector([Fault(0.0, "learner", "stop", 0.0), Fault(0.0, "learner", "term", 0.0)], stop_s=0.2)
    injector.act(psutil.Process())
    assert [hit.signal for hit in injector.hits] == ["stop"]
    time.sleep(0.25)
    injector.act(psutil.Process())
    assert [hit.signal for hit in injector.hits] == ["stop", "term"]
    assert crew["learner-0"].wait(5.0) == -15


def test_a_worker_that_has_ended_and_was_not_reaped_is_no_worker(crew):
    os.kill(crew["learner-0"].pid, 9)
    wait_until(lambda: "learner-0" not in workers_below(psutil.Process()))
    assert state(crew["learner-0"]) == psutil.STATUS_ZOMBIE
