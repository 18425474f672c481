"""What happens when a process of a run dies or hangs: the run ends at once, says why, and leaves nothing behind."""

from __future__ import annotations

import signal
import time

import pytest

from algorithms import checkpoints
from tests.end_to_end.conftest import SMALL, wait_for_end

WORKERS = ["actor-01", "policy-0-0", "learner-0"]


@pytest.mark.parametrize("title", [*WORKERS, "guardian", "forkserver"])
def test_a_killed_process_ends_the_run_within_two_seconds_and_is_named(start, title):
    run = start(*SMALL)
    run.wait_for_training()
    run.kill(title)
    began = time.monotonic()
    assert run.end() == 1
    assert time.monotonic() - began < 2.0
    last_line = run.output.strip().splitlines()[-1]
    assert f"{title} was killed" in last_line, last_line


@pytest.mark.parametrize("title", ["actor-01", "policy-0-0"])
def test_what_was_learned_is_saved_when_somebody_else_dies(start, title):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    run.kill(title)
    assert run.end() == 1
    assert checkpoints.load_newest_valid(run.folder / "checkpoint_p0").train_step > 0


def test_nothing_outlives_a_killed_driver(start):
    run = start(*SMALL)
    run.wait_for_training()
    family = list(run.tree().values())
    assert len(family) >= 7  # driver, guardian, server, tracker, two actors, policy worker, learner
    run.process.kill()
    began = time.monotonic()
    assert not wait_for_end(family[1:], seconds=2.0)
    assert time.monotonic() - began < 2.5


def test_no_doom_engine_outlives_a_killed_actor_or_driver(start):
    options = ("--num_workers=2", "--num_envs_per_worker=2", "--batch_size=128", "--hidden_size=32", "--device=cpu")
    for title in ("actor-00", "appo driver"):
        run = start(*options, "--restart_behavior=overwrite", env="doom_basic")
        run.wait_for_training()
        family = list(run.tree().values())
        engines = [process for process in family if "vizdoom" in process.name().lower()]
        assert len(engines) == 4
        run.kill(title)
        assert not wait_for_end(family[1:], seconds=2.0)
        assert run.end() in (1, -signal.SIGKILL)


@pytest.mark.parametrize("title", WORKERS)
def test_a_stopped_process_is_found_by_its_heartbeat(start, title):
    run = start(*SMALL, "--heartbeat_timeout_seconds=2")
    run.wait_for_training()
    run.kill(title, signal.SIGSTOP)
    began = time.monotonic()
    assert run.end() == 1
    assert 1.5 < time.monotonic() - began < 8.0
    assert f"{title} showed no sign of life for 2 s" in run.output.strip().splitlines()[-1]


def test_an_environment_that_raises_ends_the_run_with_its_traceback_last(start, tmp_path):
    (tmp_path / "broken.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps > 300:\n"
        "            raise ZeroDivisionError('the wheel came off')\n"
        "        return self.env.step(action)\n"
        "def make_env():\n"
        "    return Broken(gymnasium.make('CartPole-v1'))\n"
    )
    run = start(*SMALL, "--use_rnn=False", env="broken:make_env")
    assert run.end() == 1
    assert "actor-0" in run.output and "in step" in run.output and "environment" in run.output
    assert "the wheel came off" in run.output.strip().splitlines()[-1]


def test_an_environment_that_cannot_be_built_is_told_before_any_worker_starts(start, tmp_path):
    (tmp_path / "unbuilt.py").write_text("def make_env():\n    raise OSError('no such cartridge')\n")
    run = start(*SMALL, env="unbuilt:make_env")
    assert run.end() == 1
    assert "no such cartridge" in run.output.strip().splitlines()[-1]
    assert not run.folder.exists()


def test_processes_have_readable_names_and_actors_are_small_and_without_torch(start):
    run = start(*SMALL)
    run.wait_for_training()
    tree = run.tree()
    assert {"appo driver", "actor-00", "actor-01", "policy-0-0", "learner-0"} <= set(tree)
    for title in ("actor-00", "actor-01"):
        assert tree[title].memory_full_info().uss < 100e6
        assert not any("torch" in region.path for region in tree[title].memory_maps())
    assert any("torch" in region.path for region in tree["learner-0"].memory_maps())  # or the check proves nothing
