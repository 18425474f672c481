"""Environments of a sampler that are replaced or changed while it goes on, and stay so when they fail."""

import functools
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.algorithms.sampling.env_update import EnvUpdate
from appo.envs.faults import Restarts
from appo.envs.vector.errors import EnvWorkerError
from appo.utils.options import ConfigError
from tests.envs.test_parallel_env_adapter import ScriptedParallel
from tests.envs.vector.vec_env_cases import Echo


class Other(Echo):
    """Episodes of 3 steps, and a parameter of its own."""

    def __init__(self, context, **options):
        super().__init__(context, **{"length": 3, **options})
        self.params = {"friction": 0.5}


class Drawn(gymnasium.Env):
    """Shows a number that is drawn at each reset."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.np_random.random()
        return np.array([self.number]), {}

    def step(self, action):
        return np.array([self.number]), 0.0, True, False, {}


class OneAllowed(gymnasium.Env):
    """One of four actions is allowed, as a method or infos say."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, allowed, way, fails_at=None, seed=None):
        self.allowed, self.fails_at, self.total = allowed, fails_at, 0
        self.told: dict = {}
        if way == "method":
            self.action_masks = self.mask
        else:
            self.told = {"action_mask": self.mask()}

    def mask(self):
        return np.arange(4) == self.allowed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.full(1, self.allowed, np.float32), self.told

    def step(self, action):
        assert action == self.allowed
        self.steps, self.total = self.steps + 1, self.total + 1
        if self.total == self.fails_at:
            raise ValueError("as told")
        return np.full(1, self.allowed, np.float32), 0.0, self.steps == 4, False, self.told


def lengths(sampler, number=2):
    """Of each environment's episodes, all of which have the same."""
    found = sampler.obtain_exact_episodes(number).lengths.reshape(-1, number)
    assert (found == found[:, :1]).all()
    return found[:, 0].tolist()


def closing(path):
    """A change that lets an environment write when it is closed; the environment itself goes on."""

    def change(env):
        env.close = lambda: path.write_text("closed")

    return change


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_new_environment_takes_the_place_of_one_which_is_closed(build, workers, tmp_path):
    sampler = build(Echo, 3, workers, replaceable=True)
    assert lengths(sampler) == [5, 5, 5]
    sampler.obtain_samples(20)  # and some episodes are under way
    sampler.update_envs(EnvUpdate(change=closing(tmp_path / "old")))
    assert not (tmp_path / "old").exists(), "what is changed goes on"
    sampler.update_envs([None, EnvUpdate(env=Other), None])
    assert (tmp_path / "old").read_text() == "closed"
    sampler.obtain_samples(40)
    assert lengths(sampler) == [5, 3, 5]
    told = sampler.env.call("tell_context")
    assert [context.env_id for context in told] == [0, 1, 2]
    assert [context.worker_index for context in told] == ([0, 1, 2] if workers == 3 else [0, 0, 0])
    assert [context.vector_index for context in told] == ([0, 0, 0] if workers == 3 else [0, 1, 2])
    sampler.update_envs(EnvUpdate(env=functools.partial(Other, length=2)))
    assert lengths(sampler) == [2, 2, 2]


