"""Workers that are lost and replaced: at once, after pauses, or not at all; what they held comes back."""

import os
import signal
import time

import numpy as np
import pytest

from appo.algorithms.memory.blocks import BlockState, block_states
from appo.algorithms.memory.counters import Phase
from appo.algorithms.messages import (
    Ready,
    ReplaceWorkers,
    WorkerLost,
    WorkerQuarantined,
    WorkerReady,
    WorkerStarted,
    WorkerWorks,
)
from appo.algorithms.workers import supervisor
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.restarts import RestartLimits
from appo.algorithms.workers.roster import ACTOR
from appo.algorithms.workers.worker_handle import Limits
from tests.memory.memory_cases import open_descriptors, shared
from tests.workers.conftest import PATIENCE_S, is_alive

QUICK = RestartLimits(failures_in_a_row=2, setup_retries=2, first_pause_s=0.05)
POLICY_WORKER, LEARNER = 5, 6  # places of processes, see the sizes: two actors, one policy, seven processes in all


@pytest.fixture
def crew(make_crew):
    crew = make_crew(shared())
    crew.supervisor.restarts.limits = QUICK
    return crew


def told(crew, kind):
    return [report for report in crew.reports if isinstance(report, kind)]


def living(crew):
    return {worker.spec.name: worker for worker in crew.supervisor.workers}


def test_a_killed_worker_is_replaced_at_once_under_the_next_generation(crew):
    first = crew.broken("Idle", name="actor-00")
    crew.ready("actor-00")
    os.kill(first.pid, signal.SIGKILL)
    crew.poll_until(lambda: told(crew, WorkerReady))
    [lost], [started], [ready] = told(crew, WorkerLost), told(crew, WorkerStarted), told(crew, WorkerReady)
    cause = "actor-00 was killed by SIGKILL (kill -9, or the system ran out of memory)"
    assert lost == ("actor-00", 0, "step", cause, False)
    assert started == ("actor-00", 1) and ready[:2] == ("actor-00", 1)
    assert 0.0 < ready.seconds < 5.0
    assert living(crew)["actor-00"].generation == 1 and living(crew)["actor-00"].pid != first.pid
    assert crew.arrays["restarts"].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_the_first_work_of_a_successor_is_told_with_the_time_that_was_lost(crew):
    worker = crew.broken("Idle", process=POLICY_WORKER, name="policy-0-0")
    crew.ready("policy-0-0")
    os.kill(worker.pid, signal.SIGKILL)
    crew.poll_until(lambda: told(crew, WorkerReady))
    crew.supervisor.poll(0.05)
    assert not told(crew, WorkerWorks)
    crew.arrays["event_counts"][POLICY_WORKER] += 1
    crew.poll_until(lambda: told(crew, WorkerWorks))
    [works] = told(crew, WorkerWorks)
    assert works[:2] == ("policy-0-0", 1) and works.seconds >= told(crew, WorkerReady)[0].seconds


def test_what_a_lost_actor_was_filling_is_free_again_and_nothing_else_changes(crew):
    arrays = crew.arrays
    arrays["filling_sequence"][:] = arrays["ready_sequence"][:] = 1
    arrays["filling_sequence"][0, 1, 1] = arrays["filling_sequence"][1, 2, 0] = 2
    arrays["taking_sequence"][0, 0, 2, 0] = 1
    before = block_states(arrays)
    assert before[0, 1, 1] == before[1, 2, 0] == BlockState.FILLING
    worker = crew.broken("HangsInSetup", process=0, name="actor-00")
    for process, name in ((1, "actor-01"), (LEARNER, "learner-0")):
        crew.broken("Idle", process=process, name=name)
    crew.ready("actor-01", "learner-0")
    assert crew.supervisor.count_blocks()["lost"] == 0
    worker.process.kill()
    crew.poll_until(lambda: told(crew, WorkerLost))
    after = block_states(arrays)
    assert after[0, 1, 1] == BlockState.READY and after[1, 2, 0] == BlockState.FILLING
    assert after[0, 2, 0] == BlockState.TRAINING
    assert crew.supervisor.count_blocks()["lost"] == 0


