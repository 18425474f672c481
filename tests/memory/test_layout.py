"""The table of shared arrays: nothing overlaps, nothing is forgotten, sizes of zero included."""

import numpy as np
import pytest

from appo.algorithms.memory.layout import AnswerColumns, ArraySpec, SharedArrays, all_arrays, block_arrays, total_bytes
from appo.algorithms.specs import ActionSpec, TensorSpec
from appo.envs.api import ActionLeaf
from appo.utils.segment import ALIGNMENT, Segment
from tests.memory.memory_cases import ACTIONS, shared, small_sizes

ODD_SIZES = [
    {},
    {"state_size": 0},
    {"observations": {}},
    {"observations": {"nothing": TensorSpec((0,), "float32"), "number": TensorSpec((), "int64")}},
    {"policies": 3, "actors": 1, "splits": 1, "blocks": 1, "rows": 1, "rollout": 1, "recurrence": 1},
]


@pytest.mark.parametrize("changes", ODD_SIZES)
def test_no_two_arrays_share_a_byte(changes):
    sizes, rng = small_sizes(**changes), np.random.default_rng(0)
    arrays = SharedArrays.create(sizes)
    written = {}
    for spec in all_arrays(sizes):
        noise = rng.integers(0, 100, spec.shape).astype(spec.dtype)
        arrays[spec.name][...] = noise
        written[spec.name] = noise
    for name, noise in written.items():
        np.testing.assert_array_equal(arrays[name], noise, err_msg=name)
    assert sum(noise.nbytes for noise in written.values()) <= total_bytes(sizes) == arrays.segment.size


def test_every_array_begins_at_zero_and_on_a_cache_line_of_its_own():
    arrays = shared()
    for spec in all_arrays(arrays.sizes):
        array = arrays[spec.name]
        assert array.shape == spec.shape and array.dtype == np.dtype(spec.dtype)
        assert not array.any()
        assert array.ctypes.data % ALIGNMENT == 0
        assert array.flags.c_contiguous and array.flags.writeable


def test_the_table_names_every_array_once_with_its_writer_and_its_readers():
    table = all_arrays(small_sizes())
    assert len({spec.name for spec in table}) == len(table) > 20
    assert all(spec.writer and spec.reader and spec.meaning for spec in table)


def test_one_segment_is_enough_for_the_table_and_a_byte_less_is_not():
    sizes = small_sizes(rows=16)  # the last array ends on a cache line
    size = total_bytes(sizes)
    last = all_arrays(sizes)[-1]
    assert last.nbytes % ALIGNMENT == 0
    SharedArrays(sizes, Segment.create("exact", size))
    with pytest.raises(ValueError, match="buffer is smaller"):
        SharedArrays(sizes, Segment.create("short", size - 1))


def test_a_zero_size_array_is_empty_and_in_its_place():
    arrays = shared(state_size=0)
    assert arrays["recurrent_state"].shape == (2, 3, 2, 2, 5, 0)
    assert list(shared(observations={}).observations()) == []


def test_only_the_rows_of_what_the_agent_sees_have_one_more_row_than_the_rollout():
    rows = {spec.name: spec.shape[3] for spec in block_arrays(small_sizes())}
    assert {name for name, count in rows.items() if count == 5} == {
        "obs/obs",
        "obs/pixels",
        "is_first",
        "is_last",
        "active",
        "policy_id",
    }
    assert rows["recurrent_state"] == 2
    assert {rows[name] for name in ("rewards", "terminated", "truncated", "answers", "policy_version")} == {4}


@pytest.mark.parametrize("actions", [ACTIONS, ActionSpec((ActionLeaf("discrete", 7),))])
def test_the_parts_of_an_answer_cover_it_without_overlap(actions):
    columns = AnswerColumns.of(actions)
    width = small_sizes(actions=actions).answer_width
    used = [*range(width)[columns.actions], columns.log_prob, columns.value, *range(width)[columns.parameters]]
    assert used == list(range(width))
    assert len(range(width)[columns.actions]) == actions.width
    assert len(range(width)[columns.parameters]) == actions.num_parameters


def test_trajectories_are_the_columns_of_one_block_of_every_split():
    sizes = small_sizes()
    assert sizes.trajectories == 2 * 3 * 5


def test_images_are_declared_with_their_channels_first_and_lie_in_memory_with_them_last():
    spec = ArraySpec("obs/image", (2, 3, 4, 5, 6), "u1", "actor", "learner", "an image", channels_last=True)
    stored = np.arange(np.prod(spec.stored_shape), dtype=np.uint8).reshape(spec.stored_shape)
    declared = spec.as_declared(stored)
    assert spec.stored_shape == (2, 3, 5, 6, 4) and declared.shape == spec.shape
    assert np.shares_memory(declared, stored) and declared.nbytes == spec.nbytes == 720
    assert declared[1, 2, 3, 4, 5] == stored[1, 2, 4, 5, 3]
    plain = spec._replace(channels_last=False)
    assert plain.stored_shape == plain.shape and plain.as_declared(stored) is stored
