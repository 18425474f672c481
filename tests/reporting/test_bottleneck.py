"""What limits a run, from measurements of each kind of run; and those measurements from counters."""

from typing import Any

import numpy as np
import pytest

from appo.algorithms.memory.counters import EventCounter, Timer
from appo.algorithms.memory.layout import NUM_EVENT_COUNTERS, NUM_TIMERS
from appo.algorithms.reporting import bottleneck
from appo.algorithms.reporting.bottleneck import Counters, Settings, Window, find, window_between
from appo.algorithms.reporting.machine import ProcessorTime

SETTINGS = Settings(
    num_workers=2,
    num_envs_per_worker=8,
    env_backend="serial",
    env_frameskip=0,
    hidden_size=512,
    policy_workers_per_policy=1,
    ppo_epochs=1,
    batch_size=1024,
    device="cpu",
    cores=2,
    shared_cores=2,
)
KINDS = {"ACTOR": slice(0, 2), "POLICY": slice(2, 3), "LEARNER": slice(3, 4)}
ACTORS = {0: "actor-00", 1: "actor-01"}


def window(*, env=0.4, policy=0.3, block=0.0, policy_wait=0.5, learner_wait=0.5, **others):
    """A run in which no stage holds up the others, but for what is given."""
    shares = {
        Timer.ACTOR_ENV_STEP: env,
        Timer.ACTOR_WAIT_POLICY: policy,
        Timer.ACTOR_WAIT_BLOCK: block,
        Timer.POLICY_WAIT: policy_wait,
        Timer.LEARNER_WAIT_BATCH: learner_wait,
    }
    usual: dict[str, Any] = {
        "seconds": 20.0,
        "step_s": {"actor-00": 0.01, "actor-01": 0.011},
        "stepping": {"actor-00": env, "actor-01": env},
        "batch_rows": 32.0,
        "batch_s": 0.002,
        "ready": 0.1,
        "run_cores": 1.6,
        "wanted_cores": 1.7,
        "other_cores": 0.05,
    }
    return Window(shares=shares, **(usual | others))


SLEEPING = window(env=0.98, policy=0.01, policy_wait=0.92, learner_wait=0.87, run_cores=0.16, wanted_cores=0.3)
BUSY_ENVIRONMENTS = window(env=0.99, policy=0.0, policy_wait=0.9, learner_wait=0.9, run_cores=1.95, wanted_cores=2.4)
HEAVY = window(env=0.03, policy=0.95, policy_wait=0.02, batch_rows=32.0, batch_s=0.02, run_cores=1.1, wanted_cores=1.2)
TINY = window(env=0.1, policy=0.7, policy_wait=0.4, batch_rows=1.0, batch_s=0.0003, run_cores=1.5)
SLOW_LEARNER = window(env=0.1, policy=0.05, block=0.8, learner_wait=0.01, ready=0.7)
NEIGHBOURS = window(run_cores=0.9, wanted_cores=3.0, other_cores=1.08)
STRAGGLER = window(
    env=0.95, step_s={"actor-00": 0.041, "actor-01": 0.005}, stepping={"actor-00": 0.98, "actor-01": 0.9}, run_cores=0.3
)


@pytest.mark.parametrize(
    ("measured", "kind"),
    [
        (SLEEPING, bottleneck.ENVIRONMENTS),
        (BUSY_ENVIRONMENTS, bottleneck.ENVIRONMENTS),
        (HEAVY, bottleneck.POLICY_WORKER),
        (TINY, bottleneck.TINY_BATCHES),
        (SLOW_LEARNER, bottleneck.LEARNER),
        (NEIGHBOURS, bottleneck.NEIGHBOURS),
        (STRAGGLER, bottleneck.STRAGGLER),
        (window(), bottleneck.BALANCED),
        (STRAGGLER._replace(other_cores=1.8, wanted_cores=1.5), bottleneck.STRAGGLER),  # neighbours slow down all
        (window(policy=0.9, policy_wait=0.8), bottleneck.BALANCED),  # the hand-over, not the computing
        (window(block=0.3, learner_wait=0.8), bottleneck.BALANCED),  # whoever makes the data is slower
        (window(env=0.9, policy=0.0, block=0.1, learner_wait=0.0), bottleneck.ENVIRONMENTS),
    ],
)
def test_each_kind_of_run_is_told_by_its_measurements(measured, kind):
    found = find(measured, SETTINGS)
    assert found is not None and found.kind == kind
    assert "\n" not in found.said and (not found.option or f"--{found.option}={found.value}" in found.said)


