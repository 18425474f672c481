"""Action spaces: what each becomes, values that survive the way there and back, and what is refused."""

import re

import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.action_layout import ActionLayout, check_mask, mask_width, random_actions
from appo.envs.api import ActionLeaf, UnsupportedSpaceError
from appo.envs.observation_layout import ObservationLayout

ROWS = 3

ACTION_SPACES = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete(np.array([[2, 5], [3, 4]]), start=np.array([[1, 1], [0, 2]])),
    spaces.MultiBinary(3),
    spaces.Box(-2.0, 3.0, (2,), np.float32),
    spaces.Box(-2.0, 3.0, (2, 2), np.float64),
    spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    spaces.Box(np.array([-1.0, -np.inf, 0.0], np.float32), np.array([1.0, np.inf, np.inf], np.float32)),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2]))),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Box(0, 5, (1,)), spaces.Discrete(4)))}),
]


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_every_random_action_lies_in_its_space(space):
    layout = ActionLayout(space)
    actions = random_actions(layout.leaves, np.random.default_rng(1), 200)
    assert actions.shape == (200, layout.width) and actions.dtype == np.float32
    converted = list(layout.rows(actions))
    assert len(converted) == 200
    for action in converted:
        assert space.contains(action), action


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_a_batch_of_actions_lies_in_the_batched_space(space):
    from gymnasium.vector.utils import batch_space

    layout = ActionLayout(space)
    actions = random_actions(layout.leaves, np.random.default_rng(1), 4)
    assert batch_space(space, 4).contains(layout.batched(actions))


def test_leaves_of_a_mixed_action_lie_side_by_side():
    layout = ActionLayout(spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-1, 3, (2,)), spaces.MultiBinary(2))))
    assert layout.leaves == (
        ActionLeaf("discrete", 3),
        ActionLeaf("continuous", 2, (-1.0, -1.0), (3.0, 3.0)),
        ActionLeaf("discrete", 2),
        ActionLeaf("discrete", 2),
    )
    assert layout.width == 5 and mask_width(layout.leaves) == 7
    (action,) = layout.rows(np.array([[2, -1.0, 0.5, 1, 0]], np.float32))
    assert action[0] == 3 and action[1].tolist() == [-1.0, 2.0] and action[2].tolist() == [1, 0]


def test_finite_bounds_are_stretched_to_and_infinite_ones_pass():
    infinite = np.inf
    low = np.array([-2.0, -infinite, 0.0, -1e30], np.float32)
    space = spaces.Box(low, np.array([6.0, infinite, infinite, 1e30], np.float32))
    layout = ActionLayout(space)
    assert layout.leaves[0].low == (-2.0, -infinite, 0.0, -infinite)
    actions = np.array([[-1, -5, -5, -5], [0, 5, 5, 5], [9, 0.5, 0.5, 0.5]], np.float32)
    assert [row.tolist() for row in layout.rows(actions)] == [[-2, -5, 0, -5], [2, 5, 5, 5], [6, 0.5, 0.5, 0.5]]


def test_an_entry_with_a_single_value_has_it_whatever_the_policy_says_and_survives_the_way_there_and_back():
    space = spaces.Box(np.array([0.0, -1.0, 3.0], np.float32), np.array([0.0, 1.0, 3.0], np.float32))
    layout, out = ActionLayout(space), np.full((2, 3), np.nan, np.float32)
    given = np.array([[0.0, 0.5, 3.0], [0.0, -1.0, 3.0]], np.float32)
    layout.store(given, out)
    assert np.isfinite(out).all() and layout.batched(out).tolist() == given.tolist()
    layout.store([[7.0, 0.5, 7.0], [-7.0, 7.0, -7.0]], out)
    assert layout.batched(out).tolist() == [[0.0, 0.5, 3.0], [0.0, 1.0, 3.0]]
    (chosen,) = layout.rows(np.array([[-9.0, 0.25, 9.0]], np.float32))
    assert chosen.tolist() == [0.0, 0.25, 3.0]


