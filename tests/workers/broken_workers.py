"""Workers that do little, and workers that are broken on purpose; found by children through the search path alone."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from appo.algorithms.memory.counters import EventCounter
from appo.algorithms.messages import CheckpointSaved, EpisodeFinished, EpisodesFinished, PolicyRestored, Ready
from appo.algorithms.workers.worker import Worker


class Idle(Worker):
    """Does nothing, until it is told to end. Says in its log, by every means, that it lived."""

    def setup(self):
        print("printed in setup")
        logging.getLogger("idle").info("logged in setup")

    def step(self):
        time.sleep(0.01)

    def teardown(self):
        print("printed in teardown")


class Echo(Worker):
    """Gives every command back as a report."""

    def step(self):
        self.report(*self.commands.receive())
        time.sleep(0.01)


class Talks(Worker):
    """Reports numbers without end, and how many it counted; the last one while it ends."""

    def step(self):
        for _ in range(50):
            self.say()
        time.sleep(0.001)

    def say(self):
        self.counters.count(EventCounter.ACTOR_ROLLOUTS)
        number = int(self.counters._event_counts[EventCounter.ACTOR_ROLLOUTS])
        self.report(CheckpointSaved(0, "number", "x" * 20, number))

    def teardown(self):
        self.say()


class TellsMuchInSetup(Echo):
    """Restores a policy whose run state is several times as large as a queue."""

    def setup(self):
        self.report(PolicyRestored(0, "somewhere.pth", 5, {"returns": [0.5] * 300_000}, 0.0, [], {}, 0))


class TellsManyEpisodes(Idle):
    """Each step ends as many episodes as its queue holds; ten times."""

    def setup(self):
        self.rounds = 10

    def step(self):
        if self.rounds:
            self.rounds -= 1
            statistics = {f"statistic_{number}": 0.5 for number in range(400)}
            self.report(EpisodesFinished([EpisodeFinished(0, 1.0, 1.0, 10, dict(statistics)) for _ in range(120)]))
        time.sleep(0.01)


class FailsInSetup(Worker):
    def setup(self):
        raise ValueError("no such scenario")

    def teardown(self):
        print("teardown all the same")


class FailsInStep(Worker):
    def step(self):
        raise ValueError("a step too far")


class FailsAtLength(Worker):
    """With a text that no queue holds, behind reports that none holds either; prints it as well."""

    def step(self):
        text = "x" * 2_000_000
        print(text)
        for number in range(20):
            self.report(EpisodesFinished([EpisodeFinished(0, 1.0, 1.0, number, {text[:100_000]: 1.0})]))
        raise ValueError(f"begin {text} end")


class FailsInSetupOnce(Idle):
    def setup(self):
        if self.start.generation == 0:
            raise ValueError("not yet")


class FinalValueError(ValueError):
    retryable = False


class FailsForGood(Worker):
    def step(self):
        raise FinalValueError("no retry will help")


class WorksThenFails(Worker):
    """Does some of what every kind of worker is there for before it fails."""

    def step(self):
        for event in (
            EventCounter.ACTOR_STEPS_OF_SPLITS,
            EventCounter.ACTOR_ROLLOUTS,
            EventCounter.POLICY_BATCHES,
            EventCounter.LEARNER_BATCHES,
        ):
            self.counters.count(event)
        raise ValueError("a step too far")


class StaysInQueue(Worker):
    """Has something to tell, and then never comes out of the queue of its reports; its successor does."""

    def setup(self):
        self.report(Ready("told before"))

    def step(self):
        while self.start.generation == 0 and not self.counters.stop_requested:
            self.reports._gate.enter()
            self.counters.beat()
            time.sleep(0.01)
        time.sleep(0.01)


class FailsInTeardown(Worker):
    def step(self):
        time.sleep(0.01)

    def teardown(self):
        raise ValueError("cannot let go")


class ExitsInStep(Worker):
    def step(self):
        os._exit(7)


class CrashesInStep(Worker):
    def step(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(Worker):
    def step(self):
        self.stuck_here()

    def stuck_here(self):
        time.sleep(1000)


class HangsInSetup(Hangs):
    def setup(self):
        self.stuck_here()


class IgnoresStop(Worker):
    def step(self):
        while True:
            self.counters.beat()
            time.sleep(0.01)


class HasChildren(Idle):
    """Starts what a simulator might start, and tells the process ids."""

    def setup(self):
        sleep = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
        for start_new_session in (False, True):
            child = subprocess.Popen(sleep, start_new_session=start_new_session)
            self.report(Ready(str(child.pid)))


class RingsAll(Idle):
    """Rings every doorbell that it was given, but its own."""

    def setup(self):
        for bell in (*self.bells.actors.values(), *self.bells.of_kind("policy worker"), *self.bells.of_kind("learner")):
            bell.ring()
