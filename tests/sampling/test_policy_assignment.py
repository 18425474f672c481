"""Which policy plays a split of single agents: dealt in turn, the same until an episode ends."""

import numpy as np

from appo.algorithms.sampling.policy_assignment import (
    LONGEST_EPISODE,
    ROLLOUTS_PER_TURN,
    SplitAssignment,
)


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
