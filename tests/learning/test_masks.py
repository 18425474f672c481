"""Masks, discounts and deltas of every way an episode can end."""

import pytest
import torch

from appo.algorithms.learning.masks import trajectory_structure


def one_column(rows, **flags):
    """Structure of a single trajectory; flags are lists of the rows where they are set."""
    arrays = {
        "is_first": torch.zeros(rows + 1, 1, dtype=torch.uint8),
        "is_last": torch.zeros(rows + 1, 1, dtype=torch.uint8),
        "active": torch.ones(rows + 1, 1, dtype=torch.uint8),
        "own": torch.ones(rows + 1, 1, dtype=torch.bool),
        "terminated": torch.zeros(rows, 1, dtype=torch.uint8),
    }
    for name in ("is_first", "is_last", "terminated"):
        arrays[name][flags.get(name, [])] = 1
    for name, key in (("active", "inactive"), ("own", "foreign")):
        arrays[name][flags.get(key, [])] = 0
    masks = trajectory_structure(**arrays, gamma=0.5)
    return [part.squeeze(1).tolist() for part in masks]


def test_inside_an_episode_everything_flows():
    valid, discounts, has_delta, resets = one_column(3)
    assert valid == [True] * 3
    assert discounts == [0.5] * 3
    assert has_delta == [1.0] * 3
    assert resets == [0] * 4


def test_a_terminated_row_is_a_decision_that_nothing_follows():
    valid, discounts, has_delta, resets = one_column(4, terminated=[1], is_first=[2])
    assert valid == [True] * 4
    assert discounts == [0.5, 0.0, 0.5, 0.5]
    assert has_delta == [1.0] * 4
    assert resets == [0, 0, 1, 0, 0]


def test_after_truncation_the_final_row_only_lends_its_value():
    valid, discounts, has_delta, _ = one_column(4, is_last=[2], is_first=[3])
    assert valid == [True, True, False, True]
    assert discounts == [0.5, 0.5, 0.0, 0.5]
    assert has_delta == [1.0, 1.0, 0.0, 1.0]


def test_a_final_row_after_a_terminated_one_is_masked_too():
    valid, discounts, has_delta, _ = one_column(4, terminated=[1], is_last=[2], is_first=[3])
    assert valid == [True, True, False, True]
    assert discounts == [0.5, 0.0, 0.0, 0.5]
    assert has_delta == [1.0, 1.0, 0.0, 1.0]


def test_a_final_observation_in_row_0_masks_nothing_but_itself():
    valid, discounts, has_delta, _ = one_column(3, is_last=[0], is_first=[1])
    assert (valid, discounts, has_delta) == ([False, True, True], [0.0, 0.5, 0.5], [0.0, 1.0, 1.0])


def test_a_final_observation_in_the_last_row_leaves_every_decision_intact():
    valid, discounts, has_delta, _ = one_column(3, is_last=[3])
    assert (valid, discounts, has_delta) == ([True] * 3, [0.5] * 3, [1.0] * 3)


def test_an_inactive_row_is_no_decision_but_lets_value_through():
    valid, discounts, has_delta, _ = one_column(3, inactive=[1])
    assert valid == [True, False, True]
    assert discounts == [0.5] * 3
    assert has_delta == [1.0] * 3


def test_an_episode_that_broke_off_counts_as_final_where_it_broke():
    valid, discounts, has_delta, _ = one_column(4, is_first=[2])
    assert valid == [True, False, True, True]
    assert discounts == [0.5, 0.0, 0.5, 0.5]
    assert has_delta == [1.0, 0.0, 1.0, 1.0]


def test_another_policys_rows_are_masked_and_nothing_crosses_to_them():
    valid, discounts, _, _ = one_column(5, terminated=[1], is_first=[2], foreign=[2, 3, 4])
    assert valid == [True, True, False, False, False]
    assert discounts[1] == 0.0


@pytest.mark.parametrize("name", ["is_first", "is_last", "active", "own"])
def test_a_flag_without_the_last_row_is_refused(name):
    flags = dict.fromkeys(("is_first", "is_last", "active", "own"), torch.zeros(5, 2, dtype=torch.uint8))
    flags[name] = torch.zeros(4, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=rf"{name} is \(4, 2\); expected \(5, 2\)"):
        trajectory_structure(**flags, terminated=torch.zeros(4, 2), gamma=0.9)
