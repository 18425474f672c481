"""The grid beside which --autotune is judged."""

import pytest

from appo.algorithms.run.size_search import Limits, Sizes, Tried
from benchmarks.speed.autotune_grid import grid

FIRST = Sizes(2, 16, 2)
CHOSEN = Sizes(1, 32, 1, "subproc")


@pytest.mark.parametrize(
    ("rates", "backends"),
    [
        ({FIRST: 1_764.0, CHOSEN: 12_900.0}, {"serial", "subproc"}),  # with processes, its environments are not slow
        ({FIRST: 13_000.0}, {"serial"}),
    ],
)
def test_processes_are_in_the_grid_where_the_search_had_reason_to_try_them(rates, backends):
    points = grid(FIRST, Limits(2, 128), [Tried(*each) for each in rates.items()])
    assert {sizes.env_backend for sizes in points} == backends
    assert {*rates} <= {*points}
    assert max(sizes.num_envs for sizes in points) == 128
    assert all(sizes.num_envs <= 64 for sizes in points if sizes.env_backend == "subproc")
