"""A run says what limits its speed; and a container's small /dev/shm limits nothing."""

import json

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.memory import layout
from appo.algorithms.run.resources import sizes_of
from appo.envs.registry import probe
from tests.memory.memory_cases import private_mounts

SHM_MB = 64  # what containers give


@pytest.mark.slow
def test_a_run_says_at_its_end_what_has_limited_it(start):
    sleeping = ["--synthetic_step_ms=5", "--num_workers=2", "--num_envs_per_worker=8", "--device=cpu"]
    run = start(*sleeping, "--train_for_seconds=30", env="synthetic_slow")
    assert run.end() == 0
    found = json.loads((run.folder / "summary.json").read_text())["bottleneck"]
    # Whatever else computes on this machine meanwhile is told first, and truly.
    assert found["kind"] in ("environments", "neighbours") and f"bottleneck: {found['said']}" in run.output
    if found["kind"] == "environments":
        assert found["numbers"]["actor_env_step"] > 0.9 and found["option"] == "env_backend"
    assert found == run.status()["bottleneck"]


def test_a_run_that_is_over_before_anything_can_be_told_says_nothing(start):
    run = start("--num_workers=1", "--device=cpu", "--train_for_env_steps=2000", env="synthetic_identity")
    assert run.end() == 0
    assert json.loads((run.folder / "summary.json").read_text())["bottleneck"] is None
    assert "bottleneck" not in run.output


@pytest.mark.slow
def test_rollouts_larger_than_the_folder_of_shared_memory_are_learned_from(start, tmp_path):
    command = private_mounts()
    if command is None:
        pytest.skip("this user may mount nothing, not even in private")
    env = "synthetic_image"
    options = ["--synthetic_image_size=64", "--num_workers=2", "--num_envs_per_worker=64", "--rollout=64"]
    options += ["--batch_size=512", "--ppo_epochs=1", "--device=cpu"]
    config = resolve([f"--env={env}", *options, f"--train_dir={tmp_path}"]).config
    assert layout.total_bytes(sizes_of(config, probe(env, config.family))) > SHM_MB * 2**20
    script = f'mount -t tmpfs -o size={SHM_MB}m none /dev/shm && exec "$@"'
    run = start(*options, "--train_for_env_steps=10000", env=env, before=[*command, "sh", "-c", script, "sh"])
    assert run.end() == 0, run.output
    assert run.status()["policies"][0]["train_steps"] > 0