def test_nothing_is_told_where_nothing_was_stepped():
    assert find(window()._replace(shares={}), SETTINGS) is None


@pytest.mark.parametrize("kind", [SLEEPING, HEAVY, SLOW_LEARNER])
def test_neighbours_are_not_blamed_while_a_core_is_idle(kind):
    others = 0.85 * SETTINGS.cores - kind.run_cores
    found = find(kind._replace(other_cores=others, wanted_cores=1.5), SETTINGS)
    assert found is not None and found.kind != bottleneck.NEIGHBOURS


def test_in_a_container_with_a_quota_neighbours_on_other_cores_are_not_blamed():
    quota = SETTINGS._replace(shared_cores=16)
    busy, kept_off = (find(BUSY_ENVIRONMENTS._replace(other_cores=others), quota) for others in (10.0, 14.0))
    assert busy is not None and (busy.kind, busy.option) == (bottleneck.ENVIRONMENTS, "")  # its own quota is used up
    assert kept_off is not None and kept_off.kind == bottleneck.NEIGHBOURS


def test_neighbours_are_not_blamed_by_a_run_that_sleeps():
    found = find(SLEEPING._replace(other_cores=1.8), SETTINGS)
    assert found is not None and (found.kind, found.option) == (bottleneck.ENVIRONMENTS, "env_backend")


@pytest.mark.parametrize(
    ("measured", "changed", "option", "value"),
    [
        (BUSY_ENVIRONMENTS, {}, "", ""),
        (BUSY_ENVIRONMENTS, {"env_frameskip": 4}, "env_frameskip", "8"),
        (BUSY_ENVIRONMENTS, {"cores": 16, "shared_cores": 16}, "num_workers", "16"),
        (SLEEPING, {}, "env_backend", "subproc"),
        (SLEEPING, {"env_backend": "subproc"}, "num_workers", "4"),
        (SLEEPING, {"num_envs_per_worker": 1}, "num_workers", "4"),
        (HEAVY, {}, "policy_workers_per_policy", "2"),
        (HEAVY, {"device": "cuda:0"}, "hidden_size", "256"),
        (HEAVY._replace(run_cores=1.5, other_cores=0.4), {}, "hidden_size", "256"),
        (TINY, {}, "num_envs_per_worker", "32"),
        (SLOW_LEARNER, {"ppo_epochs": 4}, "ppo_epochs", "2"),
        (SLOW_LEARNER, {}, "hidden_size", "256"),
        (SLOW_LEARNER, {"device": "cuda:0"}, "batch_size", "2048"),
        (STRAGGLER, {}, "env_backend", "subproc"),
        (STRAGGLER, {"env_backend": "subproc"}, "", ""),
        (NEIGHBOURS, {}, "", ""),
    ],
)
def test_the_option_to_change_is_one_that_is_not_at_its_end(measured, changed, option, value):
    found = find(measured, SETTINGS._replace(**changed))
    assert found is not None and (found.option, found.value) == (option, value)


def test_the_sentence_has_the_evidence():
    busy, straggler = find(BUSY_ENVIRONMENTS, SETTINGS), find(STRAGGLER, SETTINGS)
    assert busy is not None and straggler is not None
    assert busy.said == (
        "environments take 99% of the actors' time and all cores are busy: more --num_workers cannot help on 2 cores, "
        "a faster or vectorised environment would"
    )
    assert straggler.culprit == "actor-00" and "41 ms, 8.2 times the 5 ms of the others" in straggler.said


def test_an_actor_that_waits_half_of_its_time_is_no_straggler():
    found = find(STRAGGLER._replace(stepping={"actor-00": 0.4, "actor-01": 0.9}), SETTINGS)
    assert found is not None and found.kind != bottleneck.STRAGGLER


