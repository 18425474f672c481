"""Who sits where in a match: drawn for some matches, the same until they end."""

import numpy as np
import pytest

from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.sampling.matchmaking import ROLLOUTS_PER_DRAW, Draws, MatchAssignment, Opponents
from appo.utils.options import ConfigError
from tests.memory.memory_cases import small_sizes


def assignment(policies, seed=0):
    return MatchAssignment(policies, np.random.SeedSequence(seed))


def test_one_policy_plays_everything():
    out = np.full(5, 9, np.int32)
    assignment(1).draw(out)
    assert out.tolist() == [0] * 5


@pytest.mark.parametrize("policies", [2, 3])
def test_policies_are_drawn_uniformly(policies):
    out = np.zeros(30_000, np.int32)
    assignment(policies).draw(out)
    shares = np.bincount(out, minlength=policies) / len(out)
    assert np.abs(shares - 1 / policies).max() < 0.02


def test_only_fresh_rows_change():
    before, after = np.arange(1000, dtype=np.int32) % 4, np.full(1000, 9, np.int32)
    is_first = (np.arange(1000) % 2).astype(np.uint8)
    drawing = assignment(4)
    drawing.draw(np.zeros(1000, np.int32))
    drawing.carry(before, after, is_first)
    np.testing.assert_array_equal(after[is_first == 0], before[is_first == 0])
    assert 0.15 < (after[is_first == 1] == before[is_first == 1]).mean() < 0.35


def test_draws_follow_from_the_seed_alone():
    drawn = []
    for seed in (1, 1, 2):
        out = np.zeros(100, np.int32)
        assignment(4, seed).draw(out)
        drawn.append(out.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_draws_go_on_from_where_a_state_was_taken():
    first, other, out, again = assignment(4, 1), assignment(4, 2), np.zeros(50, np.int32), np.zeros(50, np.int32)
    first.draw(out)
    other.random_state = first.random_state
    first.draw(out)
    other.draw(again)
    assert out.tolist() == again.tolist()


def matches(assignment, envs, agents, number):
    """[match, env, agent] the policies of so many matches, all of which end together."""
    row, found = np.zeros(envs * agents, np.int32), []
    assignment.draw(row)
    for _ in range(number):
        found.append(row.reshape(envs, agents).copy())
        following = np.zeros_like(row)
        assert not assignment.carry(row, following, np.zeros(len(row), np.uint8)) and (following == row).all()
        assert assignment.carry(row, following, np.ones(len(row), np.uint8))
        row = following
    return np.array(found)


def drawn_for(agents, **options):
    return MatchAssignment(3, np.random.SeedSequence(5), agents, Draws(**options))


def test_seats_are_kept_for_some_matches_and_environments_change_at_different_times():
    played = matches(drawn_for(2, matches=10), envs=50, agents=2, number=200)
    changed = (played[1:] != played[:-1]).any(axis=2)  # [match, env]
    assert 0.5 < changed.sum() / (50 * 199 / 10) < 1.0  # a draw may give what was there: one in nine
    for env in range(50):
        gaps = np.diff(np.flatnonzero(changed[:, env]))
        assert (gaps % 10 == 0).all()
    assert changed[:10].any(axis=1).sum() == 10


def test_policies_meet_in_one_environment_or_have_all_of_its_seats():
    mixed = matches(drawn_for(4), envs=50, agents=4, number=20)
    assert (mixed != mixed[..., :1]).any(axis=2).mean() > 0.9
    alone = matches(drawn_for(4, mixes=False), envs=50, agents=4, number=20)
    assert (alone == alone[..., :1]).all() and set(alone.ravel().tolist()) == {0, 1, 2}


def test_an_agent_that_joins_a_match_has_the_policy_of_its_seat():
    assignment, row, following = drawn_for(3), np.zeros(6, np.int32), np.zeros(6, np.int32)
    assignment.draw(row)
    for _ in range(20):
        assert assignment.carry(row, following, np.array([0, 1, 1, 0, 0, 1], np.uint8))
        assert (following == row).all()


def test_a_draw_counts_for_many_rollouts_however_short_the_matches_are():
    """Otherwise most columns of a batch would hold steps of two learners."""
    assignment = drawn_for(2, rollouts=ROLLOUTS_PER_DRAW)
    row, changes = np.zeros(2 * 50, np.int32), 0
    assignment.draw(row)
    for number in range(200):
        assignment.begin_rollout(number)
        for _ in range(4):  # matches in each rollout
            following = np.zeros_like(row)
            assignment.carry(row, following, np.ones(len(row), np.uint8))
            changes += int((following != row).reshape(-1, 2).any(axis=1).sum())
            row = following
    draws = 50 * 200 / ROLLOUTS_PER_DRAW
    assert 0.8 * draws * (1 - 1 / 9) < changes < 1.1 * draws * (1 - 1 / 9), "one of nine draws of two seats is the same"


def test_seats_that_are_given_to_policies_are_not_drawn():
    assert (matches(drawn_for(3, seats=(2, 0, 1)), 5, 3, 4) == [2, 0, 1]).all()


def seats(text, agents=("hunter_0", "hunter_1", "prey"), policies=2):
    return SamplingConfig(num_policies=policies, agent_policy_map=text).policies_of(agents)


def test_the_first_pattern_that_fits_an_agent_says_its_policy():
    assert seats("") == ()
    assert seats("hunter_1:0, hunter*:1, prey:0") == (1, 0, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hunter*:2,prey:0", "policy from 0 to 1"),
        ("hunter*", "pattern:policy"),
        ("hunter*:0,prey:x", "pattern:policy"),
        ("hunter*:0", "names no policy for prey"),
        ("hunters:0,*:1", "no agent fits 'hunters'; they are hunter_0, hunter_1, prey"),
        ("*:1", "gives no agent to policy 0"),
    ],
)
def test_a_map_that_leaves_an_agent_or_a_policy_open_is_refused(text, told):
    with pytest.raises(ConfigError, match=told.replace("*", r"\*")):
        seats(text)


