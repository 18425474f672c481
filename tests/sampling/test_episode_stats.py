"""Returns and lengths of episodes: summed per agent row, told once, forgotten at the end."""

import math

import numpy as np
import pytest

from appo.algorithms.sampling.episode_stats import EpisodeStats
from appo.envs.api import StepArrays


def step(rewards, terminated=0, truncated=0, frames=1):
    def flags(value):
        return np.broadcast_to(np.asarray(value, np.uint8), len(rewards)).copy()

    return StepArrays(
        observations={},
        is_first=flags(0),
        is_last=flags(0),
        active=flags(1),
        rewards=np.asarray(rewards, np.float32),
        terminated=flags(terminated),
        truncated=flags(truncated),
        frames=np.broadcast_to(np.asarray(frames, np.int32), len(rewards)).copy(),
        crashed=flags(0),
    )


def plain(episodes):
    """With None for an objective that was not reported: NaN equals nothing."""
    return [one._replace(true_return=None) if math.isnan(one.true_return) else one for one in episodes]


def policies(*ids):
    return np.asarray(ids, np.int32)


def test_an_episode_is_told_when_it_ends_with_the_sum_of_its_own_row():
    stats = EpisodeStats(2)
    assert stats.add(step([1.0, 10.0], frames=[4, 1]), {}, policies(0, 1)) == []
    ended = stats.add(step([2.0, 20.0], terminated=[0, 1], frames=[3, 1]), {}, policies(0, 1))
    assert plain(ended) == [(1, 30.0, None, 2, {})]
    ended = stats.add(step([4.0, 40.0], truncated=[1, 0]), {}, policies(0, 0))
    assert plain(ended) == [(0, 7.0, None, 8, {})]
    ended = stats.add(step([0.0, 0.0], terminated=[0, 1]), {}, policies(0, 0))
    assert plain(ended) == [(0, 40.0, None, 2, {})]


def test_what_infos_say_belongs_to_the_episode_in_which_they_said_it():
    stats = EpisodeStats(1)
    stats.add(step([1.0]), {0: {"episode_extra_stats": {"a": 1, "b": 2}}}, policies(0))
    more = {"true_reward": 5, "episode_extra_stats": {"b": 3}}
    [first] = stats.add(step([1.0], terminated=1), {0: more}, policies(0))
    assert (first.true_return, first.episode_return, first.extra) == (5.0, 2.0, {"a": 1.0, "b": 3.0})
    [second] = stats.add(step([1.0], terminated=1), {0: {"true_reward": 7}}, policies(0))
    assert (second.true_return, second.episode_return, second.extra) == (7.0, 1.0, {})
    assert all(type(value) is float for value in [first.true_return, *first.extra.values()])


def test_an_episode_whose_infos_hold_no_objective_has_none():
    """A lost life ends an episode, not the game, whose score is still open; nobody knows that better before the first
    game has ended than afterwards."""
    stats = EpisodeStats(1)
    [before] = stats.add(step([1.0], terminated=1), {}, policies(0))
    stats.add(step([1.0]), {0: {"true_reward": 5}}, policies(0))
    [scored] = stats.add(step([1.0], terminated=1), {}, policies(0))
    [after] = stats.add(step([1.0], terminated=1), {}, policies(0))
    assert scored.true_return == 5.0 and math.isnan(before.true_return) and math.isnan(after.true_return)
    assert before.episode_return == after.episode_return == 1.0


@pytest.mark.parametrize(("terminated", "truncated"), [(1, 0), (0, 1), (1, 1)])
def test_an_episode_that_ends_is_told_once_whatever_ended_it(terminated, truncated):
    assert len(EpisodeStats(1).add(step([1.0], terminated, truncated), {}, policies(0))) == 1


def test_statistics_that_are_no_finite_numbers_are_left_out():
    stats = EpisodeStats(1)
    said = {"episode_extra_stats": {"accuracy": math.nan, "kills": np.float32(2.0), "speed": math.inf}}
    [episode] = stats.add(step([1.0], terminated=1), {0: said}, policies(0))
    assert episode.extra == {"kills": 2.0}


def test_long_sums_of_small_rewards_lose_nothing():
    stats = EpisodeStats(1)
    for _ in range(3_000):
        stats.add(step([0.1]), {}, policies(0))
    [episode] = stats.add(step([0.0], terminated=1), {}, policies(0))
    assert episode.episode_return == pytest.approx(3_000 * float(np.float32(0.1)), rel=1e-9)


def test_an_episode_that_is_lost_leaves_nothing_to_the_next():
    stats = EpisodeStats(3)
    stats.begin_in_the_middle()
    more = {"true_reward": 5, "episode_extra_stats": {"a": 1}}
    stats.add(step([1.0, 2.0, 3.0]), {0: more, 1: more}, policies(0, 0, 0))
    stats.forget(np.array([1, 2]))
    ended = stats.add(step([1.0, 20.0, 30.0], terminated=1, frames=[1, 4, 1]), {}, policies(0, 0, 0))
    assert [(episode.episode_return, episode.length_frames, episode.extra) for episode in ended] == [
        (20.0, 4, {}),
        (30.0, 1, {}),
    ]
    assert all(math.isnan(episode.true_return) for episode in ended)


def test_an_episode_whose_beginning_was_not_seen_is_not_told():
    stats = EpisodeStats(2)
    stats.begin_in_the_middle()
    assert stats.add(step([1.0, 5.0], terminated=[1, 0]), {0: {"episode_extra_stats": {"a": 1}}}, policies(0, 0)) == []
    [first] = stats.add(step([2.0, 5.0], terminated=[1, 0]), {}, policies(0, 0))
    assert (first.episode_return, first.length_frames, first.extra) == (2.0, 1, {})
    assert stats.add(step([1.0, 5.0], terminated=[0, 1]), {}, policies(0, 0)) == []
    ended = stats.add(step([1.0, 6.0], terminated=[1, 1]), {}, policies(0, 0))
    assert [(episode.episode_return, episode.length_frames) for episode in ended] == [(2.0, 2), (6.0, 1)]
