"""Fragments of episodes: where they begin and end, what is missing between them, and what they are when joined."""

import functools

import numpy as np
import pytest

from appo.algorithms.sampling.episodes import FIRST, MID, TERMINAL, TIMEOUT
from tests.envs.vector.vec_env_cases import Echo


def take(sampler, fragment_len, number):
    fragments = sampler.stream(fragment_len)
    return [next(fragments) for _ in range(number)]


def require_continuity(episodes):
    """Each fragment goes on where the one before of its environment was, steps and observations alike."""
    last: dict = {}
    for episode in episodes:
        env, told = episode.env_id, episode.observations["obs"]
        number, steps = last.get(env, (0, 0))
        assert (episode.number, episode.start) == (number, steps)
        assert told[:, 3].tolist() == list(range(steps, steps + len(episode) + 1))
        last[env] = (number + 1, 0) if episode.ends else (number, steps + len(episode))


def test_only_the_first_fragment_of_an_episode_begins_and_only_the_last_ends(build):
    seen = take(build(functools.partial(Echo, length=7), 2, 2), 3, 60)
    require_continuity(seen)
    types = {0: [FIRST, MID, MID], 3: [MID, MID, MID], 6: [TERMINAL]}
    for fragment in seen:
        assert fragment.begins == (fragment.start == 0) and fragment.ends == (fragment.start == 6)
        assert fragment.step_types.tolist() == types[fragment.start]
        assert fragment.info == ({"episode_extra_stats": {"steps": 7}} if fragment.ends else {})


def test_an_episode_of_one_step_begins_and_ends(build):
    episode = build(functools.partial(Echo, length=1), 1, 0).obtain_exact_episodes(1)[0]
    assert episode.begins and episode.ends and episode.step_types.tolist() == [TERMINAL]


def test_a_stream_that_was_left_goes_on_without_a_gap(build):
    sampler = build(functools.partial(Echo, length=7), 3, 0)
    require_continuity([each for number in (1, 2, 40, 1) for each in take(sampler, 2, number)])


def test_fragments_of_old_versions_leave_a_gap_that_shows_and_is_counted(build):
    sampler = build(functools.partial(Echo, length=10), 1, 0, policy=1, max_policy_lag=0)
    fragments = sampler.stream(4)
    next(fragments)
    next(fragments)  # the action of step 8 is chosen by now
    sampler.update_policy(2)
    after = next(fragments)
    assert (after.number, after.start, after.begins) == (1, 0, True)
    assert sampler.total_discarded_steps == 2
    next(fragments)
    sampler.update_policy(3)
    next(fragments)  # of the next episode: the end of this one was begun by the older policy
    assert sampler.total_discarded_steps == 4
    assert sampler.obtain_samples(10).discarded == 0


@pytest.mark.parametrize("workers", [0, 3])
def test_samples_of_incomplete_episodes_are_all_that_was_played(build, workers):
    sampler = build(functools.partial(Echo, length=9), 3, workers)
    batches = [sampler.obtain_samples(number, complete_episodes=False) for number in (1, 5, 13, 40, 2)]
    for batch, number in zip(batches, (1, 5, 13, 40, 2), strict=True):
        assert number <= batch.num_steps < number + 9
    require_continuity([episode for batch in batches for episode in batch])
    whole = sampler.obtain_samples(20)
    assert set(whole.lengths.tolist()) == {9} and all(each.begins and each.ends for each in whole)


def test_incomplete_episodes_are_those_that_complete_ones_would_be_when_joined(build):
    whole = build("CartPole-v1", 3, 2, seed=4).obtain_exact_episodes(2)
    sampler = build("CartPole-v1", 3, 0, seed=4)
    parts: dict = {}
    while not all((env, 1) in parts and parts[env, 1][-1].ends for env in range(3)):
        for episode in sampler.obtain_samples(10, complete_episodes=False):
            parts.setdefault((episode.env_id, episode.number), []).append(episode)
    for episode in whole:
        joined = parts[episode.env_id, episode.number]
        for name in ("actions", "rewards", "terminated", "truncated", "is_active"):
            assert np.concatenate([getattr(part, name) for part in joined]).tolist() == getattr(episode, name).tolist()


def test_long_episodes_do_not_keep_incomplete_samples_waiting(build):
    """Where episodes are whole, what is asked for comes with the end of the first of them."""
    sampler = build([functools.partial(Echo, length=length) for length in (3, 10**9)], None, 0)
    batch = sampler.obtain_samples(100, complete_episodes=False)
    assert sum(len(each) for each in batch if each.env_id == 1) == sum(len(each) for each in batch if each.env_id == 0)
    assert set(sampler.obtain_samples(30).env_ids.tolist()) == {0}


def test_fragments_of_a_cut_episode_end_where_it_was_cut(build):
    seen = take(build(functools.partial(Echo, length=10**6), 2, 0, max_episode_length=5), 2, 20)
    require_continuity(seen)
    assert {fragment.start: fragment.step_types.tolist() for fragment in seen} == {
        0: [FIRST, MID],
        2: [MID, MID],
        4: [TIMEOUT],
    }