def test_blocks_of_lost_workers_are_counted_as_lost_until_they_are_replaced(crew):
    arrays = crew.arrays
    crew.broken("Idle", process=1, name="actor-01")
    arrays["filling_sequence"][:, 0, 0] = 1  # of both actors; only one of them lives
    assert crew.supervisor.count_blocks()["lost"] == 1
    arrays["filling_sequence"][:] = 0
    arrays["ready_sequence"][0, 0, 0] = arrays["taking_sequence"][0, 0, 0, 0] = 1  # of a learner that is not there
    counts = crew.supervisor.count_blocks()
    assert counts == {"FREE": 11, "FILLING": 0, "READY": 0, "TRAINING": 1, "lost": 1}


def test_what_a_lost_learner_was_taking_waits_for_its_successor(crew):
    arrays = crew.arrays
    arrays["filling_sequence"][0, 0, 0] = arrays["ready_sequence"][0, 0, 0] = 1
    arrays["taking_sequence"][0, 0, 0, 0] = 1
    learner = crew.broken("Idle", process=LEARNER, name="learner-0")
    crew.ready("learner-0")
    os.kill(learner.pid, signal.SIGKILL)
    crew.poll_until(lambda: told(crew, WorkerStarted))
    assert block_states(arrays)[0, 0, 0] == BlockState.READY


def test_an_actor_that_keeps_failing_is_given_up_after_pauses_and_the_run_goes_on(crew):
    began = time.monotonic()
    crew.broken("FailsInStep", process=0, name="actor-00")
    crew.poll_until(lambda: told(crew, WorkerQuarantined))
    assert time.monotonic() - began > QUICK.first_pause_s
    assert told(crew, WorkerQuarantined) == [("actor-00", "3 times in a row soon after its start")]
    assert [lost.generation for lost in told(crew, WorkerLost)] == [0, 1, 2]
    for lost in told(crew, WorkerLost):
        assert lost.cause.startswith("actor-00 failed: ValueError: a step too far (tests/") and lost.by_exception
    assert np.flatnonzero(crew.arrays["quarantined"]).tolist() == [0]
    crew.supervisor.poll(0.2)
    assert living(crew) == {}


def test_more_actors_than_may_be_given_up_end_the_run_with_the_cause_last(crew):
    for process in range(2):
        crew.broken("FailsInStep", process=process, name=f"actor-{process:02d}")
    message = crew.failure()
    assert "failed, 3 times in a row soon after its start; 1 of 2 actors were quarantined before it" in message
    assert message.endswith("ValueError: a step too far")


@pytest.mark.parametrize(("process", "name"), [(POLICY_WORKER, "policy-0-0"), (LEARNER, "learner-0")])
def test_a_run_cannot_do_without_its_policy_workers_and_learners(crew, process, name):
    crew.broken("FailsInStep", process=process, name=name)
    message = crew.failure()
    assert message.startswith(f"{name} failed, 3 times in a row") and message.endswith("ValueError: a step too far")
    assert [lost.generation for lost in told(crew, WorkerLost)] == [0, 1]  # the third comes with the exception


@pytest.mark.parametrize("process", [0, POLICY_WORKER, LEARNER])
def test_a_worker_that_works_a_little_between_its_exceptions_fails_in_a_row_all_the_same(crew, process):
    crew.broken("WorksThenFails", process=process, name="worker")
    in_a_row = "3 times in a row soon after its start"
    if process == 0:
        crew.poll_until(lambda: told(crew, WorkerQuarantined))
        assert told(crew, WorkerQuarantined) == [("worker", in_a_row)]
    else:
        assert in_a_row in crew.failure()
    assert len(told(crew, WorkerStarted)) == QUICK.failures_in_a_row


@pytest.mark.parametrize("process", [0, POLICY_WORKER, LEARNER])
def test_a_worker_that_lives_long_between_its_failures_is_replaced_however_often(crew, process, monkeypatch):
    monkeypatch.setattr(supervisor, "LONG_LIFE_S", 0.0)
    crew.broken("WorksThenFails", process=process, name="worker")
    crew.poll_until(lambda: len(told(crew, WorkerStarted)) > 3 * QUICK.failures_in_a_row)
    assert len(told(crew, WorkerWorks)) > QUICK.failures_in_a_row


