"""Comparison in pairs: known differences are found, and what cannot be compared is refused."""

import contextlib
import random
import re
import time

import pytest

from appo.envs.api import EnvContext
from benchmarks.vector_envs import Way, environment_of
from benchmarks.vector_pairs import Shared, compare, interval, main


def way_of(name, seconds_a_step):
    """Steps that take so long."""

    @contextlib.contextmanager
    def opened():
        def run(seconds):
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                time.sleep(seconds_a_step)
                steps += 1
            return steps, steps * seconds_a_step

        yield run

    return Way(name, 0, 1, opened)


def test_the_time_of_the_first_by_that_of_each_other():
    first, second = compare([way_of("a", 0.002), way_of("b", 0.001), way_of("c", 0.002)], 0.01, 8)
    assert (first.way, first.other, second.other) == ("a", "b", "c")
    assert first.median == pytest.approx(2.0) and second.median == pytest.approx(1.0)
    assert first.low <= first.median <= first.high


@pytest.mark.parametrize("number", [6, 20, 100])
def test_intervals_hold_the_median_as_often_as_they_say(number):
    draw = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = interval([draw.expovariate(1.0) for _ in range(number)])
        hits += low <= 0.6931 <= high
    assert 0.93 < hits / 2000 < 0.99


def test_environments_are_compared_with_those_of_gymnasium(capsys):
    words = ["--env=CartPole-v1", "--ways=SyncVectorEnv,serial", "--seconds=0.01", "--turns=6", "--num_envs=2"]
    assert main(words) == 0
    told = capsys.readouterr().out
    begins = "CartPole-v1, 2 environments: time of SyncVectorEnv by that of serial: "
    found = re.fullmatch(re.escape(begins) + r"(\S+) \((\S+) .. (\S+)\) in 6 turns\n", told)
    assert found, told
    assert float(found[2]) <= float(found[1]) <= float(found[3]) and 0.1 < float(found[1]) < 10.0


def test_ways_share_environments_until_the_end():
    env, options = environment_of("CartPole-v1", [])
    with Shared(env.family) as shared:
        contexts = [EnvContext(env_id=number, seed=0, env_name=env.name) for number in (0, 1, 0)]
        first, second, again = (shared.family.make(env.name, options, context) for context in contexts)
        assert first is again and first is not second
        closed = []
        first.unwrapped.close = lambda: closed.append(first)
        first.close()
        assert not closed
    assert closed == [first]


def test_a_way_alone_is_refused(capsys):
    assert main(["--env=CartPole-v1", "--ways=serial"]) == 2
    assert "ways=serial are fewer than two of 8 environments" in capsys.readouterr().err
