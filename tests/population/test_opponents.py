"""Which past selves a pool keeps, and how often each is met."""

import itertools

import pytest

from appo.algorithms.population.opponents import PastSelf, RecentScore, sampling_weights, superfluous, win_rate


def pool_of(*frames):
    return [PastSelf(number, 0, 0, frames_of, number) for number, frames_of in enumerate(frames, 1)]


def test_the_formulas_of_prioritized_fictitious_self_play():
    rates = [0.2, 0.5, 0.8]
    assert sampling_weights(rates, "uniform") == pytest.approx([1 / 3] * 3)
    hard, var = [0.64, 0.25, 0.04], [0.16, 0.25, 0.16]
    assert sampling_weights(rates, "pfsp_hard") == pytest.approx([weight / sum(hard) for weight in hard])
    assert sampling_weights(rates, "pfsp_var") == pytest.approx([weight / sum(var) for weight in var])


def test_an_opponent_that_is_always_beaten_is_still_met():
    weights = sampling_weights([1.0, 0.5], "pfsp_hard")
    assert 0.02 < weights[0] < 0.1 and sum(weights) == pytest.approx(1.0)
    assert sampling_weights([1.0, 1.0], "pfsp_hard") == [0.5, 0.5] and sampling_weights([], "pfsp_var") == []


def test_newer_matches_count_more():
    score = RecentScore()
    assert score.win_rate == 0.5, "nothing is known"
    for _ in range(1000):
        score = score.with_match(0.0)
    lost = score.win_rate
    for _ in range(100):  # half of the weight
        score = score.with_match(1.0)
    assert lost < 0.01 and score.win_rate == pytest.approx(0.5, abs=0.01)


def test_the_win_rate_is_the_mean_over_seats_however_often_each_was_taken():
    first, second = RecentScore(), RecentScore()
    for _ in range(300):
        first = first.with_match(1.0)
    for _ in range(30):
        second = second.with_match(0.0)
    assert win_rate({0: first, 1: second}) == pytest.approx(0.5, abs=0.03)
    assert win_rate({}) == 0.5


def test_a_pool_that_is_full_stays_spread_over_the_run():
    pool = []
    for number in range(200):
        pool.append(PastSelf(number + 1, 0, 0, 1000 * number, 0))
        if (leaves := superfluous(pool, 8)) is not None:
            pool.remove(leaves)
    frames = sorted(past.env_frames for past in pool)
    assert len(frames) == 8 and frames[0] == 0 and frames[-1] == 199_000, "the first and the newest stay"
    gaps = [later - earlier for earlier, later in itertools.pairwise(frames)]
    assert max(gaps[:-1]) <= 4 * min(gaps[:-1]), frames


def test_a_pool_with_room_gives_up_nobody_and_one_of_one_the_older():
    assert superfluous(pool_of(0, 10), 2) is None
    assert superfluous(pool_of(0, 10), 1) == pool_of(0, 10)[0]
    leaves = superfluous(pool_of(0, 10, 12, 30), 3)
    assert leaves is not None and leaves.env_frames == 10, "its neighbours are 12 apart, the other's 20"
