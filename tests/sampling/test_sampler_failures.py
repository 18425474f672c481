"""A policy or an environment that raises, and calls that can have no meaning: what the next call of a sampler gives."""

import functools
import itertools

import gymnasium
import numpy as np
import pytest

from appo.algorithms.sampling.rollout_sampler import RolloutSampler, SamplerRecipe
from appo.envs.faults import Restarts
from appo.envs.vector.errors import EnvWorkerError
from appo.envs.vector.make import make_vec_env
from appo.utils.options import ConfigError
from tests.envs.vector.vec_env_cases import Echo


class FailsOnce:
    """Takes action 1, but raises the `number`-th time that it is asked."""

    def __init__(self, number, error):
        self.left, self.error = number, error

    def act_rows(self, rows, observations, is_first):
        self.left -= 1
        if self.left == 0:
            raise self.error("no action")
        return np.ones((len(rows), 1), np.float32)


def until_all_are_there(episodes, num_envs):
    """Take episodes until every environment has given one: how soon is a matter of the machine, but not whether."""
    seen, missing = [], set(range(num_envs))
    for episode in itertools.islice(episodes, 20_000):
        seen.append(episode)
        missing.discard(episode.env_id)
        if not missing and len(seen) >= 30:
            return seen
    raise AssertionError(f"environments {missing} are left out")


def samples(sampler):
    """Episodes for ever."""
    while True:
        yield from sampler.obtain_samples(60)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("workers", [0, 3])
def test_after_a_policy_that_raised_every_environment_is_sampled_again(build, workers, error):
    sampler = build(functools.partial(Echo, length=4), 3, workers, policy=FailsOnce(7, error))
    with pytest.raises(error, match="no action"):
        sampler.obtain_samples(1000)
    for begin in (samples, lambda sampler: sampler.obtain_exact_episodes(10), samples):
        batch = until_all_are_there(begin(sampler), 3)
        for env in range(3):
            numbers = [episode.number for episode in batch if episode.env_id == env]
            assert numbers == list(range(len(numbers))), "it begins anew, and no episode is left out"
        assert all(episode.observations["obs"][:, 3].tolist() == [0, 1, 2, 3, 4] for episode in batch)
    fragments = sampler.stream(3)
    sampler.update_policy(FailsOnce(4, error))
    with pytest.raises(error, match="no action"):
        [next(fragments) for _ in range(100)]
    seen = until_all_are_there(sampler.stream(3), 3)
    for env in range(3):
        lengths = [len(fragment) for fragment in seen if fragment.env_id == env]
        assert lengths == [3, 1] * (len(lengths) // 2) + [3] * (len(lengths) % 2)


@pytest.mark.parametrize("workers", [0, 3])
def test_after_an_environment_that_raised_every_environment_is_sampled_again(build, workers):
    script = {(0, 6): "raise"}
    factories = [functools.partial(Echo, length=4, script=script if index == 1 else {}) for index in range(3)]
    sampler = build(factories, None, workers, policy=1, restarts=Restarts("raise"))
    with pytest.raises(EnvWorkerError, match="environment 1"):
        sampler.obtain_samples(10**6)
    batch = until_all_are_there(samples(sampler), 3)
    assert {len(episode) for episode in batch} == {4}
    assert all(episode.observations["obs"][0, 3] == 0 for episode in batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_follows_a_reset_depends_on_its_seed_alone(build, workers):
    sampler = build("CartPole-v1", 2, workers, seed=1)

    def lengths_after(seed):
        sampler.reset(seed)
        return [episode.observations["obs"].tobytes() for episode in sampler.obtain_exact_episodes(3)]

    first, other = lengths_after(7), lengths_after(8)
    sampler.obtain_samples(30)
    assert lengths_after(7) == first != other
    sampler.obtain_samples(40)
    sampler.reset()
    assert {episode.number for episode in sampler.obtain_samples(1)} == {0}, "without a seed it begins anew, too"
    with pytest.raises(ValueError, match="seed=-1: a whole number of at least 0 is needed"):
        sampler.reset(-1)


def test_a_limit_that_a_vectorised_environment_cannot_keep_is_refused_before_anything_happens():
    def factory(vector_size):
        return gymnasium.make_vec("CartPole-v1", vector_size, vectorization_mode="vector_entry_point")

    with make_vec_env(factory, 2, backend="native", seed=1) as env:
        sampler = RolloutSampler(env, 0)
        before = sampler.obtain_samples(30)
        with pytest.raises(ConfigError, match="max_episode_length needs environments that are reset apart"):
            sampler.obtain_exact_episodes(1, max_episode_length=5)
        after = sampler.obtain_samples(30)
        numbers = {episode.env_id: episode.number for episode in before}
        assert all(episode.number == numbers[episode.env_id] + 1 for episode in after[:2]), "nothing has begun anew"
        firsts = []
        for seed in (3, 3, 4):
            sampler.reset(seed)
            firsts.append(sampler.obtain_samples(1)[0].observations["obs"][0].tolist())
        assert firsts[0] == firsts[1] != firsts[2]
        with pytest.raises(ConfigError, match="max_episode_length needs"):
            RolloutSampler(env, 0, recipe=SamplerRecipe(None, max_episode_length=5))
        with pytest.raises(ConfigError, match="max_policy_lag=-1 has to be"):
            RolloutSampler(env, 0, recipe=SamplerRecipe(None, max_policy_lag=-1))


def test_parameters_are_no_policy(build):
    with pytest.raises(TypeError, match="parameters without a policy"):
        build(Echo, 1, 0, policy={"action": 1.0})
    sampler = build(Echo, 2, 0, policy=1)
    for wrong in ([1, {"action": 1.0}], [1, None]):
        with pytest.raises(TypeError, match="cannot act"):
            sampler.update_policy(wrong)


def test_an_update_that_is_refused_has_changed_nothing(build):
    class Settable(FailsOnce):
        def set_parameters(self, parameters):
            self.told = parameters

    settable, other = Settable(0, ValueError), FailsOnce(0, ValueError)
    sampler = build(Echo, 2, 0, policy=[settable, other])
    with pytest.raises(TypeError, match="takes no parameters"):
        sampler.update_policy({"action": 1.0})
    with pytest.raises(ValueError, match="version='new'"):
        sampler.update_policy([1, 2], "new")
    assert not hasattr(settable, "told") and sampler.version == 0


def test_recipes_of_nothing_are_refused():
    for recipe, reason in (
        (SamplerRecipe(Echo, 2, 0, seed=-1), "seed=-1 has to be"),
        (SamplerRecipe(Echo, 2, 0, step_timeout=1.0), "needs processes, of which num_workers=0 has none"),
        (SamplerRecipe(Echo, 0, 2), "num_envs=0: a whole number of at least 1"),
        (SamplerRecipe(Echo, None, 2), "num_envs=None: a whole number"),
        (SamplerRecipe(Echo, 4, 9), "9 processes for 4 environments; nearest: 4"),
        (SamplerRecipe([Echo, Echo], None, 3), "3 processes for 2 environments; nearest: 2"),
        (SamplerRecipe([], None, 2), "the list of factories is empty"),
    ):
        with pytest.raises(ConfigError, match=reason):
            recipe.build()


def test_a_stream_of_nothing_is_refused_where_it_is_asked_for(build):
    with pytest.raises(ValueError, match="fragment_len=-1: a whole number of at least 1 is needed"):
        build(Echo, 1, 0).stream(-1)
