"""Which policy plays an agent row: drawn for each episode, the same until it ends."""

import numpy as np
import pytest

from appo.algorithms.sampling.policy_assignment import (
    LONGEST_EPISODE,
    ROLLOUTS_PER_TURN,
    MatchAssignment,
    SplitAssignment,
)


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


def played(split, num_splits, policies, rollouts):
    """The policy that begins episodes in each rollout of one split."""
    assignment, row = SplitAssignment(policies, split, num_splits), np.zeros(4, np.int32)
    found = []
    for number in range(rollouts):
        assignment.begin_rollout(number)
        assignment.draw(row)
        assert len(set(row)) == 1
        found.append(int(row[0]))
    return found


def test_splits_that_can_be_dealt_evenly_keep_their_policy():
    assert [set(played(split, 6, 3, 100)) for split in range(6)] == [{0}, {1}, {2}, {0}, {1}, {2}]


def test_others_go_on_to_the_next_policy_so_that_all_get_equal_shares():
    rounds = 3 * ROLLOUTS_PER_TURN
    shares = np.bincount(np.concatenate([played(split, 4, 3, rounds) for split in range(4)]))
    assert shares.tolist() == [4 * ROLLOUTS_PER_TURN] * 3
    assert played(1, 4, 3, 2 * ROLLOUTS_PER_TURN) == [1] * ROLLOUTS_PER_TURN + [2] * ROLLOUTS_PER_TURN


def test_an_episode_is_ended_by_the_policy_that_began_it():
    assignment = SplitAssignment(3, 1, 4)
    before, after = np.zeros(3, np.int32), np.zeros(3, np.int32)
    assignment.draw(before)
    assignment.begin_rollout(ROLLOUTS_PER_TURN)
    assert not assignment.carry(before, after, np.zeros(3, np.uint8)) and after.tolist() == [1, 1, 1]
    assert assignment.carry(before, after, np.array([0, 1, 0], np.uint8)) and after.tolist() == [1, 2, 1]


def test_an_episode_that_goes_on_for_ever_is_overdue_and_another_policy_follows():
    """Whichever number of policies takes turns, an endless episode after the other is played by each of them."""
    for policies in (2, 3, 5, 64):
        assignment, row, seen = SplitAssignment(policies, 0, policies + 1), np.zeros(1, np.int32), [0]
        assignment.draw(row)
        for number in range(policies * LONGEST_EPISODE):
            assignment.begin_rollout(number)
            assert (number % LONGEST_EPISODE == 0 and number > 0) == bool(len(assignment.overdue()))
            if len(assignment.overdue()):
                assignment.carry(row, row, np.ones(1, np.uint8))
                seen.append(int(row[0]))
        assert sorted(seen) == list(range(policies))


def test_an_episode_is_overdue_by_its_own_age():
    assignment, row = SplitAssignment(3, 1, 4), np.zeros(3, np.int32)
    assignment.draw(row)
    assignment.begin_rollout(7)
    assignment.carry(row, row.copy(), np.array([0, 1, 0], np.uint8))
    assignment.begin_rollout(LONGEST_EPISODE)
    assert assignment.overdue().tolist() == [0, 2]
    assignment.begin_rollout(LONGEST_EPISODE + 7)
    assert assignment.overdue().tolist() == [0, 1, 2]


def test_no_episode_is_overdue_where_splits_keep_their_policy():
    assignment = SplitAssignment(2, 1, 4)
    assignment.draw(np.zeros(3, np.int32))
    assignment.begin_rollout(2 * LONGEST_EPISODE)
    assert not len(assignment.overdue())


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
    return MatchAssignment(3, np.random.SeedSequence(5), agents, **options)


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
