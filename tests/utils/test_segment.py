"""Shared memory without a name: seen by every process that maps it, gone with the last of them."""

import gc
import mmap
import multiprocessing
import os
import tempfile

import pytest

from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.memory.weights import WeightsBuffer
from appo.algorithms.workers.worker import SharedMemoryHandle
from appo.utils.segment import Segment, aligned
from tests.memory.memory_cases import mapped_files_with_a_name, open_descriptors, shared, small_sizes
from tests.memory.memory_processes import add_one_everywhere


def test_two_processes_see_each_other_s_writes():
    arrays, weights = shared(), WeightsBuffer.create("weights-0")
    arrays["env_frames"][...] = 7
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    child = context.Process(target=add_one_everywhere, args=(SharedMemoryHandle.of(arrays, [weights], []), there))
    child.start()
    assert here.poll(60) and here.recv() == 7 * arrays["env_frames"].size
    assert here.poll(60) and here.recv() == "added"
    assert (arrays["env_frames"] == 8).all()
    here.send("end")
    child.join(60)
    assert child.exitcode == 0
    child.close()


def test_a_second_mapping_of_one_descriptor_is_the_same_memory():
    first = Segment.create("twice", 256)
    second = Segment(os.dup(first.descriptor), 256)
    first.array(64, (4,), "i8")[:] = [1, 2, 3, 4]
    assert second.array(64, (2, 2), "i8").tolist() == [[1, 2], [3, 4]]
    assert second.array(0, (8,), "i8").tolist() == [0] * 8


def test_a_view_outlives_the_descriptor_of_its_segment():
    segment = Segment.create("outlived", 64)
    view = segment.array(0, (8,), "i8")
    segment.close()
    segment.close()
    del segment
    gc.collect()
    view[:] = 5
    assert view.tolist() == [5] * 8


@pytest.mark.parametrize("has_memfd", [True, False])
def test_nothing_is_left_behind(monkeypatch, has_memfd):
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    SharedArrays.create(small_sizes()).segment.close()
    gc.collect()
    descriptors = open_descriptors()
    for _ in range(20):
        arrays = SharedArrays.create(small_sizes())
        arrays["rewards"][...] = 1.0
        arrays.segment.close()
        del arrays
    gc.collect()
    assert open_descriptors() == descriptors


@pytest.mark.parametrize("has_memfd", [True, False])
def test_while_it_lives_it_has_no_name_that_could_stay_behind(monkeypatch, has_memfd):
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    before = mapped_files_with_a_name()
    arrays = shared()
    arrays["rewards"][...] = 1.0
    assert mapped_files_with_a_name() == before
    with tempfile.NamedTemporaryFile() as file:  # otherwise this test would prove nothing
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            assert mapped_files_with_a_name() == before | {file.name}


def test_empty_arrays_may_lie_at_the_very_end():
    segment = Segment.create("end", 64)
    assert segment.array(64, (3, 0), "f4").shape == (3, 0)
    assert segment.array(0, (0,), "i8").size == 0


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up_to_cache_lines(size, expected):
    assert aligned(size) == expected
