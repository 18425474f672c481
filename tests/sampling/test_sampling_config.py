"""What a run takes from the machine unless it is told otherwise."""

import pytest

from appo.algorithms.sampling.config import SamplingConfig
from appo.utils.options import ConfigError


def test_more_past_selves_than_can_play_at_one_time_are_refused():
    SamplingConfig(num_policies=4, self_play=True, self_play_pool_size=64).check_combinations()
    SamplingConfig(num_policies=5, self_play_pool_size=64).check_combinations()
    with pytest.raises(ConfigError, match="at most 256 past selves can play at one time; nearest: 51"):
        SamplingConfig(num_policies=5, self_play=True, self_play_pool_size=64).check_combinations()


def test_anchors_are_named_once_and_only_for_self_play():
    assert SamplingConfig(self_play=True, self_play_anchors="random, hard,,random").anchors == ("random", "hard")
    assert SamplingConfig(self_play_anchors="random").anchors == ()
