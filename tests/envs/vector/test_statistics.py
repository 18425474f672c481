"""What environments measure, put together by the rule that each name carries."""

import math
from typing import Any

import pytest

from appo.envs.vector.statistics import put_together


def test_put_together_by_every_rule():
    told: list[dict[str, tuple[Any, str]]] = [
        {
            "a": (1.0, "mean"),
            "b": (1, "sum"),
            "c": (5, "min"),
            "d": (5, "max"),
            "e": (1, "last"),
            "f": ([1, 2], "histogram"),
        },
        {
            "a": (3.0, "mean"),
            "b": (2, "sum"),
            "c": (7, "min"),
            "d": (7, "max"),
            "e": (2, "last"),
            "f": ([6], "histogram"),
        },
        {"a": (math.nan, "mean"), "g": (math.nan, "sum")},
    ]
    found = put_together(told)
    assert {name: each.value for name, each in found.items() if name != "g"} == {
        "a": 2.0, "b": 3.0, "c": 5.0, "d": 7.0, "e": 2.0, "f": 3.0
    }  # fmt: skip
    assert found["f"].values.tolist() == [1, 2, 6] and found["a"].numbers == 2
    assert math.isnan(found["g"].value) and found["g"].numbers == 0


@pytest.mark.parametrize(
    ("told", "why"),
    [([{"a": (1, "median")}], "can be mean"), ([{"a": (1, "sum")}, {"a": (1, "max")}], "by 'max' and by 'sum'")],
)
def test_rules_that_are_unknown_or_differ_are_refused(told, why):
    with pytest.raises(ValueError, match=why):
        put_together(told)
