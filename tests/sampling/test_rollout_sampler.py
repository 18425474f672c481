"""The sampler: exact numbers of episodes, no bias, whatever the timing, the backend and the deaths of processes."""

import dataclasses
import functools
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from appo.algorithms.sampling.env_update import EnvUpdate
from appo.algorithms.sampling.episodes import FIRST, MID, TERMINAL, TIMEOUT
from appo.algorithms.sampling.rollout_sampler import RolloutSampler, SamplerRecipe
from appo.algorithms.sampling.sampler_policies import RandomPolicy
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf
from appo.envs.faults import Restarts
from appo.envs.vector.errors import EnvWorkerDied, EnvWorkerError
from appo.envs.vector.make import make_vec_env
from appo.utils.options import ConfigError
from tests.envs.vector.test_image_order import LENGTH, Painted, painted
from tests.envs.vector.vec_env_cases import Echo

WAYS = {"serial": 0, "processes": 4, "mixed": 2}


class LongIsGood(Echo):
    """Episodes of 2 to 40 steps, drawn evenly; each step gives 1, so a long one has a high return. Mean 21."""

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        self.length = int(self.np_random.integers(2, 41))
        return found

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 1.0, *rest


@pytest.mark.parametrize("way", WAYS)
def test_exactly_so_many_episodes_of_each_environment_in_order(build, way):
    sampler = build(LongIsGood, 4, WAYS[way], seed=5)
    for n_per_env in (3, 1):
        batch = sampler.obtain_exact_episodes(n_per_env)
        assert batch.env_ids.tolist() == [env for env in range(4) for _ in range(n_per_env)]
        assert [episode.number for episode in batch] == list(range(n_per_env)) * 4
        for episode in batch:
            told = episode.observations["obs"]
            assert told[:, 0].tolist() == [episode.env_id] * (len(episode) + 1)
            assert told[:, 3].tolist() == list(range(len(episode) + 1)), "every observation, the last one included"
            assert told[1:, 4].tolist() == episode.actions.tolist(), "the action that led to it"
            assert episode.terminated.tolist() == [False] * (len(episode) - 1) + [True]
            assert episode.step_types.tolist() == [FIRST, *[MID] * (len(episode) - 2), TERMINAL]
            assert episode.info == {"episode_extra_stats": {"steps": len(episode)}}


def test_an_environment_that_has_its_episodes_is_not_stepped_again(build):
    sampler = build([functools.partial(Echo, length=length) for length in (2, 30)], None, 2)
    sampler.obtain_exact_episodes(2)
    assert sampler.env.get_attr("total") == [4, 60]
    assert sampler.total_env_steps == 64


@pytest.mark.parametrize("workers", [0, 4])
def test_exact_episodes_are_unbiased_where_those_that_end_first_are_not(build, workers):
    """Where length and return go together, the first N episodes that end are short ones."""
    sampler = build(LongIsGood, 8, workers, seed=1)
    exact = sampler.obtain_exact_episodes(40).returns
    standard_error = exact.std(ddof=1) / np.sqrt(len(exact))
    assert abs(exact.mean() - 21.0) < 3 * standard_error
    first = []
    for seed in range(40):
        sampler.reset(seed)
        first += sampler.obtain_samples(60).returns.tolist()  # a few episodes of eight environments
    assert np.mean(first) < 0.9 * 21.0, "what is asked for exact episodes would not be needed otherwise"


def test_samples_are_whole_episodes_and_those_under_way_go_on(build):
    sampler = build(functools.partial(Echo, length=7), 4, 2)
    seen = [sampler.obtain_samples(30) for _ in range(3)]
    for batch in seen:
        assert 30 <= batch.num_steps < 30 + 7 and set(batch.lengths.tolist()) == {7}
    numbers: dict[int, int] = {}
    for episode in (episode for batch in seen for episode in batch):
        assert episode.number == numbers.get(episode.env_id, 0), "none is left out, none comes twice"
        numbers[episode.env_id] = episode.number + 1