def test_environments_by_name_are_replaced_by_others_of_their_kind(build):
    sampler = build("CartPole-v1", 2, 2, policy=0, replaceable=True, max_episode_length=3)
    sampler.update_envs(EnvUpdate(attributes={"gravity": 1.0}))
    sampler.update_envs([EnvUpdate(env="CartPole-v1"), None])
    assert sampler.env.get_attr("gravity") == [9.8, 1.0]
    assert lengths(sampler) == [3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_changes_an_environment_or_gives_another(build, workers):
    sampler = build(Echo, 2, workers, replaceable=True)

    def shorten(env):
        env.length = 4

    def limited(env):
        return gymnasium.wrappers.TimeLimit(env, 2)

    sampler.update_envs([EnvUpdate(change=shorten), None])
    assert lengths(sampler) == [4, 5]
    sampler.update_envs([None, EnvUpdate(change=limited, attributes={"length": 7})])
    batch = sampler.obtain_exact_episodes(2)
    assert batch.lengths.tolist() == [4, 4, 2, 2] and batch[3].truncated.tolist() == [False, True]
    sampler.update_envs([EnvUpdate(change=shorten)] * 2)
    assert lengths(sampler) == [4, 2], "what is around the environment stays"


@pytest.mark.parametrize(("workers", "how"), [(0, "raise"), (2, "raise"), (2, "exit"), (1, "exit")])
def test_what_took_the_place_does_so_again_after_a_failure(build, workers, how):
    sampler = build(Echo, 2, workers, replaceable=True, restarts=Restarts("restart", 5, -1))
    sampler.update_envs(EnvUpdate(params={"wind": 9.0}))
    step = 7

    def fails(context):
        return Other(context, script={(0, step): how})

    sampler.update_envs([None, EnvUpdate(env=fails, params={"friction": 0.25})])
    sampler.update_envs(EnvUpdate(change=lambda env: None))
    sampler.update_envs([None, EnvUpdate(calls=[("set_env_params", {"friction": 0.125})])])
    batch = sampler.obtain_exact_episodes(4)
    assert batch.aborted == (2 if workers == 1 else 1)
    assert batch.lengths.tolist() == [5] * 4 + [3] * 4
    params = sampler.env.call("get_env_params")
    assert params[0]["wind"] == 9.0 and "friction" not in params[0]
    assert params[1]["friction"] == 0.25, "as it was told, and not what a call has done"


class Windy(Other):
    """Has one parameter in common with `Echo`."""

    def __init__(self, context, **options):
        super().__init__(context, **options)
        self.params = {"friction": 0.5, "wind": 0.0}


def two_steps(env):
    return gymnasium.wrappers.TimeLimit(env, 2)


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_new_environments_have_the_same_parameters_before_and_after_a_failure(build, how):
    sampler = build(Echo, 1, 1, replaceable=True, restarts=Restarts("restart", 5, -1))
    fails = functools.partial(Windy, script={(0, 3): how})
    sampler.update_envs(EnvUpdate(params={"wind": 9.0, "gravity": 3.0}))
    sampler.update_envs(EnvUpdate(env=Other, params={"friction": 0.25}))
    sampler.update_envs(EnvUpdate(env=lambda context: fails(context), change=two_steps))
    sampler.update_envs(EnvUpdate(params={"wind": 8.0}))

    def params():
        return {name: value for name, value in sampler.env.call("get_env_params")[0].items() if name != "replacement"}

    assert params() == {"friction": 0.25, "wind": 8.0}
    batch = sampler.obtain_exact_episodes(3)
    assert batch.aborted == 2, "each of those that are built fails in its third step"
    assert batch.lengths.tolist() == [2, 2, 2], "the layer around what took the place is there again"
    assert params() == {"friction": 0.25, "wind": 8.0}


@pytest.mark.parametrize("way", ["method", "info"])
def test_masks_and_first_observations_are_those_of_the_new_environment(build, way):
    sampler = build(functools.partial(OneAllowed, 1, way), 2, 0, replaceable=True, seed=1)
    sampler.update_envs([None, EnvUpdate(env=functools.partial(OneAllowed, 3, way, 6))])
    batch = sampler.obtain_exact_episodes(2)
    assert batch.aborted == 1, "the new one has failed, and was built anew"
    for episode in batch:
        allowed = 3 if episode.env_id else 1
        assert set(episode.actions.tolist()) == {allowed} == set(episode.observations["obs"].ravel().tolist())


def test_what_is_no_update_is_refused_and_changes_nothing(build):
    sampler = build(Echo, 2, 0, replaceable=True)
    good, number = EnvUpdate(env=Other), cast(Any, 3)
    for wrong, error, reason in (
        ([good], ValueError, "1 updates for 2 environments"),
        ([good, {"wind": 1}], TypeError, "is no EnvUpdate"),
        ([good, EnvUpdate(env=3)], TypeError, "3 is no new environment: a name or a factory"),
        ([good, EnvUpdate(change=number)], TypeError, "change=3 is no function"),
        ([good, EnvUpdate(env="CartPole-v7")], ConfigError, "unknown environment"),
        (EnvUpdate(params=cast(Any, [{"wind": 1}, None])), TypeError, "is no dict of name -> value; to change each"),
        (EnvUpdate(attributes=cast(Any, [None, {"a": 1}])), TypeError, r"attributes=\[None, .* is no dict of name"),
        (EnvUpdate(calls=cast(Any, {"slow": [0.1]})), TypeError, r"no list of \(method, \*arguments\)"),
        (EnvUpdate(calls=cast(Any, ["slow"])), TypeError, r"calls=\['slow'\] is no list of"),
    ):
        with pytest.raises(error, match=reason):
            sampler.update_envs(wrong)
    assert lengths(sampler) == [5, 5]
    sampler.update_envs([None, good])
    for update in (EnvUpdate(env=functools.partial(Echo, size=2)), EnvUpdate(env="CartPole-v1")):
        with pytest.raises(EnvWorkerError, match=r"differs from the one .*: observation_space .* instead of"):
            sampler.update_envs([None, update])
    with pytest.raises(EnvWorkerError, match="no such parameter: wind"):
        sampler.update_envs([None, EnvUpdate(params={"wind": 1.0})])
    assert lengths(sampler) == [5, 3]
    fixed = build(Echo, 2, 0)
    for update in (good, EnvUpdate(change=lambda env: env)):
        with pytest.raises(ConfigError, match=r"need SamplerRecipe\(..., replaceable=True\)"):
            fixed.update_envs(update)


def test_new_environments_follow_from_the_seed(build):
    def play():
        sampler = build(Drawn, 2, 0, replaceable=True, seed=6)
        numbers = [sampler.obtain_exact_episodes(2)]
        for _ in range(2):
            sampler.update_envs([None, EnvUpdate(env=Drawn)])
            sampler.reset()
            numbers.append(sampler.obtain_exact_episodes(2))
        return [[episode.observations["obs"][0, 0] for episode in batch] for batch in numbers]

    first = play()
    assert first == play() and len({number for batch in first for number in batch}) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_environments_that_can_be_replaced_play_the_same_episodes(build, workers):
    """Nobody has to know that there is a layer around them: masks, agents and seeds are as without."""
    agents = functools.partial(ScriptedParallel, {}, {"a": "T"}, {"b": "C", "c": "T"})
    masked = functools.partial(OneAllowed, 2, "info")
    for env in ("CartPole-v1", "synthetic_masked", "synthetic_masked_info", agents, masked):
        plain, replaceable = (build(env, 2, workers, seed=3, replaceable=each) for each in (False, True))
        assert plain.env.spec == replaceable.env.spec
        for one, other in zip(plain.obtain_exact_episodes(2), replaceable.obtain_exact_episodes(2), strict=True):
            assert one.rewards.tobytes() == other.rewards.tobytes()
            for name, array in one.observations.items():
                assert array.tobytes() == other.observations[name].tobytes()
