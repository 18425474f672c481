"""On which cores the workers of a run compute."""

from __future__ import annotations

import os
import signal

import pytest

from utils.processes import usable_cores


@pytest.fixture
def two_cores():
    """The numbers of two cores, the only ones for what the test starts."""
    cores = usable_cores()
    if len(cores) < 2 or not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs two cores, and a system that can be told who runs where")
    os.sched_setaffinity(0, cores[:2])
    yield cores[:2]
    os.sched_setaffinity(0, cores)


def test_two_cores_are_shared_out_while_doom_is_learned(start, two_cores):
    first, second = two_cores
    options = ["--num_workers=2", "--num_envs_per_worker=4", "--device=cpu", "--batch_size=256", "--ppo_epochs=3"]
    run = start(*options, env="doom_basic")

    def cores_of(*kinds):
        tree = run.tree()
        return [tree[title].cpu_affinity() for title in tree if title.startswith(kinds)]

    def engines():
        return [process for process in run.tree().values() if "vizdoom" in process.name().lower()]

    run.wait_for_training()
    assert sorted(cores_of("actor")) == [[first], [second]]
    # The learner always has a batch, and is left alone.
    run.wait_for(lambda: cores_of("actor", "policy") == [[second]] * 3)
    assert len(engines()) == 8 and all(engine.cpu_affinity() == [second] for engine in engines())
    assert cores_of("learner") == [two_cores]
    # It sleeps, since nobody plays, and lends its core.
    for number, expected in (signal.SIGSTOP, [first]), (signal.SIGCONT, [second]):
        for actor in "actor-00", "actor-01":
            run.kill(actor, number)
        run.wait_for(lambda expected=expected: cores_of("policy") == [expected])
    run.signal(signal.SIGTERM)
    assert run.end() == 143
