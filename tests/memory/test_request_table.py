"""Requests for actions: none is lost, none is answered twice, whichever process dies."""

import numpy as np
import pytest

from appo.algorithms.memory import request_table
from appo.algorithms.memory.request_table import JointRequests, PolicyRequests, SplitRequests
from tests.memory.memory_cases import shared


def cells(slabs):
    return list(zip(slabs.actor.tolist(), slabs.split.tolist(), strict=True))


def test_a_request_is_open_until_it_is_answered():
    arrays = shared()
    split, policy = SplitRequests(arrays, 1, 2), PolicyRequests(arrays, 0, 0, 1)
    assert policy.count() == len(policy.open()) == 0
    split.ask(block=1, step=3)
    assert not split.is_answered()
    assert policy.count() == 1
    [[actor], [index], [block], [step], [asked]] = policy.open()
    assert (actor, index, block, step, asked) == (1, 2, 1, 3, 1)
    policy.answer(policy.open())
    assert split.is_answered()
    assert policy.count() == len(policy.open()) == 0


def test_what_was_asked_after_the_look_is_not_counted_as_answered():
    arrays = shared()
    split, policy = SplitRequests(arrays, 0, 0), PolicyRequests(arrays, 0, 0, 1)
    split.ask(0, 0)
    seen = policy.open()
    split.ask(1, 2)  # as the successor of an actor that died would
    policy.answer(seen)
    assert not split.is_answered()
    [[_], [_], [block], [step], [asked]] = policy.open()
    assert (block, step, asked) == (1, 2, 2)


def test_an_answer_needs_every_policy():
    arrays = shared(policies=3)
    split = SplitRequests(arrays, 0, 1)
    policies = [PolicyRequests(arrays, policy, 0, 1) for policy in range(3)]
    split.ask(0, 0)
    for policy in policies:
        assert not split.is_answered()
        policy.answer(policy.open())
    assert split.is_answered()


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_actors_are_divided_among_the_workers_of_a_policy(workers):
    arrays = shared(actors=5, splits=2)
    requests = [SplitRequests(arrays, actor, split) for actor in range(5) for split in range(2)]
    of_worker = [PolicyRequests(arrays, 0, index, workers) for index in range(workers)]
    for split in requests:
        split.ask(0, 0)
    found = [cell for worker in of_worker for cell in cells(worker.open())]
    assert sorted(found) == [(actor, split) for actor in range(5) for split in range(2)]
    assert sum(worker.num_splits for worker in of_worker) == 10
    of_worker[-1].answer(of_worker[-1].open())
    last = cells(PolicyRequests(arrays, 0, workers - 1, workers).open())
    assert last == []
    assert sum(split.is_answered() for split in requests) == of_worker[-1].num_splits


def answer_twice_or_never(arrays, policies, workers, rounds, rng):
    """Random order of asking and answering; how often each (policy, cell, number) was answered."""
    actors, splits = arrays.sizes.actors, arrays.sizes.splits
    asking = {(a, s): SplitRequests(arrays, a, s) for a in range(actors) for s in range(splits)}
    asked = dict.fromkeys(asking, 0)
    answers: dict[tuple[int, tuple[int, int], int], int] = {}
    for _ in range(rounds):
        cell = list(asking)[int(rng.integers(len(asking)))]
        if not asked[cell] or asking[cell].is_answered():
            asking[cell].ask(int(rng.integers(2)), int(rng.integers(4)))
            asked[cell] += 1
        policy, index = int(rng.integers(policies)), int(rng.integers(workers))
        worker = PolicyRequests(arrays, policy, index, workers)  # a new one each time: nothing is kept in it
        slabs = worker.open()
        for place, number in zip(cells(slabs), slabs.asked.tolist(), strict=True):
            answers[policy, place, number] = answers.get((policy, place, number), 0) + 1
        worker.answer(slabs)
    for policy in range(policies):
        for index in range(workers):
            worker = PolicyRequests(arrays, policy, index, workers)
            slabs = worker.open()
            for place, number in zip(cells(slabs), slabs.asked.tolist(), strict=True):
                answers[policy, place, number] = answers.get((policy, place, number), 0) + 1
            worker.answer(slabs)
    return asked, answers, asking


@pytest.mark.parametrize(("policies", "workers"), [(1, 1), (2, 2), (3, 2)])
def test_no_request_is_lost_and_none_is_answered_twice(policies, workers):
    arrays = shared(actors=3, splits=2, policies=policies)
    rng = np.random.default_rng(policies)
    asked, answers, asking = answer_twice_or_never(arrays, policies, workers, 2000, rng)
    assert sum(asked.values()) > 200
    everything = {(p, cell, n) for p in range(policies) for cell, count in asked.items() for n in range(1, count + 1)}
    assert answers == dict.fromkeys(everything, 1)
    assert all(split.is_answered() for split in asking.values())


def test_a_new_policy_worker_finds_what_its_predecessor_left_open():
    arrays = shared()
    split = SplitRequests(arrays, 1, 1)
    split.ask(1, 2)
    PolicyRequests(arrays, 0, 0, 1).open()  # seen, and then it died
    successor = PolicyRequests(arrays, 0, 0, 1)
    assert cells(successor.open()) == [(1, 1)]
    successor.answer(successor.open())
    assert split.is_answered()


