"""What happens when a process of a run dies or hangs: it is replaced, or the run ends; nothing is left behind."""

from __future__ import annotations

import signal
import time

import pytest

from appo.algorithms import checkpoints
from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import ROOT, SMALL, wait_for_end

WORKERS = ["actor-01", "policy-0-0", "learner-0"]
FINAL = "--max_failures_in_a_row=0"  # the first loss ends the run


def events(run, event):
    """Records of one kind in events.jsonl."""
    path = run.folder / "events.jsonl"
    return [record for record in read_json_lines(path) if record["event"] == event] if path.exists() else []


@pytest.mark.parametrize("title", WORKERS)
def test_a_killed_worker_is_replaced_and_the_run_goes_on(start, title):
    run = start(*SMALL, "--snapshot_every_sec=1")
    run.wait_for_training(frames=3000)
    before = run.status()
    run.kill(title)
    [works] = run.wait_for(lambda: events(run, "working"))
    assert (works["worker"], works["generation"]) == (title, 1)
    goal = before["env_frames"] + 20_000
    run.wait_for(lambda: run.status()["env_frames"] > goal)
    status = run.status()
    assert status["faults"]["restarts"] == 1 and status["blocks"]["lost"] == 0
    assert status["policies"][0]["train_steps"] > before["policies"][0]["train_steps"]
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert f"{title} was killed by SIGKILL (kill -9, or the system ran out of memory), in step" in run.output
    assert f"{title} works again" in run.output and "restarts 1" in run.output
    saved = run.saved()
    assert saved.train_step >= status["policies"][0]["train_steps"] and saved.env_frames >= goal


@pytest.mark.slow
def test_synchronous_training_goes_on_however_often_its_workers_are_killed(start):
    run = start("--num_workers=2", "--num_envs_per_worker=16", "--device=cpu", "--async_rl=False")
    run.wait_for_training(frames=3000)
    for number in range(9):
        title = ["actor-00", "learner-0", "actor-01"][number % 3]
        run.wait_for(lambda title=title: title in run.tree())
        run.kill(title)
        run.wait_for(lambda number=number: len(events(run, "working")) > number)
        frames, steps = run.status()["env_frames"], run.status()["policies"][0]["train_steps"]
        run.wait_for(lambda frames=frames: run.status()["env_frames"] > frames)
        run.wait_for(lambda steps=steps: run.status()["policies"][0]["train_steps"] > steps)
    tree = run.tree()  # the first learner that was lost has let torch be imported for the next ones
    assert tree["learner-0"].ppid() == tree["torch server"].pid
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output


@pytest.mark.slow
def test_counters_never_go_back_and_no_frame_counts_twice_while_workers_are_killed(start):
    run = start(*SMALL)
    run.wait_for_training()
    seen = []
    for title in [*WORKERS, "actor-00", "learner-0"]:
        run.wait_for(lambda title=title: title in run.tree())
        run.kill(title)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            seen.append(run.status())
            time.sleep(0.1)
    run.signal(signal.SIGINT)
    assert run.end() == 130, run.output
    for counter in (
        lambda status: status["env_frames"],
        lambda status: status["train_seconds"],
        lambda status: status["policies"][0]["train_steps"],
        lambda status: status["policies"][0]["episodes"],
        lambda status: status["faults"]["restarts"],
    ):
        values = [counter(status) for status in seen]
        assert values == sorted(values) and values[-1] > values[0]
    # Every frame of CartPole is a step of reward 1: episodes told of cannot hold more frames than were counted.
    assert run.status()["env_frames"] < 1.5e6


@pytest.mark.parametrize("title", WORKERS)
def test_without_restarts_a_killed_worker_ends_the_run_within_two_seconds_and_is_named(start, title):
    run = start(*SMALL, FINAL)
    run.wait_for_training()
    run.kill(title)
    began = time.monotonic()
    assert run.end() == 1, run.output
    assert time.monotonic() - began < 2.5
    last_line = run.output.strip().splitlines()[-1]
    assert f"{title} was killed" in last_line, last_line


