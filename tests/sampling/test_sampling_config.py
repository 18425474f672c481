"""What a run takes from the machine unless it is told otherwise."""

import os

import pytest

from appo.algorithms.sampling.config import SamplingConfig, available_cores
from appo.utils.options import ConfigError


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that can be told who runs where")
def test_cores_that_this_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_more_past_selves_than_can_play_at_one_time_are_refused():
    SamplingConfig(num_policies=4, self_play=True, self_play_pool_size=64).check_combinations()
    SamplingConfig(num_policies=5, self_play_pool_size=64).check_combinations()
    with pytest.raises(ConfigError, match="at most 256 past selves can play at one time; nearest: 51"):
        SamplingConfig(num_policies=5, self_play=True, self_play_pool_size=64).check_combinations()


def test_anchors_are_named_once_and_only_for_self_play():
    assert SamplingConfig(self_play=True, self_play_anchors="random, hard,,random").anchors == ("random", "hard")
    assert SamplingConfig(self_play_anchors="random").anchors == ()
