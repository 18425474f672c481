"""The tree of times: what is booked in several processes is added up, and parts lie within their stages."""

import multiprocessing
import time

import numpy as np
import pytest

from appo.algorithms.memory.counters import PART_OF, Timer, WorkerCounters
from appo.algorithms.reporting.timing import OwnTimes, StageTimes, TimingNode, in_lines, in_one_line
from tests.memory.memory_cases import shared

# Processes of `shared`: two actors and more.
KINDS = {"ACTOR": slice(0, 4), "LEARNER": slice(6, 7)}
NAP_S, NAPS = 0.05, 6


@pytest.fixture
def arrays():
    return shared(actors=4, processes=7)


def book(arrays, process, timer, seconds, times=1):
    arrays["timers"][process, timer] += seconds
    arrays["laps"][process, timer] += times


def found(tree, *path):
    """The node at a path of names."""
    nodes = tree
    for name in path:
        node = next(node for node in nodes if node.name == name)
        nodes = node.parts
    return node


def sleep_and_book(arrays, process, slept):
    counters = WorkerCounters(arrays, process)
    for _ in range(NAPS):
        began = time.perf_counter()
        time.sleep(NAP_S)
        slept[process] += time.perf_counter() - began
        counters.part(Timer.ACTOR_SIMULATE)
        time.sleep(NAP_S / 2)
        counters.lap(Timer.ACTOR_ENV_STEP)
        counters.lap(Timer.ACTOR_WAIT_POLICY)


def test_known_sleeps_in_four_processes_are_counted_and_added_up(arrays):
    times = StageTimes(arrays, KINDS)
    fork = multiprocessing.get_context("fork")
    slept = fork.Array("d", 4, lock=False)
    workers = [fork.Process(target=sleep_and_book, args=(arrays, process, slept)) for process in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    times.look()
    tree = times.tree()
    actors, step, simulate = (
        found(tree, *path) for path in (("actor",), ("actor", "env_step"), ("actor", "env_step", "simulate"))
    )
    assert (actors.times, actors.parallel, step.parallel) == (4, True, False)
    assert step.times == simulate.times == found(tree, "actor", "wait_policy").times == 4 * NAPS
    assert simulate.total_s >= 4 * NAPS * NAP_S
    assert simulate.total_s == pytest.approx(sum(slept), rel=0.02), "sleeps of a busy machine are longer than asked for"
    assert step.total_s >= 4 * NAPS * NAP_S * 1.5
    assert step.self_s == pytest.approx(step.total_s - simulate.total_s)
    assert actors.total_s == pytest.approx(step.total_s + found(tree, "actor", "wait_policy").total_s)


def test_what_a_process_did_before_it_was_replaced_stays_counted(arrays):
    times = StageTimes(arrays, KINDS)
    book(arrays, 6, Timer.LEARNER_TRAIN, 5.0, 10)
    times.look()
    arrays["timers"][6], arrays["laps"][6] = 0.0, 0  # a successor
    book(arrays, 6, Timer.LEARNER_TRAIN, 6.0, 3)  # which has booked more seconds already
    times.look()
    times.look()
    train = found(times.tree(), "learner", "train")
    assert (train.total_s, train.times) == (11.0, 13)


def test_what_others_do_meanwhile_is_beside_the_stages(arrays):
    times = StageTimes(arrays, KINDS)
    book(arrays, 6, Timer.LEARNER_TRAIN, 4.0, 2)
    book(arrays, 6, Timer.LEARNER_BACKWARD, 3.0, 2)
    book(arrays, 6, Timer.LEARNER_COLLATE_AHEAD, 9.0, 2)
    book(arrays, 0, Timer.ACTOR_ENV_STEP, 2.0)
    book(arrays, 0, Timer.ACTOR_SIMULATE, 2.0)
    book(arrays, 0, Timer.ACTOR_PROCESSES_STEP, 8.0, 16)
    times.look()
    tree = times.tree()
    learner, simulate = found(tree, "learner"), found(tree, "actor", "env_step", "simulate")
    assert learner.total_s == 4.0 and found(tree, "learner", "train").self_s == 1.0
    assert found(tree, "learner", "collate_ahead").parallel
    assert simulate.self_s == 2.0 and found(simulate.parts, "processes_step") == TimingNode(
        "processes_step", 16, 8.0, True
    )
    shares = times.shares(times.seconds)
    assert (shares["stats/learner_train"], shares["stats/learner_backward"]) == (1.0, 0.75)
    assert (shares["stats/actor_env_step"], shares["stats/actor_processes_step"]) == (1.0, 4.0)
    lines = "\n".join(in_lines(tree))
    assert "4 x actor: 2.0 s" in lines and "1 x learner: 4.0 s" in lines
    assert [line.split()[0] for line in lines.splitlines()] == (
        ["4", "env_step", "simulate", "processes_step", "1", "train", "backward", "collate_ahead"]
    )
    assert sum("in parallel" in line for line in lines.splitlines()) == 2
    assert in_one_line(learner) == "1 x learner: train 100%"


def test_each_part_belongs_to_a_stage_of_the_same_kind_of_process():
    for part, whole in PART_OF.items():
        assert whole is None or whole.name.split("_")[0] == part.name.split("_")[0]


def test_a_tree_comes_back_from_json():
    tree = TimingNode("actor", 2, 3.5, True, (TimingNode("env_step", 7, 3.5, False),))
    assert TimingNode.from_json(tree.as_json()) == tree
    with pytest.raises(KeyError):
        TimingNode.from_json({"name": "actor"})


def test_a_process_books_its_own_stages():
    own = OwnTimes("driver")
    time.sleep(0.01)
    own.lap("poll")
    own.lap("sinks")
    own.lap("poll")
    node = own.node()
    assert [(part.name, part.times) for part in node.parts] == [("poll", 2), ("sinks", 1)]
    assert node.times == 1 and node.total_s >= 0.01
    assert np.isclose(node.total_s, sum(part.total_s for part in node.parts)) and not node.self_s
