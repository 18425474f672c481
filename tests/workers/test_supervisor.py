"""The supervisor, with workers that are broken on purpose: every end is noticed, named, and leaves nothing behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from appo.algorithms.memory.counters import EventCounter, Phase
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.messages import (
    CheckpointSaved,
    EpisodesFinished,
    PolicyRestored,
    Ready,
    SaveCheckpoint,
    WorkerLost,
    WorkerReady,
)
from appo.algorithms.workers.placement import Placement
from appo.algorithms.workers.process_launcher import TORCH_KEPT_S, ProcessLauncher
from appo.algorithms.workers.roster import LEARNER, WorkerId
from appo.algorithms.workers.worker_handle import Limits
from appo.utils.processes import usable_cores
from tests.memory.memory_cases import small_sizes
from tests.workers.conftest import PATIENCE_S, exit_code, is_alive

HANGS_FOR_S = 0.5


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_worker_lives_from_setup_to_teardown_and_ends_when_asked(crew):
    worker = crew.broken("Idle", name="actor-00")
    crew.ready("actor-00")
    wait_until(lambda: crew.phase() == Phase.STEP)
    first = float(crew.arrays["heartbeat"][0])
    wait_until(lambda: crew.arrays["heartbeat"][0] > first)
    assert crew.supervisor.stop(PATIENCE_S) == []
    assert exit_code(worker) == 0
    assert crew.phase() == Phase.ENDED
    assert not is_alive(worker.pid) and crew.supervisor.workers == []
    log = crew.logs()["actor-00"]
    assert "printed in setup" in log and "printed in teardown" in log
    assert "actor-00 INFO logged in setup" in log


def test_an_exception_in_setup_ends_the_run_with_its_traceback(crew):
    worker = crew.broken("FailsInSetup", name="actor-01")
    message = crew.failure()
    assert message.startswith("actor-01 failed\nTraceback")
    assert message.endswith("ValueError: no such scenario")
    assert "in setup" in message and "broken_workers.py" in message
    assert exit_code(worker) == 1
    log = crew.logs()["actor-01"]
    assert "actor-01 failed in setup" in log and "teardown all the same" in log
    assert not any(isinstance(report, Ready) for report in crew.reports)


def test_an_exception_in_a_step_ends_the_run_with_its_traceback(crew):
    crew.broken("Idle", process=0)
    crew.broken("FailsInStep", process=1, name="learner-0")
    message = crew.failure()
    assert message.startswith("learner-0 failed\nTraceback") and message.endswith("ValueError: a step too far")
    assert "learner-0 failed in step" in crew.logs()["learner-0"]


def test_an_exception_in_teardown_is_logged_and_leaves_the_exit_code(crew):
    worker = crew.broken("FailsInTeardown")
    crew.ready("worker-0")
    crew.supervisor.stop(PATIENCE_S)
    assert exit_code(worker) == 1
    assert "ValueError: cannot let go" in crew.logs()["worker-0"]


def test_a_failure_that_was_not_seen_before_the_end_is_told(crew, caplog):
    worker = crew.broken("FailsInStep")
    worker.process.join(PATIENCE_S)
    crew.supervisor.stop(PATIENCE_S)
    assert "worker-0, while it was ended, failed: ValueError: a step too far" in caplog.text


def test_a_worker_that_ends_by_itself_is_named_with_its_exit_code(crew):
    crew.broken("ExitsInStep", name="actor-02")
    message = crew.failure()
    assert message.startswith("actor-02 ended by itself with exit code 7; an environment that ends its process costs")
    assert message.endswith(f"; see {crew.log_dir / 'actor-02.txt'}")


def test_a_killed_worker_is_named_with_the_signal(crew):
    worker = crew.broken("Idle", name="policy-0-0")
    crew.ready("policy-0-0")
    os.kill(worker.pid, signal.SIGKILL)
    began = time.monotonic()
    assert crew.failure() == "policy-0-0 was killed by SIGKILL (kill -9, or the system ran out of memory)"
    assert time.monotonic() - began < 10.0


def test_a_crash_leaves_its_signal_and_the_stack_in_the_log(crew):
    crew.broken("CrashesInStep", name="actor-03")
    assert crew.failure().startswith("actor-03 was killed by SIGSEGV; an environment that ends its process")
    assert "Segmentation fault" in crew.logs()["actor-03"]
    assert "broken_workers.py" in crew.logs()["actor-03"]


@pytest.mark.parametrize(
    ("kind", "phase", "option"), [("Hangs", "step", "--heartbeat"), ("HangsInSetup", "setup", "--reset")]
)
def test_a_worker_without_a_sign_of_life_is_named_and_its_stack_is_in_its_log(crew, kind, phase, option):
    crew.broken(kind, name="actor-04")
    wait_until(lambda: crew.phase() == Phase[phase.upper()])
    crew.supervisor.limits = Limits(setup_s=HANGS_FOR_S, step_s=HANGS_FOR_S)
    assert (
        crew.failure() == f"actor-04 showed no sign of life for {HANGS_FOR_S:g} s in {phase} ({option}_timeout_seconds)"
    )
    wait_until(lambda: "stuck_here" in crew.logs()["actor-04"])


def test_every_phase_has_its_own_limit():
    limits = Limits(setup_s=3.0, reset_s=2.0, step_s=1.0)
    assert {phase: limits.of(phase) for phase in Phase} == {
        Phase.NOT_STARTED: 3.0,
        Phase.SETUP: 3.0,
        Phase.RESET: 2.0,
        Phase.STEP: 1.0,
        Phase.TEARDOWN: 1.0,
        Phase.ENDED: 1.0,
    }


def test_a_worker_that_ignores_stop_is_killed(crew):
    stubborn, obedient = crew.broken("IgnoresStop", process=0), crew.broken("Idle", process=1)
    crew.ready("worker-0", "worker-1")
    crew.supervisor.stop(1.0)
    assert exit_code(stubborn) == -signal.SIGKILL
    assert exit_code(obedient) == 0
    assert not is_alive(stubborn.pid)


def test_reports_arrive_in_order_to_the_very_last(crew):
    crew.broken("Talks", name="talker")
    crew.poll_until(lambda: len(crew.reports) > 1000)
    crew.reports += crew.supervisor.stop(PATIENCE_S)
    numbers = [report.request for report in crew.reports if isinstance(report, CheckpointSaved)]
    assert numbers == list(range(1, int(crew.arrays["event_counts"][0, EventCounter.ACTOR_ROLLOUTS]) + 1))


def test_the_reports_before_a_failure_are_not_lost(crew):
    crew.broken("Talks", process=0, name="talker")
    crew.poll_until(lambda: len(crew.reports) > 10)
    crew.broken("FailsInStep", process=1)
    assert "a step too far" in crew.failure()
    crew.reports += crew.supervisor.stop(PATIENCE_S)
    numbers = [report.request for report in crew.reports if isinstance(report, CheckpointSaved)]
    assert numbers == list(range(1, int(crew.arrays["event_counts"][0, EventCounter.ACTOR_ROLLOUTS]) + 1))
    assert [report.worker for report in crew.reports if isinstance(report, WorkerLost)] == ["worker-1"]


def test_a_command_reaches_its_worker_and_no_other(crew):
    crew.broken("Echo", process=0, name="learner-0")
    crew.broken("Echo", process=1, name="learner-1")
    crew.ready("learner-0", "learner-1")
    commands = [SaveCheckpoint(0, "latest", number, {"a": [1, 2]}, number, 0.5, "") for number in range(5)]
    for command in commands:
        assert crew.send("learner-1", command)
    crew.poll_until(lambda: len(crew.reports) == 7)
    assert [report for report in crew.reports if isinstance(report, SaveCheckpoint)] == commands
    assert int(crew.arrays["reports_sent"][0]) == 1
    assert not crew.supervisor.send(WorkerId(LEARNER, 7, 0), commands[0])


def test_a_command_that_is_sent_while_its_worker_still_starts_is_not_lost(crew):
    crew.broken("Echo", name="learner-0")
    command = SaveCheckpoint(0, "latest", 1, {}, 1, 0.5, "")
    assert crew.send("learner-0", command)
    crew.poll_until(lambda: command in crew.reports)


def test_a_command_and_a_report_that_are_larger_than_their_queues_arrive(crew):
    crew.broken("Echo", name="learner-0")
    crew.ready("learner-0")
    command = SaveCheckpoint(0, "latest", 1, {"returns": [number / 7 for number in range(300_000)]}, 1, 0.5, "")
    small = SaveCheckpoint(0, "best", 2, {}, 2, 0.5, "reward")
    assert crew.send("learner-0", command) and crew.send("learner-0", small)
    crew.poll_until(lambda: small in crew.reports)
    assert [report for report in crew.reports if isinstance(report, SaveCheckpoint)] == [command, small]


def test_what_a_worker_restores_is_told_before_it_is_ready_however_large_it_is(crew):
    crew.broken("TellsMuchInSetup", name="learner-0")
    crew.ready("learner-0")
    assert [type(report) for report in crew.reports] == [PolicyRestored, Ready]
    assert len(crew.reports[0].run_state["returns"]) == 300_000


@pytest.mark.parametrize("is_ended", [False, True], ids=["while it runs", "while it is ended"])
def test_a_burst_of_episodes_that_no_queue_holds_is_counted_to_the_last(crew, is_ended):
    def episodes():
        return sum(len(report.episodes) for report in crew.reports if isinstance(report, EpisodesFinished))

    crew.broken("TellsManyEpisodes", name="actor-00")
    crew.ready("actor-00")
    if is_ended:
        time.sleep(1.0)  # nobody reads meanwhile
        crew.reports += crew.supervisor.stop_sampling(PATIENCE_S)
        assert episodes() == 1200
    crew.poll_until(lambda: episodes() == 1200)
    assert crew.arrays["event_counts"][0, EventCounter.REPORTS_DROPPED] == 0


def test_sampling_can_be_ended_alone(crew):
    actors = [crew.broken("Idle", process=process) for process in range(2)]  # of two actors, see the sizes
    learner = crew.broken("Idle", process=2, name="learner-0")
    crew.ready("worker-0", "worker-1", "learner-0")
    crew.supervisor.stop_sampling(PATIENCE_S)
    assert [exit_code(worker) for worker in actors] == [0, 0]
    crew.supervisor.poll(0.05)  # those that were told to end are not missed
    assert [worker.spec.name for worker in crew.supervisor.workers] == ["learner-0"]
    assert learner.process.is_alive()


def test_a_worker_is_where_it_was_placed_and_called_what_it_is(crew):
    core = usable_cores()[-1]
    worker = crew.broken("Idle", name="actor-05", placement=Placement((core,), 1, 3))
    crew.ready("actor-05")
    assert os.sched_getaffinity(worker.pid) == {core}
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert Path(f"/proc/{worker.pid}/cmdline").read_text().startswith("actor-05")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_that_belong_to_the_driver_do_not_end_a_worker(crew, number):
    worker = crew.broken("Idle")
    crew.ready("worker-0")
    os.kill(worker.pid, number)
    beats = float(crew.arrays["heartbeat"][0])
    wait_until(lambda: crew.arrays["heartbeat"][0] > beats + 0.05)
    assert worker.process.is_alive()


def test_the_next_incarnation_takes_the_place_of_the_first(crew):
    crew.broken("FailsInStep", name="actor-06")
    crew.failure()
    crew.supervisor.poll(0.0)  # what the first one had still reported
    heartbeat = float(crew.arrays["heartbeat"][0])
    crew.reports.clear()
    crew.broken("Echo", name="actor-06", generation=1)
    crew.ready("actor-06")
    assert crew.arrays["heartbeat"][0] > heartbeat
    crew.send("actor-06", SaveCheckpoint(0, "best", 1, {}, 1, 0.0, "reward"))
    crew.poll_until(lambda: len(crew.reports) == 3)
    assert [type(report) for report in crew.reports] == [Ready, WorkerReady, SaveCheckpoint]


def test_memory_of_every_worker_is_measured_and_torch_forgotten_after_a_while(crew, monkeypatch):
    kept = []
    monkeypatch.setattr(ProcessLauncher, "forget_torch", lambda _, unused_for_s: kept.append(unused_for_s))
    crew.broken("Idle", process=3)
    crew.ready("worker-3")
    crew.supervisor.measure_memory()
    assert set(kept) == {TORCH_KEPT_S}
    measured = crew.arrays["memory_mb"]
    assert 10.0 < measured[3] < 1000.0
    assert not measured[:3].any() and not measured[4:].any()


def test_every_worker_has_the_doorbells_that_it_needs_however_many_actors_there_are(make_crew):
    """More than a process can be started with: of 600 actors, two policies with two policy workers each."""
    sizes = small_sizes(policies=2)._replace(actors=600, processes=606, blocks=1)
    crew = make_crew(SharedArrays.create(sizes))
    all_bells = [crew.bells.of(worker) for worker in crew.roster.ids]

    def rung_by(process):
        crew.broken("RingsAll", process=process)
        crew.ready(f"worker-{process}")
        return {number for number, bell in enumerate(all_bells) if bell.wait(0.0)}

    assert rung_by(7) == {601, 603, 604, 605}  # the policy workers that serve odd actors, and both learners
    assert rung_by(603) == set(range(1, 600, 2))  # the second policy worker of policy 1
    assert rung_by(605) == {*range(600), 602, 603}  # the learner of policy 1