@pytest.mark.parametrize("title", ["guardian", "forkserver"])
def test_a_run_that_cannot_replace_workers_any_more_saves_and_ends(start, title):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    family, told = list(run.tree().values()), run.status()
    run.kill(title)
    assert run.end() == 1, run.output
    assert f"{title} was killed" in run.output.strip().splitlines()[-1]
    saved = run.saved()
    assert saved.env_frames >= told["env_frames"] and saved.train_step >= told["policies"][0]["train_steps"]
    assert not wait_for_end(family, seconds=1.0)


def test_workers_without_a_forkserver_go_with_the_driver(start):
    run = start(*SMALL)
    run.wait_for_training()
    family = list(run.tree().values())
    for title in ("appo driver", "guardian", "forkserver"):  # nobody is left who could end the workers
        run.kill(title, signal.SIGSTOP)
    for title in ("guardian", "forkserver", "appo driver"):
        run.kill(title)
    assert not wait_for_end(family, seconds=2.0)
    assert run.end() == -signal.SIGKILL


@pytest.mark.parametrize("title", ["actor-01", "policy-0-0"])
def test_what_was_learned_is_saved_when_another_worker_dies_for_good(start, title):
    run = start(*SMALL, FINAL)
    run.wait_for_training(frames=3000)
    run.kill(title)
    assert run.end() == 1, run.output
    assert run.saved().train_step > 0


@pytest.mark.parametrize("place", ["reporting.sinks.status.StatusFile.write", "reporting.statistics.Statistics.add"])
def test_what_was_learned_is_saved_when_the_driver_itself_makes_a_mistake(start, tmp_path, place):
    """A module that the interpreter imports at its start makes one method fail, once a file says so."""
    module, owner, method = place.rsplit(".", maxsplit=2)
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib\n"
        f"from appo.algorithms.{module} import {owner}\n"
        f"sound = {owner}.{method}\n"
        "def trapped(self, *arguments):\n"
        f"    if pathlib.Path({str(tmp_path / 'trap')!r}).exists():\n"
        "        raise ZeroDivisionError('a mistake')\n"
        "    sound(self, *arguments)\n"
        f"{owner}.{method} = trapped\n"
    )
    run = start(*SMALL, before=["env", f"PYTHONPATH={tmp_path}:{ROOT}"])
    run.wait_for_training(frames=3000)
    told = run.status()
    (tmp_path / "trap").touch()
    assert run.end() == 1, run.output
    assert "error: run failed: ZeroDivisionError: a mistake (sitecustomize.py, line " in run.output.splitlines()[-1]
    assert "Traceback" in (run.folder / "log" / "driver.txt").read_text() and "Traceback" not in run.output
    saved = run.saved()
    assert saved.env_frames >= told["env_frames"] and saved.train_step >= told["policies"][0]["train_steps"]


@pytest.mark.alone
def test_a_run_that_stood_still_as_a_whole_goes_on_with_the_workers_it_has(start):
    """As a container that is paused, or a laptop that is closed."""
    run = start(*SMALL, "--heartbeat_timeout_seconds=2", "--stall_timeout_seconds=3")
    run.wait_for_training(frames=3000)
    family = run.tree()
    for process in family.values():
        process.suspend()
    time.sleep(6.0)
    for process in reversed(family.values()):
        process.resume()
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames + 3000)
    assert run.status()["faults"]["restarts"] == 0
    assert {title: process.pid for title, process in run.tree().items()} == {t: p.pid for t, p in family.items()}
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert not events(run, "lost") and not events(run, "stall")


def test_sigusr1_saves_and_the_run_goes_on(start):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    folder = run.folder / "checkpoint_p0"
    assert not checkpoints.list_checkpoints(folder)
    version = run.status()["policies"][0]["train_steps"]
    run.signal(signal.SIGUSR1)
    [path] = run.wait_for(lambda: checkpoints.list_checkpoints(folder))
    assert checkpoints.load(path).train_step >= version
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert "SIGUSR1: saving, and going on" in run.output


