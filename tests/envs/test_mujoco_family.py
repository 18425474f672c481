"""MuJoCo tasks run as Gymnasium defines them, and keep quiet."""

import subprocess
import sys

import pytest

from appo.envs.api import EnvContext
from appo.envs.families.mujoco import FAMILY, NAMES


def make(name):
    return FAMILY.make(name, FAMILY.config(), EnvContext())


@pytest.mark.parametrize("name", NAMES)
def test_random_play_stays_within_the_spaces(name):
    env = make(name)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(200 if name in ("HalfCheetah-v5", "InvertedPendulum-v5") else 20):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            env.reset()
    env.close()


def test_a_cheetah_is_truncated_after_a_thousand_steps_and_a_fallen_pendulum_terminates():
    env = make("HalfCheetah-v5")
    env.reset(seed=0)
    ends = [env.step(env.action_space.low)[2:4] for _ in range(1000)]
    assert ends == [(False, False)] * 999 + [(False, True)]
    env = make("InvertedPendulum-v5")
    env.reset(seed=0)
    ends = [env.step(env.action_space.high)[2:4]]
    while not any(ends[-1]):
        ends.append(env.step(env.action_space.high)[2:4])
    assert ends[-1] == (True, False) and len(ends) < 100


def test_the_seed_decides_everything():
    def digest(seed):
        env = make("Hopper-v5")
        return [env.reset(seed=seed)[0].tobytes(), env.step(env.action_space.high)[0].tobytes()]

    assert digest(1) == digest(1) != digest(2)


def test_nothing_is_written_where_the_user_is_or_to_the_terminal(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make("HalfCheetah-v5").close()  # its model makes MuJoCo warn
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_importing_the_family_imports_no_simulator():
    code = "import sys, appo.envs.families.mujoco; sys.exit(any(name in sys.modules for name in ('mujoco', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_an_iteration_is_one_rollout_of_two_workers_and_values_have_a_network_of_their_own():
    values = FAMILY.defaults("Hopper-v5")
    assert values["actor_critic_share_weights"] is False
    rows = 2 * values["num_envs_per_worker"] * values["rollout"]
    assert values["num_batches_per_iteration"] * values["batch_size"] == rows
