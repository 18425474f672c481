"""From blocks to batches: exactly the columns that a policy played, each once, in order, equal to a slow definition."""

import numpy as np
import pytest

from appo.algorithms.memory import collate
from appo.algorithms.memory.blocks import BlockState, LearnerBlocks, SplitBlocks, block_states
from appo.algorithms.memory.collate import BatchAssembler, allocate_staging, observation_names
from appo.algorithms.memory.layout import batch_arrays
from tests.memory.memory_cases import fill_with_noise, shared


class Actors:
    """Every split of a run, filling its blocks with noise as long as they are free."""

    def __init__(self, arrays, rng):
        self.arrays, self.rng = arrays, rng
        sizes = arrays.sizes
        self.splits = {(a, s): SplitBlocks(arrays, a, s) for a in range(sizes.actors) for s in range(sizes.splits)}
        self.names = [spec.name for spec in batch_arrays(sizes)]
        self.log = []  # of every rollout: its arrays, copied

    def fill(self, *cells):
        """One rollout of these splits, in this order."""
        for cell in cells:
            split = self.splits[cell]
            assert split.begin_next()
            block = (*cell, split.block)
            fill_with_noise(self.arrays, self.names, block, self.rng)
            self.arrays["policy_id"][block][...] = self.rng.integers(self.arrays.sizes.acting_policies, size=(5, 5))
            self.log.append({name: self.arrays[name][block].copy() for name in self.names})
            split.complete()

    def waiting(self):
        states = block_states(self.arrays)
        return [c for c, split in self.splits.items() if states[(*c, split.sequence % split.num_blocks)] == 0]


def columns_by_definition(log, policy, policies):
    """Column after column of what was logged, one at a time."""
    for rollout in log:
        for column in range(5):
            played = [rollout["policy_id"][row, column] == policy for row in range(4)]
            if policies == 1 or any(played):
                yield {name: array[:, column] for name, array in rollout.items()}


def plain(shape, dtype):
    return np.zeros(shape, dtype)


def case(width, *, policy=0, hold=False, seed=0, **changes):
    arrays = shared(**({"actors": 2, "splits": 1, "blocks": 3} | changes))
    assembler = BatchAssembler(arrays, policy, width, hold_blocks=hold)
    return arrays, Actors(arrays, np.random.default_rng(seed)), assembler, allocate_staging(arrays, width, plain)


def assert_columns(staging, expected):
    assert len(expected) == staging.arrays["rewards"].shape[1]
    for name, array in staging.arrays.items():
        wanted = np.stack([column[name] for column in expected], axis=1)
        np.testing.assert_array_equal(array, wanted, err_msg=name)


def test_staging_has_the_rows_of_a_block_and_the_columns_of_a_batch():
    arrays, _, _, staging = case(7)
    assert staging.arrays["obs/obs"].shape == (5, 7, 2)
    assert staging.arrays["obs/pixels"].shape == (5, 7, 1, 2, 3)
    assert staging.arrays["rewards"].shape == (4, 7)
    assert staging.arrays["recurrent_state"].shape == (2, 7, 3)
    assert staging.arrays["answers"].shape == (4, 7, arrays.sizes.answer_width)
    for spec in batch_arrays(arrays.sizes):
        assert staging.arrays[spec.name].dtype == np.dtype(spec.dtype)
    assert observation_names(staging) == {"obs": "obs/obs", "pixels": "obs/pixels"}


@pytest.mark.parametrize("width", [1, 3, 5, 7, 10, 13, 25])
@pytest.mark.parametrize("policies", [1, 2])
@pytest.mark.parametrize("state_size", [3, 0])
def test_batches_are_the_columns_in_order_as_a_slow_definition_says(width, policies, state_size):
    arrays, actors, assembler, staging = case(width, policy=policies - 1, policies=policies, state_size=state_size)
    others = [LearnerBlocks(arrays, policy) for policy in range(policies - 1)]
    batches = 0
    for _ in range(12):
        actors.fill(*actors.waiting())
        for other in others:
            for address in other.ready():
                other.take(address)
                other.release(address)
        while assembler.fill(staging):
            expected = list(columns_by_definition(actors.log, policies - 1, policies))
            assert_columns(staging, expected[batches * width : (batches + 1) * width])
            batches += 1
    played = len(list(columns_by_definition(actors.log, policies - 1, policies)))
    assert batches == played // width > 1
    assert assembler.missing == width - played % width
    assert played < len(actors.log) * 5 or policies == 1  # some columns belong to the other policy alone


def test_a_batch_waits_for_what_it_misses_and_keeps_what_it_has():
    _, actors, assembler, staging = case(8)
    assert not assembler.fill(staging)
    assert assembler.missing == 8
    actors.fill((0, 0))
    assert not assembler.fill(staging)
    assert assembler.missing == 3
    actors.fill((1, 0))
    assert assembler.fill(staging)
    assert_columns(staging, list(columns_by_definition(actors.log, 0, 1))[:8])


