"""What environments measure, put together by the rule that each name carries."""

import math
from typing import Any

import pytest

from appo.envs.vector.statistics import checked_statistics, put_together


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


def test_one_name_has_one_rule():
    with pytest.raises(ValueError, match="by 'max' and by 'sum'"):
        put_together([{"a": (1, "sum")}, {"a": (1, "max")}])


@pytest.mark.parametrize(
    ("told", "error", "why"),
    [
        ({"a": (1, "median")}, ValueError, "'a' is put together by 'median'; it can be mean"),
        ({"a": ("mean", 1)}, ValueError, "'a' is put together by 1; it can be mean"),
        ({"a": ("histogram", [1, 2])}, ValueError, r"'a' is put together by \[1, 2\]; it can be mean"),
        ({"a": ("high", "mean")}, ValueError, "'a': 'high', which is no number"),
        ({"a": ([[1], [1, 2]], "mean")}, ValueError, "which is no number and no list of them"),
        (
            {"count": 3},
            TypeError,
            r"gave 'count': 3; expected \(value, how\), where how is one of mean, ",
        ),
        ({"count": (3,)}, TypeError, "expected .value, how"),
        (None, TypeError, "pop_env_stats gave None; expected a dict of name -> .value, how"),
    ],
)
def test_what_an_environment_told_in_another_form_is_refused(told, error, why):
    with pytest.raises(error, match=why):
        checked_statistics(told)