def digest(episodes):
    return [
        (each.env_id, each.number, each.observations["obs"].tobytes(), each.actions.tobytes(), each.rewards.tobytes())
        for each in episodes
    ]


def test_whole_episodes_and_joined_fragments_are_the_same_whatever_runs_them(build):
    whole = [digest(build("CartPole-v1", 4, workers, seed=9).obtain_exact_episodes(3)) for workers in WAYS.values()]
    assert whole[0] == whole[1] == whole[2]
    pieces: dict = {}
    for fragment in build("CartPole-v1", 4, 2, seed=9).stream(5):
        assert 1 <= len(fragment) <= 5
        pieces.setdefault((fragment.env_id, fragment.number), []).append(fragment)
        if all(pieces.get((env, 2)) and pieces[env, 2][-1].terminated[-1] for env in range(4)):
            break
    for env, number, observations, actions, _ in whole[0]:
        parts = pieces[env, number]
        joined = np.concatenate(
            [part.observations["obs"][:-1] for part in parts] + [parts[-1].observations["obs"][-1:]]
        )
        assert joined.tobytes() == observations
        assert np.concatenate([part.actions for part in parts]).tobytes() == actions


def test_long_episodes_are_cut_and_marked(build):
    sampler = build(functools.partial(Echo, length=10**6), 3, 3, max_episode_length=12)
    batch = sampler.obtain_exact_episodes(2)
    assert set(batch.lengths.tolist()) == {12} and len(batch) == 6
    for episode in batch:
        assert episode.truncated[-1] and not episode.truncated[:-1].any() and not episode.terminated.any()
        assert episode.step_types[-1] == TIMEOUT
        assert episode.observations["obs"][:, 3].tolist() == list(range(13))
    shorter = sampler.obtain_exact_episodes(1, max_episode_length=70)
    assert set(shorter.lengths.tolist()) == {70}, "longer than a piece of the store"


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_a_lost_episode_is_played_once_more_and_counted(build, how):
    script = {(0, 8): how}
    factories = [functools.partial(Echo, length=5, script=script if index == 1 else {}) for index in range(3)]
    sampler = build(factories, None, 3, restarts=Restarts("restart", 5, -1))
    batch = sampler.obtain_exact_episodes(3)
    assert batch.env_ids.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and set(batch.lengths.tolist()) == {5}
    assert batch.aborted == 1
    assert [episode.observations["obs"][0, 1] > 0 for episode in batch[3:6]] == [False, True, True]


@pytest.mark.parametrize(("how", "error"), [("exit", EnvWorkerDied), ("raise", EnvWorkerError)])
def test_a_dead_worker_is_told_of_where_it_is_not_replaced(build, how, error):
    script = {(0, 3): how}
    sampler = build(functools.partial(Echo, script=script), 3, 3, restarts=Restarts("raise"))
    with pytest.raises(error):
        sampler.obtain_exact_episodes(2)


def test_steps_carry_the_version_that_chose_them_and_old_ones_can_be_left_out(build):
    sampler = build(functools.partial(Echo, length=10), 2, 0, policy=1.0, max_policy_lag=0)
    before = sampler.obtain_samples(20)
    assert {int(version) for episode in before for version in episode.versions} == {0}
    sampler.update_policy(2.0)
    after = sampler.obtain_samples(20)
    assert after.discarded > 0 and {int(version) for each in after for version in each.versions} == {1}
    assert {float(action) for episode in after for action in episode.actions} == {2.0}
    sampler.update_policy(3.0, version=17)
    assert sampler.version == 17


class Doubling:
    """Acts by a parameter."""

    def __init__(self):
        self.action = 1.0

    def set_parameters(self, parameters):
        self.action = parameters["action"]

    def act_rows(self, rows, observations, is_first):
        return np.full((len(rows), 1), self.action, np.float32)


