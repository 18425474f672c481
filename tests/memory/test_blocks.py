"""The life of a block: what is allowed in which state, and that work in every state goes on after a death."""

import numpy as np
import pytest

from appo.algorithms.memory.blocks import BlockAddress, BlockState, LearnerBlocks, Scratch, SplitBlocks, block_states
from tests.memory.memory_cases import ROW_ARRAYS, STEP_ARRAYS, fill_with_noise, shared

FREE, FILLING, READY, TRAINING = BlockState


def one_split(**changes):
    arrays = shared(**({"actors": 1, "splits": 1} | changes))
    learners = [LearnerBlocks(arrays, policy) for policy in range(arrays.sizes.learning_policies)]
    return arrays, SplitBlocks(arrays, 0, 0), learners


def states(arrays):
    return block_states(arrays).reshape(-1).tolist()


def test_a_block_goes_through_its_states_in_order():
    arrays, split, [learner] = one_split()
    assert states(arrays) == [FREE, FREE]
    assert split.begin_next() and split.block == 0
    assert states(arrays) == [FILLING, FREE]
    assert learner.ready() == []
    split.complete()
    assert states(arrays) == [READY, FREE]
    address = BlockAddress(actor=0, split=0, block=0, sequence=1)
    assert learner.ready() == [address]
    learner.take(address)
    assert states(arrays) == [TRAINING, FREE]
    assert learner.ready() == []
    learner.release(address)
    assert states(arrays) == [FREE, FREE]
    assert split.begin_next() and split.block == 1


def test_blocks_are_filled_in_turn_and_only_when_free():
    _, split, [learner] = one_split(blocks=3)
    for block in range(3):
        assert split.begin_next() and split.block == block
        split.complete()
    assert not split.begin_next()
    first, second, third = learner.ready()
    learner.take(second)
    learner.release(second)
    assert not split.begin_next()  # the next one in turn is block 0, which is not free
    learner.take(first)
    assert not split.begin_next()
    learner.release(first)
    assert split.begin_next() and (split.block, split.sequence) == (0, 4)
    assert [address.sequence for address in learner.ready()] == [third.sequence] == [3]


def test_with_a_single_block_the_actor_waits_for_every_learner():
    _, split, learners = one_split(blocks=1, policies=2)
    assert split.begin_next()
    split.complete()
    for learner in learners:
        assert not split.begin_next()
        [address] = learner.ready()
        learner.take(address)
        learner.release(address)
    assert split.begin_next() and split.block == 0


def test_a_block_cannot_be_begun_twice():
    arrays, split, _ = one_split(blocks=1)
    assert split.begin_next()
    with pytest.raises(AssertionError, match="begun twice"):
        split.begin_next()
    assert states(arrays) == [FILLING]


def test_a_block_cannot_be_completed_without_being_filled():
    _, split, _ = one_split()
    with pytest.raises(AssertionError, match="without being filled"):
        split.complete()
    split.begin_next()
    split.complete()
    with pytest.raises(AssertionError, match="without being filled"):
        split.complete()


def test_a_block_cannot_be_taken_twice_nor_released_without_being_taken():
    _, split, [learner] = one_split()
    split.begin_next()
    split.complete()
    [address] = learner.ready()
    with pytest.raises(AssertionError, match="without being taken"):
        learner.release(address)
    learner.take(address)
    with pytest.raises(AssertionError, match="taken twice"):
        learner.take(address)
    learner.release(address)
    with pytest.raises(AssertionError, match="taken twice"):
        learner.take(address)
    with pytest.raises(AssertionError, match="without being taken"):
        learner.release(address)


def test_a_block_is_free_only_when_every_learner_has_taken_its_columns():
    arrays, split, learners = one_split(policies=3)
    split.begin_next()
    split.complete()
    for count, learner in enumerate(learners):
        assert states(arrays)[0] == READY
        [address] = learner.ready()
        learner.take(address)
        assert states(arrays)[0] == TRAINING
        learner.release(address)
        assert (states(arrays)[0] == FREE) == (count == 2)


