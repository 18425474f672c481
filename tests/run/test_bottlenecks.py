"""When a run says why it is slow: what has held for a minute, once, and again when it has changed."""

import logging
from typing import Any

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.memory.counters import EventCounter, Timer
from appo.algorithms.messages import WorkerStarted
from appo.algorithms.reporting.event_log import EventLog
from appo.algorithms.reporting.machine import Machine, ProcessorTime
from appo.algorithms.reporting.snapshot import PolicySnapshot, RunSnapshot
from appo.algorithms.run.controllers import bottlenecks as module
from appo.algorithms.run.controllers.bottlenecks import Bottlenecks
from appo.algorithms.workers.roster import Roster
from appo.utils.files import read_json_lines
from tests.reporting.reporting_cases import Clock, small_statistics

ACTORS, POLICY, LEARNER = (0, 1), 2, 3
SLEEPS = {Timer.ACTOR_ENV_STEP: 0.95, Timer.ACTOR_WAIT_POLICY: 0.05}
WAITS_FOR_LEARNER = {Timer.ACTOR_ENV_STEP: 0.1, Timer.ACTOR_WAIT_BLOCK: 0.9}


class SmallRun:
    """A run of two actors, a policy worker and a learner; time passes as told."""

    def __init__(self, tmp_path, monkeypatch, *words):
        self.clock = Clock()
        monkeypatch.setattr(module, "time", self.clock)
        monkeypatch.setattr(Machine, "look", lambda _: ProcessorTime(self.clock.now, 0.2 * self.clock.now, 0.0, 0.0))
        self.config = resolve(["--env=CartPole-v1", "--num_workers=2", "--device=cpu", *words]).config
        self.statistics = small_statistics()
        self.arrays, self.roster = self.statistics.arrays, Roster.of(self.config.sampling, self.config.workers)
        self.events = tmp_path / "events.jsonl"
        self.event_log = EventLog(self.events)
        self.controller = Bottlenecks(self._as_context())
        self.train_steps = 1

    def _as_context(self) -> Any:
        return self

    def snapshot(self):
        policy = PolicySnapshot(1000, self.train_steps, 0, None, None, None)
        blocks = {"FREE": 1, "READY": 3}
        return RunSnapshot("training", 0.0, 1000, 1.0, {10: 1.0}, None, 0.5, {}, blocks, (policy,))

    def spend(self, seconds, stages):
        """Let actors spend their time so, while the learner trains and the policy worker waits."""
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            for actor in ACTORS:
                self.arrays["event_counts"][actor, EventCounter.ACTOR_STEPS_OF_SPLITS] += 10
                for timer, share in stages.items():
                    self.book(actor, timer, share)
            self.book(POLICY, Timer.POLICY_WAIT, 1.0)
            self.book(LEARNER, Timer.LEARNER_TRAIN, 1.0)
            assert not self.controller.due(self.snapshot())

    def book(self, process, timer, seconds):
        self.arrays["timers"][process, timer] += seconds
        self.arrays["laps"][process, timer] += 1

    def told(self):
        return [line["kind"] for line in read_json_lines(self.events)] if self.events.exists() else []


@pytest.fixture
def start(tmp_path, monkeypatch):
    return lambda *words: SmallRun(tmp_path, monkeypatch, *words)


def test_what_has_held_for_a_minute_is_told_once_and_what_follows_it_too(start, caplog):
    caplog.set_level(logging.INFO)
    run = start()
    run.spend(60, SLEEPS)
    assert run.told() == []
    run.spend(200, SLEEPS)
    assert run.told() == ["environments"]
    run.spend(100, WAITS_FOR_LEARNER)
    assert run.told() == ["environments", "learner"]
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["bottleneck:"] * 2


def test_what_changes_every_half_minute_is_not_told(start):
    run = start()
    for _ in range(4):
        run.spend(30, SLEEPS)
        run.spend(30, WAITS_FOR_LEARNER)
    assert run.told() == [] and run.statistics.bottleneck is not None


def test_a_snapshot_has_the_finding_of_the_whole_run_from_the_twentieth_second_on(start):
    run = start()
    run.spend(19, SLEEPS)
    assert run.statistics.snapshot().bottleneck is None
    run.spend(7, SLEEPS)
    found = run.statistics.bottleneck
    assert found is not None and found.kind == "environments"
    run.spend(100, WAITS_FOR_LEARNER)
    assert run.statistics.bottleneck.kind == "learner"
    assert run.statistics.bottleneck.numbers["ready"] == pytest.approx(0.75)
    assert run.statistics.last_snapshot().bottleneck == run.statistics.bottleneck


def test_the_time_before_the_first_optimizer_step_does_not_count(start):
    run = start()
    run.train_steps = 0
    run.spend(100, SLEEPS)
    assert run.statistics.bottleneck is None
    run.train_steps = 1
    run.spend(40, WAITS_FOR_LEARNER)
    assert run.statistics.bottleneck is not None and run.statistics.bottleneck.kind == "learner"


def test_in_serial_mode_nothing_is_told(start):
    run = start("--serial_mode=True")
    run.spend(200, SLEEPS)
    assert run.told() == [] and run.statistics.bottleneck is None


def test_processes_are_listed_again_when_one_was_started(start, monkeypatch):
    run, listed = start(), []
    monkeypatch.setattr(Machine, "list_again", lambda _: listed.append(True))
    run.controller.note(WorkerStarted("actor-00", 1))
    assert listed == [True]