class Pool:
    """Two policies with two past selves each, and a scripted player, in shared arrays."""

    def __init__(self, share=1.0):
        self.arrays = SharedArrays.create(small_sizes(policies=2, frozen=4, scripted_players=1))
        self.opponents = Opponents(self.arrays, share)

    def enter(self, frozen, number, loaded=None):
        self.arrays["opponents"][frozen, 0] = number
        self.arrays["opponents_loaded"][frozen] = number if loaded is None else loaded

    def assignment(self, **options):
        return MatchAssignment(2, np.random.SeedSequence(3), 2, Draws(**options), self.opponents)


def test_half_of_the_seats_are_given_to_past_selves_of_the_policy_that_was_drawn_for_them():
    pool = Pool()
    for frozen in range(4):
        pool.enter(frozen, frozen + 1)
    pool.arrays["opponent_shares"][:] = [[1, 0, 0.75, 0.25, 0], [0, 1, 0.5, 0.5, 0]]
    found = matches(pool.assignment(), 4000, 2, 1)[0]
    is_given = found >= 2
    assert (is_given.sum(axis=1) == 1).all() and 0.45 < is_given[:, 0].mean() < 0.55, "either seat"
    kept, given = found[~is_given], found[is_given] - 2
    met = {(policy, frozen): ((kept == policy) & (given == frozen)).mean() for policy in (0, 1) for frozen in range(4)}
    # The pool of the policy drawn for the seat, each alike; within it as the shares say.
    expected = {(0, 0): 0.25, (0, 1): 0, (0, 2): 0.1875, (0, 3): 0.0625, (1, 0): 0, (1, 1): 0.25, (1, 2): 0.125}
    assert met == pytest.approx(expected | {(1, 3): 0.125}, abs=0.03)


def test_players_change_seats_before_others_are_drawn():
    pool = Pool()
    pool.arrays["opponent_shares"][:, :4] = 1.0
    for frozen in range(4):
        pool.enter(frozen, frozen + 1)
    found = matches(pool.assignment(), 20, 2, 40)
    assert (found[1::2] == found[0::2, :, ::-1]).all()
    fixed = matches(pool.assignment(seats=(0, 1)), 20, 2, 40)
    assert np.isin(fixed[..., 0], [0, 2, 3]).all() and np.isin(fixed[..., 1], [1, 4, 5]).all(), "each in its own seat"


def test_nobody_is_matched_with_a_past_self_that_is_not_loaded():
    pool = Pool()
    pool.arrays["opponent_shares"][:, :4] = 1.0
    found = matches(pool.assignment(), 100, 2, 1)
    assert (found < 2).all(), "there is none"
    pool.enter(1, 7, loaded=6)
    assert (matches(pool.assignment(), 100, 2, 1) < 2).all(), "the worker still has the one before"
    pool.enter(1, 7)
    assert set(np.unique(matches(pool.assignment(), 100, 2, 1))) == {0, 1, 3}


def test_seats_of_past_selves_that_are_gone_are_drawn_anew_when_the_match_ends():
    pool = Pool()
    pool.arrays["opponent_shares"][:, :4] = 1.0
    pool.enter(0, 1)
    pool.enter(2, 2)
    assignment, row = pool.assignment(matches=100), np.zeros(2 * 50, np.int32)
    assignment.draw(row)
    assert np.isin(row, [2, 4]).sum() == 50
    pool.arrays["opponents_loaded"][0] = 0
    following = np.zeros_like(row)
    assignment.carry(row, following, np.ones(len(row), np.uint8))
    had_lost = (row == 2).reshape(-1, 2).any(axis=1)
    pairs = following.reshape(-1, 2)
    assert had_lost.any() and not (following == 2).any()
    assert (pairs[~had_lost] == row.reshape(-1, 2)[~had_lost]).all(), "others keep their seats"


def test_the_share_says_how_many_matches_have_opponents_and_scripts_are_among_them():
    pool = Pool(share=0.25)
    pool.enter(0, 1)
    pool.arrays["opponent_shares"][:] = [0.5, 0, 0, 0, 0.5]
    found = matches(pool.assignment(mixes=False), 8000, 2, 1)[0]
    is_given = found >= 2
    # Half of the opponents are scripts; the others of the second policy, which has no past self, are itself.
    assert is_given.any(axis=1).mean() == pytest.approx(0.25 * 0.75, abs=0.02)
    assert (found == 6).any(axis=1).mean() == pytest.approx(0.25 * 0.5, abs=0.02)
