"""Episodes of several agents that end at different times, agents that pause, and what infos tell with every step."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.algorithms.sampling.episodes import FIRST, MID, TERMINAL, TIMEOUT
from appo.utils.options import ConfigError
from tests.envs.test_parallel_env_adapter import ScriptedParallel


class Told(gymnasium.Env):
    """Ends after 4 steps; tells an objective with its second and its last step, and acts in every other one."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)
    action_mask_in_info = False

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {"is_active": False}

    def step(self, action):
        self.steps += 1
        info: dict = {"is_active": self.steps % 2 == 1}
        if self.steps in (2, 4):
            info |= {"true_reward": self.steps * 10.0, "episode_extra_stats": {"steps": self.steps}}
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 4, False, info


def column(episode, agent):
    return episode.observations["obs"][:, "abc".index(agent), 0].tolist()


def of_agent(array, agent):
    return array[:, "abc".index(agent)].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_agents_that_end_early_have_their_last_observation_once_and_are_inactive_then(build, workers):
    """a is terminated by step 2, b is cut by step 3, c goes on to step 5."""
    script = [{}, {"a": "T"}, {"b": "C"}, {}, {"c": "T"}]
    sampler = build(functools.partial(ScriptedParallel, *script), 2, workers)
    for number, episode in enumerate(sampler.obtain_exact_episodes(3)[:3]):
        first = 100 * (number + 1)
        assert column(episode, "a") == [first, first + 1, first + 2, 0, 0, 0]
        assert column(episode, "b") == [first + 10, first + 11, first + 12, first + 13, 0, 0]
        assert column(episode, "c") == [first + 20 + step for step in range(6)]
        assert of_agent(episode.is_active, "a") == [True, True, False, False, False]
        assert of_agent(episode.is_active, "b") == [True, True, True, False, False]
        assert episode.is_active[:, 2].all()
        assert np.argwhere(episode.terminated).tolist() == [[1, 0], [4, 2]]
        assert np.argwhere(episode.truncated).tolist() == [[2, 1]]
        assert episode.step_types.tolist() == [FIRST, MID, MID, MID, TERMINAL]
        assert of_agent(episode.rewards, "a") == [1, 2, 0, 0, 0]


def test_who_has_ended_before_is_not_cut_with_the_others(build):
    """a is terminated by step 2, c arrives with step 4; after 5 steps the sampler cuts."""
    script = [{}, {"a": "T"}, {}, {"c": "+"}]
    sampler = build(functools.partial(ScriptedParallel, *script, absent=("c",)), 1, 0, max_episode_length=5)
    for episode in sampler.obtain_exact_episodes(2):
        assert np.argwhere(episode.truncated).tolist() == [[4, 1], [4, 2]]
        assert of_agent(episode.is_active, "c") == [False, False, False, False, True]
        assert episode.step_types.tolist() == [FIRST, MID, MID, MID, TIMEOUT]
    early = build(functools.partial(ScriptedParallel, *script, absent=("c",)), 1, 0, max_episode_length=2)
    episode = early.obtain_exact_episodes(1)[0]
    assert np.argwhere(episode.truncated).tolist() == [[1, 1]], "a ends by itself, c has not been there"
    assert column(episode, "a") == [100, 101, 102], "its last observation, though the others go on"


def test_the_end_of_one_agent_does_not_end_a_fragment(build):
    sampler = build(functools.partial(ScriptedParallel, {}, {"a": "T"}, {"b": "T", "c": "C"}), 1, 0)
    fragments = sampler.stream(2)
    first, second = next(fragments), next(fragments)
    assert (first.begins, first.ends, first.step_types.tolist()) == (True, False, [FIRST, MID])
    assert (second.begins, second.ends, second.step_types.tolist()) == (False, True, [TIMEOUT])
    assert column(second, "a") == [102, 0] and column(second, "c") == [122, 123]


def test_every_agent_tells_of_its_own_end(build):
    infos = {(2, "a"): {"true_reward": 5.0}, (3, "b"): {"true_reward": 7.0}, (1, "b"): {"true_reward": 1.0}}
    sampler = build(functools.partial(ScriptedParallel, {}, {"a": "T"}, {"b": "T", "c": "T"}, infos=infos), 2, 2)
    for episode in sampler.obtain_exact_episodes(2):
        assert episode.info == {"a": {"true_reward": 5.0}, "b": {"true_reward": 7.0}}
        told, nan = episode.infos["true_reward"], np.nan
        assert told.shape == episode.rewards.shape
        np.testing.assert_array_equal(told, [[nan, 1, nan], [5, nan, nan], [nan, 7, nan]])


@pytest.mark.parametrize("workers", [0, 2])
def test_infos_are_kept_with_their_steps(build, tmp_path, workers):
    sampler = build(Told, 2, workers)
    batch = sampler.obtain_exact_episodes(2)
    told = {"true_reward": [np.nan, 20, np.nan, 40], "episode_extra_stats/steps": [np.nan, 2, np.nan, 4]}
    for episode in batch:
        assert sorted(episode.infos) == sorted(told)
        for name, values in told.items():
            np.testing.assert_array_equal(episode.infos[name], values)
        assert episode.info == {"true_reward": 40.0, "episode_extra_stats": {"steps": 4}}
        assert episode.is_active.tolist() == [False, True, False, True], "it may pause without an end"
    with np.load(batch.save(tmp_path / "told")) as data:
        np.testing.assert_array_equal(data["infos/true_reward"], told["true_reward"] * 4)
        assert data["is_active"].tolist() == [False, True] * 8
        assert data["starts"].tolist() == [0] * 4 and data["ends"].all()
    fragments = sampler.stream(3)
    parts = [next(fragments) for _ in range(8)]
    for part in parts:
        expected = told["true_reward"][part.start : part.start + len(part)]
        np.testing.assert_array_equal(part.infos["true_reward"], expected)
        assert (part.info != {}) == part.ends


def test_a_minari_data_set_has_whole_episodes_of_one_agent(build):
    several = build(functools.partial(ScriptedParallel, {"a": "T", "b": "T", "c": "T"}), 1, 0).obtain_exact_episodes(1)
    fragments = build(Told, 1, 0).obtain_samples(2, complete_episodes=False)
    for batch, reason in ((several, "has one agent"), (fragments, "has whole episodes")):
        with pytest.raises(ConfigError, match=reason):
            batch.save_minari("told/mine-v0", (Told.observation_space, Told.action_space), dict)


def test_what_a_cut_episode_told_with_its_last_step_is_kept(build):
    episode = build(Told, 1, 0, max_episode_length=2).obtain_exact_episodes(1)[0]
    assert episode.info == {"true_reward": 20.0, "episode_extra_stats": {"steps": 2}}


def test_infos_of_a_lost_episode_are_not_those_of_the_next(build):
    class Fails(Told):
        has_failed = False

        def step(self, action):
            if self.steps == 3 and not Fails.has_failed:
                Fails.has_failed = True
                raise ValueError("once")
            *rest, info = super().step(action)
            return *rest, info if Fails.has_failed else {"true_reward": -1.0}

    batch = build(Fails, 1, 0).obtain_exact_episodes(1)
    assert batch.aborted == 1
    np.testing.assert_array_equal(batch[0].infos["true_reward"], [np.nan, 20, np.nan, 40])
