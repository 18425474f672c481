"""Whole runs on a device: workers that are killed while they hold it, several policies on it, and other devices."""

import json
import signal

import pytest

from tests.end_to_end.test_deaths import events

pytestmark = pytest.mark.gpu
WORKERS = ["--num_workers=2", "--num_envs_per_worker=8", "--experiment_summaries_interval=1"]


@pytest.mark.parametrize("title", ["policy-0-0", "learner-0"])
def test_a_worker_that_is_killed_while_it_holds_the_device_is_replaced(start, device, title):
    run = start(*WORKERS, f"--device={device}", "--snapshot_every_sec=1")
    run.wait_for_training(frames=3000)
    before = run.status()
    run.kill(title)
    run.wait_for(lambda: events(run, "working"))
    goal = before["env_frames"] + 20_000
    run.wait_for(lambda: run.status()["env_frames"] > goal)
    assert run.status()["policies"][0]["train_steps"] > before["policies"][0]["train_steps"]
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output


@pytest.mark.slow
def test_several_policies_share_the_device(start, device):
    run = start(*WORKERS, f"--device={device}", "--num_policies=2", "--train_for_env_steps=30000")
    assert run.end() == 0, run.output
    policies = json.loads((run.folder / "summary.json").read_text())["policies"]
    assert len(policies) == 2 and all(policy["train_steps"] > 0 for policy in policies)


@pytest.mark.parametrize("cpu_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_goes_on_where_another_device_stopped(start, device, cpu_first):
    first, second = ("cpu", device) if cpu_first else (device, "cpu")
    before = start(*WORKERS, f"--device={first}", "--train_for_env_steps=10000")
    assert before.end() == 0, before.output
    saved = before.saved()
    after = start(*WORKERS, f"--device={second}", "--train_for_env_steps=25000")
    assert after.end() == 0, after.output
    assert after.saved().train_step > saved.train_step > 0 and after.saved().env_frames >= 25_000
