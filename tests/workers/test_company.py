"""Whom the policy worker waits for before it computes a batch of actions."""

import time

import pytest

from algorithms.memory.request_table import PolicyRequests, SplitRequests
from algorithms.workers import policy_worker
from algorithms.workers.policy_worker import Company
from tests.memory.memory_cases import shared


@pytest.fixture
def arrays():
    return shared(actors=2, splits=2, blocks=2)


@pytest.fixture
def company(arrays):
    return Company(PolicyRequests(arrays, 0, 0, 1))


def test_on_cores_of_their_own_half_of_the_splits_are_worth_a_short_wait(company):
    assert company.size() == 2 and company.patience_s < 0.001
    company.give_up(1)
    assert company.size() == 2  # the wait is over; who steps meanwhile comes the next time
    company.shares_core = True
    assert company.size() == 4


def test_on_one_core_all_who_can_come_are_waited_for(arrays, company):
    company.shares_core = True
    assert company.size() == 4 and company.patience_s > 0.001
    arrays["ready_sequence"][1, 1] = [1, 2]  # it has no block to go on in
    assert company.size() == 3
    arrays["ready_sequence"][:] = [1, 2]
    assert company.size() == 1


def test_those_who_did_not_come_are_not_waited_for_again_for_a_while(arrays, company, monkeypatch):
    company.shares_core = True
    SplitRequests(arrays, 0, 0).ask(0, 0)
    monkeypatch.setattr(policy_worker, "GIVEN_UP_FOR_S", 0.2)
    company.give_up(1)
    assert company.size() == 1
    arrays["ready_sequence"][0, 1] = [1, 2]
    assert company.size() == 1
    time.sleep(0.25)
    assert company.size() == 3


def test_one_worker_of_several_waits_for_its_own_actors_only(arrays):
    company = Company(PolicyRequests(arrays, 0, 1, 2))
    company.shares_core = True
    assert company.size() == 2