def test_a_live_worker_that_blocks_progress_is_found_and_replaced(start, tmp_path):
    """An environment that waits in a reset for an hour once in its life; its heartbeat may be silent for so long."""
    (tmp_path / "stalls.py").write_text(
        "import gymnasium, pathlib, time\n"
        "class Stalls(gymnasium.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        f"        trap = pathlib.Path({str(tmp_path)!r}) / 'trap'\n"
        "        if self.steps % 50 == 0 and trap.exists():\n"
        "            time.sleep(3600)\n"
        "        return self.env.step(action)\n"
        "def make_env():\n"
        "    return Stalls(gymnasium.make('CartPole-v1'))\n"
    )
    run = start(*SMALL, "--use_rnn=False", "--stall_timeout_seconds=6", env="stalls:make_env")
    run.wait_for_training(frames=3000)
    (tmp_path / "trap").touch()
    [stall] = run.wait_for(lambda: events(run, "stall"))
    assert stall["culprits"] == "actor" and stall["what"] == "no environment frame for 6 s"
    (tmp_path / "trap").unlink()
    frames = run.status()["env_frames"]
    run.wait_for(lambda: run.status()["env_frames"] > frames)
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert "no environment frame for 6 s: environments do not return from a step or a reset" in run.output
    log = (run.folder / "log" / "actor-00.txt").read_text()
    assert "stalls.py" in log  # the stack shows where it hangs


def test_nothing_outlives_a_killed_driver(start):
    run = start(*SMALL)
    run.wait_for_training()
    family = list(run.tree().values())
    assert len(family) >= 7  # driver, guardian, server, tracker, two actors, policy worker, learner
    run.process.kill()
    began = time.monotonic()
    assert not wait_for_end(family[1:], seconds=2.0)
    assert time.monotonic() - began < 2.5


def test_a_run_that_was_killed_before_its_first_checkpoint_says_that_it_begins_anew(start):
    run = start(*SMALL)
    run.wait_for_training(frames=3000)
    run.process.kill()
    run.end()
    again = start(*SMALL, "--train_for_env_steps=2000")
    assert again.end() == 0
    said = "policy 0 begins anew: no earlier start has left a checkpoint of it"
    assert said in again.output and said not in run.output


def test_no_doom_engine_outlives_a_killed_actor_or_driver(start):
    options = ("--num_workers=2", "--num_envs_per_worker=2", "--batch_size=128", "--hidden_size=32", "--device=cpu")
    run = start(*options, env="doom_basic")
    run.wait_for_training()

    def engines():
        return [process for process in run.tree().values() if "vizdoom" in process.name().lower()]

    first = engines()
    assert len(first) == 4
    of_actor = run.tree()["actor-00"].children()
    assert len(of_actor) == 2
    run.kill("actor-00")
    assert not wait_for_end(of_actor, seconds=2.0)
    run.wait_for(lambda: events(run, "working"))
    assert len(engines()) == 4 and not set(of_actor) & set(engines())
    family = list(run.tree().values())
    run.kill("appo driver")
    assert not wait_for_end(family[1:], seconds=2.0)
    assert run.end() == -signal.SIGKILL


@pytest.mark.parametrize("title", WORKERS)
def test_a_stopped_process_is_found_by_its_heartbeat_and_replaced(start, title):
    run = start(*SMALL, "--heartbeat_timeout_seconds=2")
    run.wait_for_training()
    run.kill(title, signal.SIGSTOP)
    began = time.monotonic()
    run.wait_for(lambda: events(run, "working"))
    assert 1.5 < time.monotonic() - began < 12.0
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    assert f"{title} showed no sign of life for 2 s" in run.output


def test_an_environment_that_cannot_be_built_is_told_before_any_worker_starts(start, tmp_path):
    (tmp_path / "unbuilt.py").write_text("def make_env():\n    raise OSError('no such cartridge')\n")
    run = start(*SMALL, env="unbuilt:make_env")
    assert run.end() == 1, run.output
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
