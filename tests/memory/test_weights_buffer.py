"""Published weights: every copy is whole and belongs to its version, whatever the writer does meanwhile."""

import gc
import multiprocessing
import os

import numpy as np
import pytest

from appo.algorithms.memory.weights import PublishedVersion, WeightsBuffer
from appo.utils.doorbells import SharedDescriptor
from tests.memory.memory_cases import open_descriptors
from tests.memory.memory_processes import publish_for_a_while


def test_a_reader_gets_the_newest_weights_and_their_version():
    weights = WeightsBuffer.create("test")
    assert (weights.publication, weights.version) == (0, 0)
    flat = np.zeros(5, np.float32)
    for publication, version in enumerate([7, 8, 8, 3], start=1):
        weights.publish(np.full(5, publication, np.float32), version)
        assert weights.read_into(flat) == PublishedVersion(publication, version)
        assert flat.tolist() == [publication] * 5
        assert (weights.publication, weights.version) == (publication, version)


def test_what_is_published_is_a_copy():
    weights, flat, copy = WeightsBuffer.create("test"), np.ones(3, np.float32), np.zeros(3, np.float32)
    weights.publish(flat, 1)
    flat[:] = 2.0
    weights.read_into(copy)
    assert copy.tolist() == [1.0] * 3


def test_weights_of_another_size_are_refused_with_both_sizes():
    weights = WeightsBuffer.create("test")
    with pytest.raises(ValueError, match="the model has 3 numbers; 0 are published"):
        weights.read_into(np.zeros(3, np.float32))
    weights.publish(np.ones(3, np.float32), 1)
    with pytest.raises(ValueError, match="the model has 4 numbers; 3 are published"):
        weights.publish(np.ones(4, np.float32), 2)
    with pytest.raises(ValueError, match="the model has 2 numbers; 3 are published"):
        weights.read_into(np.zeros(2, np.float32))
    assert weights.publication == 1


def test_a_reader_that_was_there_before_the_first_publication_sees_it():
    weights, flat = WeightsBuffer.create("test"), np.zeros(3, np.float32)
    early = WeightsBuffer(os.dup(weights.descriptor))
    WeightsBuffer(os.dup(weights.descriptor)).publish(np.full(3, 4.0, np.float32), 9)
    assert early.read_into(flat) == (1, 9)
    assert flat.tolist() == [4.0] * 3


class CutOff:
    """Weights whose writer dies when it begins to copy them."""

    nbytes = 16

    @property
    def data(self):
        raise InterruptedError


@pytest.mark.parametrize(
    ("meanwhile", "expected"),
    [((), 1), ((2,), 1), ((CutOff,), 1), ((2, 3), 3), ((2, CutOff), 2), ((2, 3, 4), 4)],
)
def test_a_copy_is_repeated_when_its_writer_has_begun_to_overwrite_it(monkeypatch, meanwhile, expected):
    weights, waiting = WeightsBuffer.create("test"), list(meanwhile)
    weights.publish(np.full(4, 1, np.float32), 1)
    preadv = os.preadv

    def overtaken(*args):
        """Read; when it is for the first time, the writer publishes again and again before anybody looks."""
        count = preadv(*args)
        while waiting:
            if (version := waiting.pop(0)) is CutOff:
                with pytest.raises(InterruptedError):
                    weights.publish(CutOff(), 99)  # type: ignore[arg-type]  # no array, so that its copy fails
            else:
                weights.publish(np.full(4, version, np.float32), version)
        return count

    monkeypatch.setattr(os, "preadv", overtaken)
    flat = np.zeros(4, np.float32)
    assert weights.read_into(flat).version == expected
    assert flat.tolist() == [expected] * 4


def test_parts_are_published_and_read_as_one():
    weights = WeightsBuffer.create("test")
    parts: list[np.ndarray] = [
        np.arange(3, dtype=np.float32),
        np.arange(5, dtype=np.uint8),
        np.ones((2, 2), np.float32),
    ]
    weights.publish_parts(parts, 4)
    copies = [np.zeros_like(part) for part in parts]
    assert weights.read_parts_into(copies) == (1, 4)
    assert [copy.tolist() for copy in copies] == [part.tolist() for part in parts]


def test_a_copy_that_comes_in_pieces_is_whole(monkeypatch):
    weights, preadv = WeightsBuffer.create("test"), os.preadv
    flat, pieces = np.zeros(1000, np.float32), []

    def in_pieces(descriptor, buffers, offset):
        pieces.append(offset)
        return preadv(descriptor, [buffers[0][:999]], offset)

    monkeypatch.setattr(os, "preadv", in_pieces)
    weights.publish(np.arange(1000, dtype=np.float32), 1)
    weights.read_into(flat)
    assert flat.tolist() == list(range(1000))
    assert len(pieces) == 5


@pytest.mark.parametrize("publications", [1, 2])
def test_a_publication_that_was_cut_off_is_never_read_and_the_next_writer_goes_on(publications):
    weights, flat = WeightsBuffer.create("test"), np.zeros(4, np.float32)
    for number in range(publications):
        weights.publish(np.full(4, number + 1, np.float32), number + 1)
    with pytest.raises(InterruptedError):
        # Fails after it has said which half it writes.
        weights.publish(CutOff(), 99)  # type: ignore[arg-type]  # no array, so that its copy fails
    assert weights.read_into(flat) == (publications, publications)
    assert flat.tolist() == [publications] * 4
    successor = WeightsBuffer(os.dup(weights.descriptor))
    successor.publish(np.full(4, 50, np.float32), 50)
    assert weights.read_into(flat) == (publications + 1, 50)
    assert flat.tolist() == [50.0] * 4


def test_every_copy_is_whole_while_a_writer_hammers():
    weights, count = WeightsBuffer.create("test"), 200_000  # a copy takes long enough to be overtaken
    weights.publish(np.zeros(count, np.float32), 0)
    context = multiprocessing.get_context("forkserver")
    writer = context.Process(target=publish_for_a_while, args=(SharedDescriptor(weights.descriptor), count, 1.5))
    writer.start()
    flat = np.empty(count, np.float32)
    versions: list[int] = []
    publications: list[int] = []
    while writer.is_alive() or not versions:
        read = weights.read_into(flat)
        assert (flat == read.version).all()
        versions.append(read.version)
        publications.append(read.publication)
    writer.join(60)
    assert writer.exitcode == 0
    writer.close()
    assert versions == sorted(versions) and publications == sorted(publications)
    assert len(set(versions)) > 20  # otherwise this test would prove nothing
    assert weights.read_into(flat).version == weights.version


def test_publishing_and_reading_leave_no_descriptor_open():
    weights, flat = WeightsBuffer.create("test"), np.zeros(1000, np.float32)
    weights.publish(flat, 1)
    gc.collect()
    before = open_descriptors()
    for version in range(10):
        reader = WeightsBuffer(os.dup(weights.descriptor))
        weights.publish(flat, version)
        reader.read_into(flat)
        os.close(reader.descriptor)
        del reader
    gc.collect()
    assert open_descriptors() == before
