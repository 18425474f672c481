"""What a checkpoint keeps of the driver: what is written is accepted, whatever is missing or garbled is named."""

import copy
import math

import pytest

from appo.algorithms.run_state import MOST_COUNTED, why_unusable
from tests.reporting.reporting_cases import episode, small_statistics


def written():
    statistics = small_statistics()
    statistics.arrays["env_frames"][:, 0] = [10, 20]
    for value in (1.0, 2.0):
        statistics.add(episode(value=value, kills=value))
    return statistics.run_state(0)


def test_what_statistics_write_is_usable_also_with_more_beside_it():
    assert why_unusable(written()) == why_unusable(small_statistics().run_state(0)) == ""
    assert why_unusable(written() | {"serial": {"actions": [1]}}) == ""


@pytest.mark.parametrize(
    "path", [(name,) for name in written()] + [("episodes", name) for name in written()["episodes"]]
)
def test_a_field_that_is_missing_or_garbled_is_named(path):
    *above, name = path
    for garbled in (..., None, "12", -1, {1: 2}, [None], [[1.0]], 10**400, [10**9999]):
        state = copy.deepcopy(written())
        place = state["episodes"] if above else state
        del place[name]
        if garbled is not ...:
            place[name] = garbled
        elif name == "reports_true_reward":  # there were checkpoints before it
            assert not why_unusable(state)
            continue
        assert name in why_unusable(state) and len(why_unusable(state)) < 150


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("env_frames", MOST_COUNTED + 1),
        ("env_frames", math.nan),
        ("env_frames", True),
        ("train_seconds", math.nan),
        ("train_seconds", math.inf),
        ("train_seconds", 1e300),
    ],
)
def test_counters_that_no_run_reaches_are_refused(name, bad):
    assert why_unusable(written() | {name: bad}).startswith(f"run_state['{name}'] is ")


@pytest.mark.parametrize("state", [None, [], 7, "x"])
def test_what_is_no_run_state_at_all_is_refused(state):
    assert why_unusable(state) == f"run_state is {state!r}"
