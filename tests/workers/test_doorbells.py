"""Doorbells: a ring is never lost, whichever process waits, whatever the system offers."""

import os
import time

import pytest

from appo.utils.doorbells import DescriptorParcel, Doorbell
from tests.memory.memory_cases import open_descriptors
from tests.workers.worker_processes import ring_often, wait_and_tell


@pytest.fixture(params=["eventfd", "pipe"])
def bell(request, monkeypatch):
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")
    made = Doorbell()
    assert (made._read == made._write) == (request.param == "eventfd")
    yield made
    made.close()


def test_a_ring_before_the_wait_counts(bell):
    bell.ring()
    assert bell.wait(10.0)


def test_rings_in_between_count_once(bell):
    for _ in range(1000):
        bell.ring()
    assert bell.wait(10.0)
    assert not bell.wait(0.0)
    bell.ring()
    assert bell.wait(0.0)


def test_without_a_ring_a_wait_takes_its_time_and_no_longer_than_it_must(bell):
    began = time.monotonic()
    assert not bell.wait(0.05)
    assert 0.045 <= time.monotonic() - began < 5.0
    assert not bell.wait(-1.0)


def test_however_often_it_rings_no_process_is_blocked(bell):
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    assert bell.wait(10.0)


def test_a_process_that_waits_is_woken_by_another(launcher, bell):
    here, there = launcher.context.Pipe()
    parcel = DescriptorParcel(bell.descriptors)
    child = launcher.context.Process(target=wait_and_tell, args=(parcel, there))
    child.start()
    parcel.close()
    assert here.poll(60) and here.recv() == "waiting"
    time.sleep(0.05)
    began = time.monotonic()
    bell.ring()
    assert here.poll(60) and here.recv() is True
    assert time.monotonic() - began < 10.0  # its own timeout is 30 s
    child.join(60)
    child.close()


def test_several_processes_may_ring_one_bell(launcher, bell):
    parcels = [DescriptorParcel(bell.descriptors) for _ in range(3)]
    children = [launcher.context.Process(target=ring_often, args=(parcel, 200)) for parcel in parcels]
    for child in children:
        child.start()
    for parcel, child in zip(parcels, children, strict=True):
        parcel.close()
        child.join(60)
        assert child.exitcode == 0
        child.close()
    assert bell.wait(0.0)
    assert not bell.wait(0.0)


@pytest.mark.parametrize("has_eventfd", [True, False])
def test_closing_gives_every_descriptor_back(monkeypatch, has_eventfd):
    if not has_eventfd:
        monkeypatch.delattr(os, "eventfd")
    before = open_descriptors()
    bells = [Doorbell() for _ in range(5)]
    assert open_descriptors() == before + (5 if has_eventfd else 10)
    for bell in bells:
        bell.close()
    assert open_descriptors() == before