def test_actions_of_a_space_in_policy_units_are_clipped_copies():
    layout, actions = ActionLayout(spaces.Box(-1.0, 1.0, (2,))), np.array([[-7.0, 0.25], [1.5, -1.0]], np.float32)
    (first, second) = layout.rows(actions)
    assert first.tolist() == [-1.0, 0.25] and second.tolist() == [1.0, -1.0]
    first[:] = 9.0
    assert actions[0].tolist() == [-7.0, 0.25]


def test_rounding_does_not_lead_out_of_the_bounds():
    rng = np.random.default_rng(0)
    low = rng.uniform(-5, 0, 500)
    high = low + rng.uniform(0.1, 9, 500)
    space = spaces.Box(low, high, dtype=np.float64)
    assert ((high - low) / 2 + (high + low) / 2 > high).any(), "otherwise there was nothing to round"
    extremes = np.stack([np.ones(500), -np.ones(500)]).astype(np.float32)
    assert all(space.contains(action) for action in ActionLayout(space).rows(extremes))


@pytest.mark.parametrize(
    "space, message",
    [
        (spaces.Text(4), "Text.*TransformAction"),
        (spaces.Box(0, 3, (2,), np.int32), "MultiDiscrete"),
        (spaces.Tuple(()), "Discrete, MultiDiscrete"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2)))), "Sequence"),
    ],
)
def test_other_action_spaces_are_refused_with_a_remedy(space, message):
    with pytest.raises(UnsupportedSpaceError, match=message):
        ActionLayout(space)


def test_random_actions_keep_to_the_mask_and_reach_every_allowed_choice():
    leaves = ActionLayout(spaces.MultiDiscrete([3, 2])).leaves
    mask = np.tile(np.array([1, 0, 1, 0, 0], np.uint8), (400, 1))
    first, second = random_actions(leaves, np.random.default_rng(0), 400, mask).T
    assert set(first) == {0, 2}
    assert set(second) == {0, 1}, "a leaf with every choice forbidden counts as all allowed"


@pytest.mark.parametrize(
    ("space", "actions", "reason"),
    [
        (spaces.Discrete(3), [0, 1, 3], "are not all from 0 to 2"),
        (spaces.Discrete(3, start=1), np.array([False, True, True]), "are not all from 1 to 3"),
        (spaces.Discrete(300, start=-5), np.array([1, 2, 255], np.uint8), ""),
        (spaces.Discrete(3), [0.0, 1.0, 1.5], "are not all whole numbers"),
        (spaces.Discrete(3), [0.0, np.nan, 1.0], "are not all whole numbers"),
        (spaces.Discrete(3), [0.0, 3.0, 1.0], "are not all from 0 to 2"),
        (spaces.Discrete(3), [[0], [1], [2]], "have shape (3, 1)"),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 3], [0, 0]], "are not all of MultiDiscrete"),
        (spaces.MultiBinary(2), [[0, 1], [1, 1], [2, 0]], "are not all of MultiBinary"),
        (spaces.Box(-1, 1, (1,), np.float32), [[0.0], [np.nan], [1.0]], "hold NaN"),
        (spaces.Box(-1, 1, (1,), np.float32), [["a"], ["b"], ["c"]], "expected numbers of shape (3, 1)"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), [[0, 1, 0], [0, 0, 0]], "are a list; expected a tuple of 2 batches"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), ([0, 1, 0],), "expected a tuple of 2 batches"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [0, 1, 0]}, "expected a dict with a"),
    ],
)
def test_what_is_no_batch_of_actions_is_not_stored(space, actions, reason):
    layout = ActionLayout(space)
    out = np.zeros((3, layout.width), np.float32)
    if not reason:
        layout.store(actions, out)
        assert out.ravel().tolist() == [6.0, 7.0, 260.0]
        return
    with pytest.raises(ValueError, match=re.escape(reason)):
        layout.store(actions, out)


def test_a_mask_that_does_not_fit_the_actions_is_refused():
    leaves = ObservationLayout(spaces.Dict({"action_mask": spaces.MultiBinary(3)})).leaves
    check_mask(leaves, ActionLayout(spaces.Discrete(3)).leaves)
    with pytest.raises(UnsupportedSpaceError, match="has 3 entries and the action space 5"):
        check_mask(leaves, ActionLayout(spaces.MultiDiscrete([2, 3])).leaves)
