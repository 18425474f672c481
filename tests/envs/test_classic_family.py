"""Classic control: every task steps, velocities can be hidden, CartPole can be stepped as one vector."""

import gymnasium
import numpy as np
import pytest

from appo.algorithms.config import resolve as resolve_words
from appo.envs.action_layout import random_actions
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.families.classic import FAMILY, NAMES, NO_VELOCITY, ClassicOptions
from appo.envs.families.gymnasium import FAMILY as GYMNASIUM
from appo.envs.registry import make_batch_env, probe, resolve
from appo.envs.wrappers import SelectObservation
from appo.utils.options import ConfigError


@pytest.mark.parametrize("name", NAMES)
def test_every_task_takes_random_steps(name):
    batch = make_batch_env(name, None, [EnvContext(seed=1, env_id=i) for i in range(2)])
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    first = out.observations["obs"].copy()
    rng = np.random.default_rng(0)
    for _ in range(60):
        batch.step(random_actions(batch.spec.actions, rng, 2), out)
        assert np.isfinite(out.observations["obs"]).all()
    assert not np.array_equal(first, out.observations["obs"])
    batch.close()


def test_without_velocities_the_rest_of_cartpole_is_the_same():
    plain = resolve("CartPole-v1").family.make("CartPole-v1", ClassicOptions(), EnvContext())
    blind = resolve(NO_VELOCITY).family.make(NO_VELOCITY, ClassicOptions(), EnvContext())
    everything, _ = plain.reset(seed=3)
    shown, _ = blind.reset(seed=3)
    for action in (0, 1, 1):
        assert shown.tolist() == everything[[0, 2]].tolist() and blind.observation_space.contains(shown)
        everything, *_ = plain.step(action)
        shown, *_ = blind.step(action)
    assert probe(NO_VELOCITY).observations[0].shape == (2,)


@pytest.mark.parametrize("name", [NO_VELOCITY, "Pendulum-v1"])
def test_what_has_no_vectorised_form_is_refused(name):
    with pytest.raises(ConfigError, match=f"not possible with --env={name}; it is with CartPole-v1"):
        probe(name, ClassicOptions(classic_vectorized=True))


def test_memory_is_on_only_where_velocities_are_hidden():
    assert FAMILY.defaults("CartPole-v1")["use_rnn"] is False
    assert FAMILY.defaults(NO_VELOCITY)["use_rnn"] is True


@pytest.mark.parametrize("name", ["CartPole-v1", "LunarLander-v3", "Hopper-v5"])
def test_a_memory_that_is_asked_for_is_as_small_as_the_network_before_it(name):
    config = resolve_words([f"--env={name}", "--use_rnn=True"]).config
    assert config.model.use_rnn and config.model.hidden_size == 128


def test_an_image_can_be_rendered_when_asked_for():
    env = resolve("CartPole-v1").family.make("CartPole-v1", ClassicOptions(), EnvContext(render_mode="rgb_array"))
    env.reset(seed=0)
    assert env.render().ndim == 3
    env.close()


def test_any_other_id_is_built_as_it_stands():
    assert probe("FrozenLake-v1").observations[0].num_categories == 16
    assert GYMNASIUM.defaults("FrozenLake-v1") == {}


def test_masks_in_the_infos_of_taxi_are_found():
    taxi = max(name for name in gymnasium.registry if name.startswith("Taxi-"))
    assert [leaf.name for leaf in probe(taxi).observations] == ["obs", "action_mask"]


@pytest.mark.parametrize("indices", [[], [4], [-1]])
def test_entries_that_do_not_exist_cannot_be_selected(indices):
    env = resolve("CartPole-v1").family.make("CartPole-v1", ClassicOptions(), EnvContext())
    with pytest.raises(ValueError, match="of a vector of 4"):
        SelectObservation(env, indices)


def test_entries_are_selected_from_vectors_only():
    env = GYMNASIUM.make("FrozenLake-v1", None, EnvContext())
    with pytest.raises(ValueError, match="from a vector only"):
        SelectObservation(env, [0])