def test_policies_of_all_kinds_and_their_updates(build):
    sampler = build(functools.partial(Echo, length=3), 3, 0, policy=lambda observations: observations[:, 3] + 1)
    assert [episode.actions.tolist() for episode in sampler.obtain_exact_episodes(1)] == [[1, 2, 3]] * 3
    sampler.update_policy([1.0, 2.0, Doubling()])
    assert [episode.actions[0] for episode in sampler.obtain_exact_episodes(1)] == [1, 2, 1]
    with pytest.raises(ValueError, match="2 policies for 3 environments"):
        sampler.update_policy([1.0, 2.0])
    with pytest.raises(TypeError, match="takes no parameters"):
        sampler.update_policy({"action": 9.0})
    sampler.update_policy(Doubling())
    sampler.update_policy({"action": 9.0})
    assert sampler.obtain_exact_episodes(1)[0].actions.tolist() == [9, 9, 9]
    for wrong in ("best", object()):
        with pytest.raises(TypeError):
            sampler.update_policy(wrong)


def test_environments_are_updated(build):
    sampler = build(Echo, 3, 2)
    sampler.update_envs(EnvUpdate(params={"wind": 2.0}, attributes={"length": 4}))
    sampler.update_envs([None, EnvUpdate(calls=[("set_env_params", {"gravity": 3.0})]), None])
    assert sampler.env.call("get_env_params")[1] == {"gravity": 3.0, "wind": 2.0}
    assert set(sampler.obtain_exact_episodes(1).lengths.tolist()) == {4}
    with pytest.raises(ValueError, match="2 updates for 3 environments"):
        sampler.update_envs([None, None])
    with pytest.raises(TypeError, match="is no EnvUpdate"):
        sampler.update_envs({"wind": 1.0})


def test_only_the_recipe_travels(build):
    recipe = SamplerRecipe("CartPole-v1", 2, 0, seed=4)
    copy = pickle.loads(pickle.dumps(recipe))
    with recipe.build() as one, copy.build() as other:
        assert digest(one.obtain_exact_episodes(2)) == digest(other.obtain_exact_episodes(2))
        with pytest.raises(TypeError, match="pickle its recipe"):
            pickle.dumps(one)


def test_a_data_set_is_written(build, tmp_path):
    sampler = build("CartPole-v1", 3, 2, seed=2)
    batch = sampler.obtain_exact_episodes(2)
    with np.load(batch.save(tmp_path / "data" / "cartpole")) as data:
        assert data["lengths"].tolist() == batch.lengths.tolist()
        assert len(data["observations/obs"]) == len(data["actions"]) == batch.num_steps
        assert (data["next_observations/obs"][0] == batch[0].observations["obs"][1]).all()


def test_several_agents_play_whole_episodes():
    with make_vec_env("pettingzoo_classic_rps_v2", 3, seed=1) as env:
        batch = RolloutSampler(env).obtain_exact_episodes(2)
        assert len(batch) == 6 and all(episode.rewards.shape == (len(episode), 2) for episode in batch)
        assert all(abs(episode.rewards.sum()) < 1e-6 for episode in batch), "what one wins, the other loses"