@pytest.mark.parametrize("num_answered", [0, 1, 2])
def test_a_new_actor_withdraws_what_its_predecessor_asked_and_takes_no_old_answer_for_its_own(num_answered):
    arrays = shared(policies=2)
    policies = [PolicyRequests(arrays, policy, 0, 1) for policy in range(2)]
    SplitRequests(arrays, 0, 0).ask(0, 3)
    late = [policy.open() for policy in policies]  # workers that still compute for the dead actor
    for policy, slabs in zip(policies[:num_answered], late, strict=False):
        policy.answer(slabs)
    successor = SplitRequests(arrays, 0, 0)
    successor.ask(1, 0)
    for policy, slabs in zip(policies[num_answered:], late[num_answered:], strict=True):
        policy.answer(slabs)
    assert not successor.is_answered()
    for policy in policies:
        [[_], [_], [block], [step], [_]] = policy.open()
        assert (block, step) == (1, 0)
        policy.answer(policy.open())
    assert successor.is_answered()


@pytest.mark.parametrize("earlier", [0, 3])
@pytest.mark.parametrize("predecessor", [None, [0], [1], []], ids=["all", "first", "second", "unasked half written"])
@pytest.mark.parametrize("successor", [None, [0], [1]], ids=["to all", "to first", "to second"])
def test_whom_a_dead_actor_was_about_to_leave_out_is_asked_by_its_successor(
    monkeypatch, earlier, predecessor, successor
):
    arrays = shared(policies=2)
    policies = [PolicyRequests(arrays, policy, 0, 1) for policy in range(2)]
    dead = SplitRequests(arrays, 0, 0)
    for _ in range(earlier):
        dead.ask(0, 0)
        for policy in policies:
            policy.answer(policy.open())

    def die(place):
        raise RuntimeError(place)

    monkeypatch.setattr(request_table, "failpoint", die)
    with pytest.raises(RuntimeError, match="actor-ask"):
        dead.ask(0, 1, None if predecessor is None else np.array(predecessor, np.int32))
    monkeypatch.undo()
    assert [policy.count() for policy in policies] == [0, 0]
    split = SplitRequests(arrays, 0, 0)
    split.ask(1, 0, None if successor is None else np.array(successor, np.int32))
    asked = range(2) if successor is None else successor
    assert [policy.count() for policy in policies] == [int(number in asked) for number in range(2)]
    for number in asked:
        assert not split.is_answered()
        policies[number].answer(policies[number].open())
    assert split.is_answered()


def test_a_split_is_without_block_when_a_learner_still_needs_all_of_them():
    arrays = shared(actors=2, splits=2, blocks=2, policies=2)
    policy = PolicyRequests(arrays, 0, 0, 1)
    arrays["asked"][:] = 1  # all policies
    ready, taken = arrays["ready_sequence"], arrays["taken_sequence"]
    ready[1, 0] = [3, 2]
    taken[:, 1, 0] = [1, 2]  # the other block is free
    ready[0, 1] = [5, 4]
    taken[:, 0, 1] = [5, 4]
    assert policy.count_without_block() == 0
    taken[1, 0, 1] = [3, 2]  # the second learner takes its time
    assert policy.count_without_block() == 1
    assert PolicyRequests(arrays, 0, 1, 2).count_without_block() == 0  # which serves another actor


def test_a_request_to_some_policies_is_open_for_them_alone_and_waits_for_no_other():
    arrays = shared(policies=3)
    split = SplitRequests(arrays, 1, 1)
    workers = [PolicyRequests(arrays, policy, 0, 1) for policy in range(3)]
    split.ask(0, 0)  # to all
    assert [worker.count() for worker in workers] == [1, 1, 1]
    for worker in workers:
        worker.answer(worker.open())
    for asked in ([1], [0, 2], [1]):
        split.ask(1, 2, np.array(asked, np.int32))
        assert [worker.count() for worker in workers] == [int(policy in asked) for policy in range(3)]
        assert [worker.num_splits for worker in workers] == [int(policy in asked) for policy in range(3)]
        for policy in asked:
            assert not split.is_answered()
            workers[policy].answer(workers[policy].open())
        assert split.is_answered()


def test_requests_for_several_policies_are_counted_together_by_splits():
    arrays = shared(policies=2, frozen=3)
    frozen, first, second = JointRequests(arrays, range(2, 5)), SplitRequests(arrays, 0, 0), SplitRequests(arrays, 1, 2)
    assert (frozen.count(), frozen.num_splits, frozen.asked_policies()) == (0, 0, [])
    first.ask(0, 0, np.array([0, 2, 4]))
    second.ask(0, 0, np.array([1, 4]))
    assert (frozen.count(), frozen.num_splits, frozen.asked_policies()) == (2, 2, [0, 2])
    for policy in (2, 4):
        answering = PolicyRequests(arrays, policy, 0, 1)
        answering.answer(answering.open())
    assert (frozen.count(), frozen.num_splits, frozen.asked_policies()) == (0, 2, [])
    second.ask(0, 1, np.array([0]))
    assert (frozen.count(), frozen.num_splits) == (0, 1), "its newest request is for none of them"
    arrays["ready_sequence"][0, 0] = 5
    assert frozen.count_without_block() == 1


def test_a_worker_of_several_policies_looks_at_its_own_policies_and_actors_alone():
    arrays = shared(policies=4)
    first, second = SplitRequests(arrays, 0, 0), SplitRequests(arrays, 1, 2)
    low, high = JointRequests(arrays, range(2), 1, 2), JointRequests(arrays, range(2, 4), 1, 2)
    first.ask(0, 0)  # of an actor that another worker serves
    assert (low.count(), high.count()) == (0, 0)
    second.ask(0, 0, np.array([1, 2]))
    assert (low.count(), low.num_splits, low.asked_policies()) == (1, 1, [1])
    assert (high.count(), high.num_splits, high.asked_policies()) == (1, 1, [0])
    answering = PolicyRequests(arrays, 1, 1, 2)
    answering.answer(answering.open())
    assert (low.count(), high.count()) == (0, 1)
    assert not second.is_answered()