def test_the_oldest_rollouts_come_first():
    arrays = shared(actors=2, splits=2, blocks=4)
    splits = {(a, s): SplitBlocks(arrays, a, s) for a in range(2) for s in range(2)}
    for cell in [(1, 1), (1, 1), (1, 1), (0, 1), (0, 0), (0, 0)]:
        splits[cell].begin_next()
        splits[cell].complete()
    assert [address.sequence for address in LearnerBlocks(arrays, 0).ready()] == [1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("who", ["actor", "learner"])
@pytest.mark.parametrize("steps_before", range(8))
def test_after_a_death_between_any_two_steps_the_successor_goes_on(who, steps_before):
    """The reference is the same life without a death: as many rollouts are begun, completed, taken and released."""
    arrays, split, [learner] = one_split(blocks=2)
    held = None
    plan = ["begin", "complete", "take", "release"] * 2

    def do(step):
        nonlocal held
        if step == "begin":
            assert split.begin_next()
        elif step == "complete":
            split.complete()
        elif step == "take":
            [held] = learner.ready()
            learner.take(held)
        else:
            learner.release(held)

    for step in plan[:steps_before]:
        do(step)
    before = states(arrays)
    if who == "actor":
        split = SplitBlocks(arrays, 0, 0)
        rest = plan[steps_before:]
        if rest and rest[0] == "complete":  # what the dead one was filling is begun anew
            assert before.count(FILLING) == 1 and FILLING not in states(arrays)
            rest = ["begin", *rest]
        else:
            assert states(arrays) == before
    else:
        learner = LearnerBlocks(arrays, 0)
        rest = plan[steps_before:]
        if rest and rest[0] == "release":  # what the dead one was copying is taken anew
            assert before.count(TRAINING) == 1 and TRAINING not in states(arrays)
            rest = ["take", *rest]
        else:
            assert states(arrays) == before
    for step in rest:
        do(step)
    assert states(arrays) == [FREE, FREE]
    assert arrays["ready_sequence"].reshape(-1).tolist() == [1, 2]
    assert split.begin_next() and split.sequence == 3


def random_action(split, learner_of, holding, rng):
    """One step of the actor or of a learner, drawn at random; what it did."""
    who = int(rng.integers(-1, len(learner_of)))
    if who == -1:
        if split["filling"]:
            split["blocks"].complete()
            split["filling"] = False
            return "completed"
        split["filling"] = split["blocks"].begin_next()
        return "begun" if split["filling"] else "waited"
    if holding[who] is not None:
        learner_of[who].release(holding[who])
        holding[who] = None
        return "released"
    ready = learner_of[who].ready()
    if not ready:
        return "waited"
    holding[who] = ready[int(rng.integers(len(ready)))]
    learner_of[who].take(holding[who])
    return "taken"


def owned_by_definition(split, holding, released, num_blocks):
    """The state of every block from a diary of events, without looking at the headers."""
    expected = []
    for block in range(num_blocks):
        rollouts = [n for n in range(1, split["blocks"].sequence + 1) if (n - 1) % num_blocks == block]
        newest = rollouts[-1] if rollouts else 0
        if newest and newest == split["blocks"].sequence and split["filling"]:
            expected.append(FILLING)
        elif any(address is not None and address.block == block for address in holding):
            expected.append(TRAINING)
        elif newest and any(newest not in done for done in released):
            expected.append(READY)
        else:
            expected.append(FREE)
    return expected


@pytest.mark.parametrize(("policies", "blocks"), [(1, 1), (1, 3), (2, 2), (3, 4)])
def test_at_every_moment_every_block_is_either_free_or_owned(policies, blocks):
    arrays, split_blocks, learners = one_split(policies=policies, blocks=blocks)
    rng = np.random.default_rng(policies * 10 + blocks)
    split, holding = {"blocks": split_blocks, "filling": False}, [None] * policies
    released: list[set[int]] = [set() for _ in range(policies)]
    events = []
    for _ in range(1500):
        before = list(holding)
        events.append(random_action(split, learners, holding, rng))
        for policy, (earlier, now) in enumerate(zip(before, holding, strict=True)):
            if earlier is not None and now is None:
                released[policy].add(earlier.sequence)
        assert states(arrays) == owned_by_definition(split, holding, released, blocks)
    assert {"begun", "completed", "taken", "released", "waited"} == set(events)
    assert all(len(done) > 50 for done in released)  # otherwise this test would prove little


def test_row_t_of_one_block_becomes_row_0_of_the_next():
    arrays, split, _ = one_split(blocks=2)
    rng = np.random.default_rng(0)
    split.begin_next()
    fill_with_noise(arrays, (*ROW_ARRAYS, *STEP_ARRAYS), (0, 0, 0), rng)
    split.complete()
    previous = split.block
    split.begin_next()
    fill_with_noise(arrays, (*ROW_ARRAYS, *STEP_ARRAYS), (0, 0, 1), rng)
    before = {name: arrays[name][0, 0].copy() for name in (*ROW_ARRAYS, *STEP_ARRAYS)}
    split.carry_over(previous)
    for name in ROW_ARRAYS:
        np.testing.assert_array_equal(arrays[name][0, 0, 1, 0], before[name][0, -1])
        np.testing.assert_array_equal(arrays[name][0, 0, 1, 1:], before[name][1, 1:])
        np.testing.assert_array_equal(arrays[name][0, 0, 0], before[name][0])
        assert (before[name][0, -1] != before[name][1, 0]).any()
    for name in STEP_ARRAYS:
        np.testing.assert_array_equal(arrays[name][0, 0], before[name])


def test_step_t_writes_its_rewards_and_flags_into_row_t_and_what_follows_into_row_t_plus_1():
    arrays = shared()
    split = SplitBlocks(arrays, 1, 2)
    scratch = Scratch.of(5)
    steps = split.step_arrays(scratch)
    assert len(steps) == split.num_blocks == 2 and {len(of_block) for of_block in steps} == {4}
    target = steps[1][2]
    target.observations["obs"][...] = 1.0
    target.observations["pixels"][...] = 2
    flags = {"is_first": 3, "is_last": 4, "active": 5, "rewards": 6, "terminated": 7, "truncated": 8}
    for name, value in flags.items():
        getattr(target, name)[...] = value
    expected = {"obs/obs": (1, 3), "obs/pixels": (2, 3), "is_first": (3, 3), "is_last": (4, 3), "active": (5, 3)}
    expected |= {"rewards": (6, 2), "terminated": (7, 2), "truncated": (8, 2)}
    for name, (value, row) in expected.items():
        there = np.zeros(arrays[name].shape)
        there[1, 2, 1, row] = value
        np.testing.assert_array_equal(arrays[name], there, err_msg=name)
    assert target.frames is scratch.frames and target.crashed is scratch.crashed


def test_a_reset_writes_into_row_0_of_the_block_that_is_being_filled():
    arrays, split, _ = one_split()
    split.begin_next()
    split.complete()
    split.begin_next()
    split.reset_arrays(Scratch.of(5)).is_first[...] = 1
    assert np.argwhere(arrays["is_first"][0, 0].any(axis=-1)).tolist() == [[1, 0]]


def test_actions_are_the_first_numbers_of_the_answers():
    arrays = shared()
    split = SplitBlocks(arrays, 1, 0)
    arrays["answers"][1, 0, 1, 2] = np.arange(arrays.sizes.answer_width)
    assert split.actions.shape == (2, 4, 5, 3)
    np.testing.assert_array_equal(split.actions[1, 2], np.broadcast_to([0.0, 1.0, 2.0], (5, 3)))


def several(policies=3, blocks=2, frozen=0):
    arrays = shared(actors=1, splits=1, blocks=blocks, policies=policies, frozen=frozen)
    return arrays, SplitBlocks(arrays, 0, 0), [LearnerBlocks(arrays, policy) for policy in range(policies)]


def play_rollout(split, *policies):
    assert split.begin_next()
    split.play(np.array(policies, np.int32))
    split.complete()


def numbers(learners):
    return [[address.sequence for address in learner.ready()] for learner in learners]


def take_all(learner):
    for address in learner.ready():
        learner.take(address)
        learner.release(address)


def test_a_learner_whose_policy_plays_no_row_is_neither_given_the_block_nor_waited_for():
    arrays, split, learners = several(blocks=1)
    for sequence in range(1, 4):
        play_rollout(split, 1)
        assert numbers(learners) == [[], [sequence], []] and [learner.num_ready for learner in learners] == [0, 1, 0]
        assert states(arrays) == [READY] and not split.begin_next()
        take_all(learners[1])
        assert states(arrays) == [FREE]


def test_a_block_that_only_frozen_policies_play_is_free_as_soon_as_it_is_complete():
    arrays, split, learners = several(policies=2, frozen=2, blocks=1)
    for _ in range(3):
        play_rollout(split, 2, 3)
        assert numbers(learners) == [[], []] and states(arrays) == [FREE]
    play_rollout(split, 1, 3)
    assert numbers(learners) == [[], [4]] and states(arrays) == [READY]


def test_a_split_that_changes_hands_is_the_next_policy_s_as_soon_as_it_is_complete_and_not_before():
    arrays, split, learners = several(blocks=1)
    play_rollout(split, 1)
    take_all(learners[1])
    assert split.begin_next()
    split.play(np.array([0], np.int32))
    assert numbers(learners) == [[], [], []] and states(arrays) == [FILLING]  # what the block held was never policy 0's
    split.complete()
    assert numbers(learners) == [[2], [], []]


def test_a_policy_that_joins_within_a_rollout_is_given_its_block():
    _, split, learners = several()
    assert split.begin_next()
    split.play(np.array([1], np.int32))
    split.play(np.array([1, 2], np.int32))
    split.complete()
    assert numbers(learners) == [[], [1], [1]]


def test_what_a_dead_actor_had_said_of_a_rollout_is_said_anew():
    arrays, split, learners = several(blocks=1)
    play_rollout(split, 0)
    take_all(learners[0])
    assert split.begin_next()
    split.play(np.array([1], np.int32))  # and then it died
    successor = SplitBlocks(arrays, 0, 0)
    assert states(arrays) == [FREE] and numbers(learners) == [[], [], []]
    play_rollout(successor, 0)
    assert numbers(learners) == [[2], [], []]
