"""Which splits the policy worker waits for before it computes a batch of actions."""

import time

import pytest

from appo.algorithms.memory.request_table import PolicyRequests, SplitRequests
from appo.algorithms.workers import policy_worker
from appo.algorithms.workers.policy_worker import DynamicBatcher
from tests.memory.memory_cases import shared


@pytest.fixture
def arrays():
    return shared(actors=2, splits=2, blocks=2)


@pytest.fixture
def batcher(arrays):
    return DynamicBatcher(PolicyRequests(arrays, 0, 0, 1))


def test_on_cores_of_their_own_half_of_the_splits_are_worth_a_short_wait(batcher):
    assert batcher.size() == 2 and batcher.batch_timeout_s < 0.001
    batcher.timed_out(1)
    assert batcher.size() == 2  # the wait is over; who steps meanwhile comes the next time
    batcher.shares_core = True
    assert batcher.size() == 4


def test_on_one_core_all_splits_that_can_come_are_waited_for(arrays, batcher):
    batcher.shares_core = True
    assert batcher.size() == 4 and batcher.batch_timeout_s > 0.001
    arrays["ready_sequence"][1, 1] = [1, 2]  # it has no block to go on in
    assert batcher.size() == 3
    arrays["ready_sequence"][:] = [1, 2]
    assert batcher.size() == 1


def test_splits_that_did_not_come_are_not_waited_for_again_for_a_while(arrays, batcher, monkeypatch):
    batcher.shares_core = True
    SplitRequests(arrays, 0, 0).ask(0, 0)
    monkeypatch.setattr(policy_worker, "ABSENT_FOR_S", 0.2)
    batcher.timed_out(1)
    assert batcher.size() == 1
    arrays["ready_sequence"][0, 1] = [1, 2]
    assert batcher.size() == 1
    time.sleep(0.25)
    assert batcher.size() == 3


def test_one_worker_of_several_waits_for_its_own_actors_only(arrays):
    batcher = DynamicBatcher(PolicyRequests(arrays, 0, 1, 2))
    batcher.shares_core = True
    assert batcher.size() == 2