def test_blocks_are_given_back_as_soon_as_their_last_column_is_copied():
    arrays, actors, assembler, staging = case(8)
    actors.fill((0, 0), (1, 0))
    assembler.fill(staging)
    assert assembler.pop_released() == [0]
    assert assembler.pop_released() == []
    assert block_states(arrays)[:, 0, 0].tolist() == [BlockState.FREE, BlockState.TRAINING]
    assembler.fill(staging)
    assert assembler.pop_released() == [1]
    assert not block_states(arrays).any()


def test_a_block_without_a_column_of_this_policy_is_given_back_at_once():
    arrays, actors, assembler, staging = case(5, policy=0, policies=2)
    actors.fill((0, 0), (1, 0))
    arrays["policy_id"][0, 0, 0] = 1
    arrays["policy_id"][0, 0, 0, 4] = 0  # row T only bootstraps: nobody has decided there
    arrays["policy_id"][1, 0, 0] = 1
    arrays["policy_id"][1, 0, 0, 3, 2] = 0  # a single row of a single column
    assert not assembler.fill(staging)
    assert assembler.pop_released() == [0, 1]
    assert assembler.missing == 4
    np.testing.assert_array_equal(staging.arrays["obs/obs"][:, 0], arrays["obs/obs"][1, 0, 0, :, 2])


def test_held_blocks_come_back_together_when_the_iteration_is_over():
    arrays, actors, assembler, staging = case(10, hold=True, blocks=1)
    actors.fill((0, 0), (1, 0))
    assert assembler.fill(staging)
    assert assembler.pop_released() == []
    assert actors.waiting() == []
    assembler.release_held()
    assert sorted(assembler.pop_released()) == [0, 1]
    assert sorted(actors.waiting()) == [(0, 0), (1, 0)]
    assert not block_states(arrays).any()


def test_a_held_block_with_columns_left_stays_until_the_iteration_that_takes_them():
    _, actors, assembler, staging = case(7, hold=True, blocks=1)
    actors.fill((0, 0), (1, 0))
    assert assembler.fill(staging)
    assembler.release_held()
    assert assembler.pop_released() == [0]
    actors.fill((0, 0))
    assert assembler.fill(staging)
    assert_columns(staging, list(columns_by_definition(actors.log, 0, 1))[7:14])
    assembler.release_held()
    assert assembler.pop_released() == [1]


def test_policies_that_hold_blocks_never_wait_for_each_other_for_ever():
    """Synchronous training of two policies: a policy may have drawn fewer columns than it needs."""
    arrays = shared(actors=2, splits=1, blocks=1, policies=2)
    actors = Actors(arrays, np.random.default_rng(1))
    assemblers = [BatchAssembler(arrays, policy, 8, hold_blocks=True) for policy in range(2)]
    staging, batches = allocate_staging(arrays, 8, plain), [0, 0]
    for _ in range(60):
        actors.fill(*actors.waiting())
        for policy, assembler in enumerate(assemblers):
            if assembler.fill(staging):
                batches[policy] += 1
                assembler.release_held()
    assert min(batches) > 10


def test_a_lone_policy_gets_no_new_rollout_before_its_iteration_is_over():
    arrays, actors, assembler, staging = case(10, hold=True, blocks=1)
    for _ in range(5):
        actors.fill(*actors.waiting())
        assert not actors.waiting()
        assert assembler.fill(staging)
        assert not actors.waiting()
        assembler.release_held()
    assert arrays["ready_sequence"].reshape(-1).tolist() == [5, 5]


def test_a_rollout_that_ends_between_two_looks_is_no_standstill(monkeypatch):
    """Blocks given back then would be filled with what the weights before this iteration choose."""
    _, actors, assembler, staging = case(10, hold=True, blocks=1)
    actors.fill((0, 0))

    def late_states(shared_arrays):
        actors.fill(*actors.waiting())
        return block_states(shared_arrays)

    monkeypatch.setattr(collate, "block_states", late_states)
    assert assembler.fill(staging)
    assert assembler.pop_released() == [] and not actors.waiting()
    assert_columns(staging, list(columns_by_definition(actors.log, 0, 1))[:10])


def test_batches_that_rollouts_do_not_add_up_to_are_no_standstill():
    """Ten columns a round and nine in a batch: the second batch needs both splits twice."""
    _, actors, assembler, staging = case(9, hold=True, blocks=1)
    batches = 0
    for _ in range(30):
        actors.fill(*actors.waiting())
        if assembler.fill(staging):
            batches += 1
            assembler.release_held()
    assert batches > 10


def test_a_new_learner_takes_the_blocks_that_its_predecessor_had_begun():
    arrays, actors, assembler, staging = case(8)
    actors.fill((0, 0), (1, 0))
    assembler.fill(staging)  # all of the first, three columns of the second, and then it died
    successor = BatchAssembler(arrays, 0, 5, hold_blocks=False)
    staging = allocate_staging(arrays, 5, plain)
    assert successor.fill(staging)
    assert_columns(staging, list(columns_by_definition(actors.log, 0, 1))[5:10])
