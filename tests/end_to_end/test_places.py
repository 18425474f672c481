"""On which cores the workers of a run compute."""

from __future__ import annotations

import os
import signal

import pytest

from appo.utils.processes import usable_cores


@pytest.fixture
def two_cores():
    """The numbers of two cores, the only ones for what the test starts."""
    cores = usable_cores()
    if len(cores) < 2 or not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs two cores, and a system that can be told who runs where")
    os.sched_setaffinity(0, cores[:2])
    yield cores[:2]
    os.sched_setaffinity(0, cores)


PATIENCE_S = 300.0  # of a test that will fail: on a busy machine all of this takes long
# The learner trains several times as long as it takes to play a batch, so it always has one, however busy the machine
# is. Nobody is replaced for being slow or stopped.
OPTIONS = ["--num_workers=2", "--num_envs_per_worker=4", "--device=cpu", "--precision=fp32", "--batch_size=256"]
OPTIONS += ["--ppo_epochs=6", "--num_batches_per_iteration=1", "--heartbeat_timeout_seconds=600"]


@pytest.mark.alone
def test_two_cores_are_shared_out_while_doom_is_learned(start, two_cores):
    first, second = two_cores
    run = start(*OPTIONS, env="doom_basic")
    run.wait_for(lambda: run.status().get("env_frames"), PATIENCE_S)
    tree = run.tree()

    def cores_of(*kinds):
        return [process.cpu_affinity() for title, process in tree.items() if title.startswith(kinds)]

    assert sorted(cores_of("actor")) == [[first], [second]]
    # The learner always has a batch, and is left alone.
    run.wait_for(lambda: cores_of("actor", "policy") == [[second]] * 3, PATIENCE_S)
    engines = [process for process in run.tree().values() if "vizdoom" in process.name().lower()]
    run.wait_for(lambda: [engine.cpu_affinity() for engine in engines] == [[second]] * 8, PATIENCE_S)
    assert cores_of("learner") == [two_cores]
    run.signal(signal.SIGTERM)
    run.end()
