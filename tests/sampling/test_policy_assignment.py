"""Which policy plays an agent row: drawn for each episode, the same until it ends."""

import numpy as np
import pytest

from appo.algorithms.sampling.policy_assignment import (
    ROLLOUTS_PER_TURN,
    ROLLOUTS_TO_END,
    EpisodeAssignment,
    SplitAssignment,
)


def assignment(policies, seed=0):
    return EpisodeAssignment(policies, np.random.SeedSequence(seed))


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
    assignment(4).carry(before, after, is_first)
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
    before, after = np.full(3, 1, np.int32), np.zeros(3, np.int32)
    assignment.begin_rollout(ROLLOUTS_PER_TURN)
    assert not assignment.carry(before, after, np.zeros(3, np.uint8)) and after.tolist() == [1, 1, 1]
    assert assignment.carry(before, after, np.array([0, 1, 0], np.uint8)) and after.tolist() == [1, 2, 1]


def test_an_episode_that_does_not_end_is_overdue_once_some_rollouts_after_its_split_changed_hands():
    assignment, row = SplitAssignment(3, 1, 4), np.array([1, 2, 1], np.int32)
    found = {}
    for number in range(2 * ROLLOUTS_PER_TURN):
        assignment.begin_rollout(number)
        found[number] = assignment.overdue(row).tolist()
    assert found.pop(ROLLOUTS_TO_END) == [1]  # policy 1 has the split
    assert found.pop(ROLLOUTS_PER_TURN + ROLLOUTS_TO_END) == [0, 2]  # policy 2 has it
    assert not any(found.values())


def test_no_episode_is_overdue_where_splits_keep_their_policy():
    assignment = SplitAssignment(2, 1, 4)
    for number in range(2 * ROLLOUTS_PER_TURN):
        assignment.begin_rollout(number)
        assert not len(assignment.overdue(np.zeros(3, np.int32)))