def test_a_run_with_a_single_actor_has_no_straggler():
    found = find(STRAGGLER._replace(step_s={"actor-00": 0.041}, stepping={"actor-00": 0.98}), SETTINGS)
    assert found is not None and found.kind == bottleneck.ENVIRONMENTS


def test_findings_that_differ_in_numbers_only_are_the_same():
    first, later = (find(SLOW_LEARNER._replace(ready=ready), SETTINGS) for ready in (0.7, 0.8))
    other = find(SLOW_LEARNER, SETTINGS._replace(ppo_epochs=4))
    assert first is not None and later is not None and other is not None
    assert first.said != later.said and first.is_about == later.is_about != other.is_about


def counters(at, *, run_s=0.0, waited_s=0.0, busy_s=0.0, booked=(), counted=(), ready=0.0, looks=0):
    seconds = np.zeros((4, NUM_TIMERS))
    events = np.zeros((4, NUM_EVENT_COUNTERS), np.int64)
    for process, timer, number in booked:
        seconds[process, timer] = number
    for process, event, number in counted:
        events[process, event] = number
    return Counters(ProcessorTime(at, run_s, waited_s, busy_s), seconds, events, ready, looks)


def test_a_window_is_what_happened_between_two_moments():
    before = counters(100.0, run_s=5.0, busy_s=50.0, booked=[(0, Timer.ACTOR_ENV_STEP, 3.0)], ready=1.0, looks=2)
    after = counters(
        120.0,
        run_s=25.0,
        waited_s=10.0,
        busy_s=80.0,
        booked=[
            (0, Timer.ACTOR_ENV_STEP, 18.0),
            (0, Timer.ACTOR_SIMULATE, 14.0),  # a part of the stage above
            (0, Timer.ACTOR_WAIT_POLICY, 5.0),
            (1, Timer.ACTOR_ENV_STEP, 5.0),
            (1, Timer.ACTOR_WAIT_BLOCK, 15.0),
            (2, Timer.POLICY_FORWARD, 4.0),
            (2, Timer.POLICY_WAIT, 12.0),
            (3, Timer.LEARNER_COLLATE_AHEAD, 9.0),  # beside all stages
            (3, Timer.LEARNER_WAIT_BATCH, 2.0),
            (3, Timer.LEARNER_TRAIN, 6.0),
        ],
        counted=[
            (0, EventCounter.ACTOR_STEPS_OF_SPLITS, 100),
            (2, EventCounter.POLICY_BATCHES, 40),
            (2, EventCounter.POLICY_ROWS, 640),
        ],
        ready=2.0,
        looks=6,
    )
    found = window_between(before, after, KINDS, ACTORS)
    expected = {
        Timer.ACTOR_ENV_STEP: 0.5,
        Timer.ACTOR_WAIT_POLICY: 0.125,
        Timer.ACTOR_WAIT_BLOCK: 0.375,
        Timer.POLICY_FORWARD: 0.25,
        Timer.LEARNER_WAIT_BATCH: 0.25,
    }
    assert {timer: found.shares[timer] for timer in expected} == pytest.approx(expected)
    assert (found.seconds, found.run_cores, found.wanted_cores, found.other_cores) == (20.0, 1.0, 1.5, 0.5)
    assert (found.batch_rows, found.batch_s, found.ready) == (16.0, pytest.approx(0.1), 0.25)
    assert found.step_s == pytest.approx({"actor-00": 0.15}) and found.stepping == pytest.approx({"actor-00": 0.75})


def test_a_kind_without_processes_has_no_shares():
    booked = [(0, Timer.ACTOR_ENV_STEP, 5.0), (3, Timer.LEARNER_WAIT_BATCH, 5.0)]
    kinds = {"ACTOR": KINDS["ACTOR"], "LEARNER": KINDS["LEARNER"]}
    found = window_between(counters(0.0), counters(20.0, booked=booked), kinds, ACTORS)
    assert Timer.POLICY_WAIT not in found.shares and found.batch_rows == 0.0
    told = find(found, SETTINGS)
    assert told is not None and told.kind == bottleneck.ENVIRONMENTS