def test_a_failure_of_any_length_is_a_failure_and_its_text_is_cut_with_both_ends_kept(crew):
    crew.broken("FailsAtLength", process=0, name="actor-00")
    crew.broken("FailsAtLength", process=LEARNER, name="learner-0")
    message = crew.failure()
    assert message.endswith(" end") and "ValueError: begin x" in message and len(message) < 20_000
    assert "characters cut" in message
    causes = [lost.cause for lost in told(crew, WorkerLost)]
    assert causes and all("failed: ValueError: begin x" in cause and len(cause) < 3_000 for cause in causes)
    assert len(told(crew, WorkerStarted)) <= 2 * QUICK.failures_in_a_row
    log = crew.logs()["learner-0"]
    traces = log.split("learner-0 failed in step")[1:]
    assert traces and all("ValueError: begin x" in trace for trace in traces)
    assert len(log) < len(traces) * 2_050_000  # what it printed itself, and not once more


def test_what_no_retry_can_help_ends_the_run_at_once(crew):
    crew.broken("FailsForGood", process=0, name="actor-00")
    assert crew.failure().endswith("ValueError: no retry will help")
    assert not told(crew, WorkerStarted)


def test_an_actor_that_fails_in_setup_is_tried_again_and_others_are_not(crew):
    crew.broken("FailsInSetupOnce", process=0, name="actor-00")
    crew.poll_until(lambda: told(crew, WorkerReady))
    crew.broken("FailsInSetup", process=1, name="actor-01")
    assert crew.failure().endswith("ValueError: no such scenario")
    assert [lost.generation for lost in told(crew, WorkerLost) if lost.worker == "actor-01"] == [0, 1]
    crew.broken("FailsInSetupOnce", process=LEARNER, name="learner-0")
    assert crew.failure().endswith("ValueError: not yet")


@pytest.mark.parametrize("number", [signal.SIGSTOP, None])
def test_a_worker_without_a_sign_of_life_is_replaced(crew, number):
    crew.supervisor.limits = Limits(step_s=0.5)
    worker = crew.broken("Idle" if number else "Hangs", name="actor-00")
    crew.ready("actor-00")
    if number:
        os.kill(worker.pid, number)
    crew.poll_until(lambda: told(crew, WorkerReady))
    assert (
        told(crew, WorkerLost)[0].cause
        == "actor-00 showed no sign of life for 0.5 s in step (--heartbeat_timeout_seconds)"
    )
    assert not is_alive(worker.pid)


def test_what_a_lost_worker_had_started_is_killed_and_what_others_started_is_not(crew):
    children = {}
    for process, name in enumerate(("actor-00", "actor-01")):
        worker = crew.broken("HasChildren", process=process, name=name)
        crew.ready(name)
        children[name] = [int(report.worker) for report in told(crew, Ready) if report.worker.isdigit()]
        crew.reports.clear()
        assert len(children[name]) == 2 and all(is_alive(child) for child in children[name])
    os.kill(worker.pid, signal.SIGKILL)
    crew.poll_until(lambda: told(crew, WorkerLost))
    assert not any(is_alive(child) for child in children["actor-01"])
    assert all(is_alive(child) for child in children["actor-00"])


