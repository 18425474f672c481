"""What a run takes from the machine unless it is told otherwise."""

import os

import pytest

from appo.algorithms.sampling.config import available_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that can be told who runs where")
def test_cores_that_this_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