def test_native_environments_are_sampled_without_their_extra_rows():
    def factory(vector_size):
        return gymnasium.make_vec("CartPole-v1", vector_size, vectorization_mode="vector_entry_point")

    with make_vec_env(factory, 3, backend="native", seed=1) as env:
        sampler = RolloutSampler(env, lambda observations: (observations[:, 2] > 0).astype(np.int64))
        batch = [*sampler.obtain_samples(300), *(exact := sampler.obtain_exact_episodes(2))]
    assert exact.env_ids.tolist() == [0, 0, 1, 1, 2, 2]
    for episode in batch:
        assert episode.total_reward == len(episode) > 10
        assert abs(episode.observations["obs"][-1, 2]) > 0.2, "its last observation, not the first of the next"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (lambda seen: None, "actions have type NoneType; expected numbers of shape (3,)"),
        (lambda seen: np.array([1]), "actions have shape (1,) and type int64; expected numbers of shape (3,)"),
        (lambda seen: np.full(3, 0.5), "are not all whole numbers"),
        (lambda seen: np.array([0, 1000, 1]), "actions [   0, 1000,    1] are not all from 0 to 999"),
        (lambda seen: [0, -1, 1], "are not all from 0 to 999"),
        (1000, "the action 1000 holds 1000; a whole number from 0 to 999 is needed"),
        (0.9, "the action 0.9 holds 0.9; a whole number"),
        ((0, 1), "the action (0, 1) has 2 numbers instead of 1"),
    ],
)
def test_what_is_no_action_is_never_played(build, policy, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        build(Echo, 3, 0, policy=policy).obtain_exact_episodes(1)


def test_nobody_and_a_policy_for_other_observations_cannot_act(build):
    with pytest.raises(TypeError, match="None cannot act"):
        build(Echo, 1, 0, policy=None)
    spec = EnvSpec((ObservationLeaf("obs", (3,), "float32", "vector"),), (ActionLeaf("discrete", 2),), 1)
    other: Any = RandomPolicy(spec, 1, 0)
    other.spec = spec
    with pytest.raises(TypeError, match=r"a policy for observations and actions .* cannot act in these environments"):
        build(Echo, 1, 0, policy=other)


@pytest.mark.parametrize("workers", [0, 3])
def test_what_always_raises_ends_the_sampling(build, workers):
    """An exact number of episodes of an environment that never finishes one would be waited for, for ever."""
    script = {(attempt, 3): "raise" for attempt in range(1000)}
    sampler = build(functools.partial(Echo, script=script), 3, workers, restarts=Restarts("restart", 4, -1))
    with pytest.raises(EnvWorkerError, match="no restart is left of Restarts"):
        sampler.obtain_exact_episodes(1)


@pytest.mark.parametrize("number", [0, -1, 1.5])
def test_numbers_of_nothing_are_refused(build, number):
    sampler = build(Echo, 1, 0)
    for call in (sampler.obtain_samples, sampler.obtain_exact_episodes, lambda n: next(sampler.stream(n))):
        with pytest.raises(ValueError, match="a whole number of at least 1 is needed"):
            call(number)
    for name in ("max_episode_length", "num_workers", "max_policy_lag"):
        wrong: dict[str, Any] = {name: -1}
        with pytest.raises(ConfigError, match=f"{name}=-1 has to be a whole number of at least"):
            dataclasses.replace(SamplerRecipe(Echo, 1, 0), **wrong).build()


def test_a_file_is_named_as_it_was_told(build, tmp_path):
    batch = build(Echo, 1, 0).obtain_exact_episodes(1)
    names = {"a": "a.npz", "a.npz": "a.npz", "run1.5": "run1.5.npz", "x.txt": "x.txt.npz"}
    assert {told: batch.save(tmp_path / told).name for told in names} == names


@pytest.mark.parametrize("workers", [0, 2])
def test_images_keep_the_order_that_they_have_in_memory(build, workers):
    """Networks read them in that order, and reordering one costs more than all else that is done with a step."""
    shown = []

    def policy(observations):
        shown.append(observations["image"])
        return np.zeros(len(observations["n"]), np.int64)

    shape = "colours last"
    sampler = build(functools.partial(Painted, shape=shape, interleaved=False), 2, workers, policy=policy)
    episodes = [*sampler.obtain_exact_episodes(2), *sampler.obtain_samples(300)]
    kept = [sampler._store.latest["image"], sampler._store._steps["obs/image"]]
    for images in (*kept, *shown, *(episode.observations["image"] for episode in episodes)):
        assert np.moveaxis(images, -3, -1).flags.c_contiguous
    for episode in episodes:
        expected = [painted(shape, episode.env_id, step).transpose(2, 0, 1) for step in range(LENGTH + 1)]
        assert np.array_equal(episode.observations["image"], expected), "the last one of the episode included"