def test_a_worker_that_is_stopped_or_dies_inside_a_queue_blocks_no_other(crew):
    worker = crew.broken("StaysInQueue", name="actor-00")
    crew.poll_until(lambda: crew.phase() == Phase.STEP and crew.arrays["worker_in_queue"][0, 0])
    os.kill(worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(5):
        crew.reports += crew.supervisor.poll(0.01)
    assert time.monotonic() - began < 1.0
    os.kill(worker.pid, signal.SIGKILL)
    crew.poll_until(lambda: told(crew, WorkerReady))  # its successor has queues of its own


def test_what_a_killed_worker_had_reported_is_read(crew):
    worker = crew.broken("Talks", name="actor-00")
    crew.ready("actor-00")
    before = len(crew.reports)
    time.sleep(0.2)  # nobody reads meanwhile
    os.kill(worker.pid, signal.SIGSTOP)
    sent = int(crew.arrays["reports_sent"][0])
    is_inside = bool(crew.arrays["worker_in_queue"][0, 0])
    os.kill(worker.pid, signal.SIGKILL)
    crew.poll_until(lambda: told(crew, WorkerLost))
    if not is_inside:
        assert len(crew.reports) - before >= sent - before - 1


def test_replacing_leaves_no_descriptor_open(crew, monkeypatch):
    monkeypatch.setattr(supervisor, "LONG_LIFE_S", 0.0)
    # On a busy machine it fails before the work that it did is seen.
    crew.supervisor.restarts.limits = QUICK._replace(failures_in_a_row=100)
    crew.broken("WorksThenFails", process=0, name="actor-00")
    crew.poll_until(lambda: len(told(crew, WorkerStarted)) > 3)
    before = open_descriptors()
    crew.poll_until(lambda: len(told(crew, WorkerStarted)) > 15)
    assert abs(open_descriptors() - before) <= 3  # one incarnation has a few


def test_workers_of_one_policy_are_replaced_alone(crew):
    crew.broken("Idle", process=0, name="actor-00")
    crew.broken("Idle", process=LEARNER, name="learner-0")
    crew.ready("actor-00", "learner-0")
    crew.supervisor.send_all([ReplaceWorkers("learner", 1, "was in the way")])
    crew.supervisor.poll(0.3)
    assert not told(crew, WorkerLost)
    crew.supervisor.send_all([ReplaceWorkers("learner", 0, "was in the way")])
    crew.poll_until(lambda: len(told(crew, WorkerReady)) == 1)
    assert [lost.cause for lost in told(crew, WorkerLost)] == ["learner-0 was in the way"]


def test_workers_that_block_progress_are_replaced_together(crew):
    for process, name in ((0, "actor-00"), (1, "actor-01"), (LEARNER, "learner-0")):
        crew.broken("Idle", process=process, name=name)
    crew.ready("actor-00", "actor-01", "learner-0")
    crew.supervisor.send_all([ReplaceWorkers(ACTOR, None, "was in the way")])
    crew.poll_until(lambda: len(told(crew, WorkerReady)) == 2)
    assert {lost.cause for lost in told(crew, WorkerLost)} == {"actor-00 was in the way", "actor-01 was in the way"}
    assert living(crew)["learner-0"].generation == 0
    assert "Current thread" in crew.logs()["learner-0"]  # its stacks


def test_a_worker_that_is_told_to_end_is_not_replaced(crew):
    crew.supervisor.restarts.limits = RestartLimits(first_pause_s=0.3)
    for process in range(2):
        crew.broken("FailsInStep", process=process, name=f"actor-{process:02d}")
    crew.poll_until(lambda: len(told(crew, WorkerLost)) >= 4)
    crew.supervisor.stop_sampling(PATIENCE_S)
    started = crew.arrays["restarts"].sum()
    crew.supervisor.poll(0.5)
    assert crew.arrays["restarts"].sum() == started and living(crew) == {}


def test_without_a_forkserver_no_worker_is_replaced_and_reports_still_arrive(crew, monkeypatch):
    worker = crew.broken("Echo", name="actor-00")
    crew.ready("actor-00")
    monkeypatch.setattr(crew.supervisor._launcher, "dead", lambda: "the forkserver")
    with pytest.raises(RunFailed, match=r"^the forkserver was killed$"):
        crew.supervisor.poll(0.01)
    crew.send("actor-00", Ready("said"))
    crew.ready("said")
    assert crew.lives("actor-00") and not crew.lives("actor-01")
    os.kill(worker.pid, signal.SIGKILL)
    crew.poll_until(lambda: not crew.lives("actor-00"))
    assert not any(isinstance(report, WorkerLost | WorkerStarted) for report in crew.reports)
