"""Spaces: what each becomes, values that survive the way there and back, and what is refused."""

import re

import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.api import ActionLeaf, MisfitError, ObservationLeaf, UnsupportedSpaceError
from appo.envs.spaces import ActionLayout, ObservationLayout, check_mask, mask_width, random_actions

ROWS = 3


def box(shape, dtype=np.uint8):
    return spaces.Box(0, 1 if dtype == np.bool_ else 255, shape, dtype)


def stored(space, *observations):
    """The arrays after each observation was written into its row; they start out full of another value."""
    layout = ObservationLayout(space)
    arrays = {leaf.name: np.full((len(observations), *leaf.shape), 77, leaf.dtype) for leaf in layout.leaves}
    for row, observation in enumerate(observations):
        layout.write(layout.views(arrays), row, observation)
    return arrays


@pytest.mark.parametrize(
    "space, shape, dtype, kind, num_categories",
    [
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "float32", "vector", 0),
        (spaces.Box(-1, 1, (2, 3), np.float32), (2, 3), "float32", "vector", 0),
        (spaces.Box(-1, 1, (), np.float32), (1,), "float32", "vector", 0),
        (box((128,)), (128,), "uint8", "vector", 0),
        (box((4,), np.bool_), (4,), "uint8", "vector", 0),
        (box((4,), np.int16), (4,), "int16", "vector", 0),
        (box((4,), np.uint16), (4,), "int32", "vector", 0),
        (box((20, 30, 3)), (3, 20, 30), "uint8", "image", 0),
        (box((4, 20, 30)), (4, 20, 30), "uint8", "image", 0),
        (box((20, 30)), (1, 20, 30), "uint8", "image", 0),
        (box((4, 20, 30, 3)), (12, 20, 30), "uint8", "image", 0),
        (box((4, 3, 20, 30)), (12, 20, 30), "uint8", "image", 0),
        (spaces.Discrete(5, start=2), (1,), "int32", "categorical", 5),
        (spaces.MultiDiscrete([2, 7, 3]), (3,), "int32", "categorical", 7),
        (spaces.MultiBinary(4), (4,), "int8", "vector", 0),
    ],
)
def test_an_observation_space_becomes_one_leaf(space, shape, dtype, kind, num_categories):
    assert ObservationLayout(space).leaves == (ObservationLeaf("obs", shape, dtype, kind, num_categories),)


@pytest.mark.parametrize(
    "shape, to_channels_first",
    [
        ((5, 6, 3), lambda x: np.transpose(x, (2, 0, 1))),
        ((3, 5, 6), lambda x: x),
        ((5, 6), lambda x: x[None]),
        ((4, 5, 6, 3), lambda x: np.concatenate([np.transpose(frame, (2, 0, 1)) for frame in x])),
        ((4, 3, 5, 6), lambda x: np.concatenate(list(x))),
    ],
)
def test_images_are_stored_channels_first(shape, to_channels_first):
    images = [box(shape).sample() for _ in range(ROWS)]
    result = stored(box(shape), *images)["obs"]
    assert len(np.unique(result)) > 10
    for row, image in zip(result, images, strict=True):
        np.testing.assert_array_equal(row, to_channels_first(image))


def test_a_batch_of_observations_is_stored_like_its_rows_one_by_one():
    space = spaces.Dict({"image": box((5, 6, 3)), "kind": spaces.Discrete(3), "level": spaces.Box(0, 1, ())})
    rows = [space.sample() for _ in range(ROWS)]
    layout = ObservationLayout(space)
    arrays = {leaf.name: np.zeros((ROWS, *leaf.shape), leaf.dtype) for leaf in layout.leaves}
    layout.write(layout.views(arrays), slice(None), {key: np.stack([row[key] for row in rows]) for key in space})
    for name, expected in stored(space, *rows).items():
        np.testing.assert_array_equal(arrays[name], expected)


def test_nested_keys_become_paths_and_categories_count_from_zero():
    space = spaces.Dict(
        {
            "a": spaces.Dict({"b": spaces.Discrete(4, start=-1), "c": spaces.Box(-9, 9, (2,), np.float64)}),
            "d": spaces.MultiDiscrete([3, 3], start=[5, 6]),
        }
    )
    result = stored(space, {"a": {"b": 2, "c": np.array([1.5, -2.0])}, "d": np.array([7, 6])})
    as_lists = {name: array.tolist() for name, array in result.items()}
    assert as_lists == {"a/b": [[3]], "a/c": [[1.5, -2.0]], "d": [[2, 0]]}


def test_an_observation_called_action_mask_is_one_whatever_its_dtype():
    space = spaces.Dict({"observation": box((2,)), "action_mask": spaces.Box(0, 1, (3,), np.int8)})
    assert ObservationLayout(space).leaves[0] == ObservationLeaf("action_mask", (3,), "uint8", "mask")
    result = stored(space, {"observation": np.zeros(2, np.uint8), "action_mask": np.array([True, False, True])})
    assert result["action_mask"].tolist() == [[1, 0, 1]]


def test_a_mask_that_does_not_fit_the_actions_is_refused():
    leaves = ObservationLayout(spaces.Dict({"action_mask": spaces.MultiBinary(3)})).leaves
    check_mask(leaves, ActionLayout(spaces.Discrete(3)).leaves)
    with pytest.raises(UnsupportedSpaceError, match="has 3 entries and the action space 5"):
        check_mask(leaves, ActionLayout(spaces.MultiDiscrete([2, 3])).leaves)


@pytest.mark.parametrize(
    "space, message",
    [
        (spaces.Dict({"image": box((2,)), "mission": spaces.Text(9)}), "'mission' is Text.*FilterObservation"),
        (spaces.Text(9), "space is Text.*numbers"),
        (spaces.Tuple((box((2,)),)), "Tuple.*Dict"),
        (spaces.Sequence(box((2,))), "Sequence.*TransformObservation"),
        (spaces.Box(0, 1, (0,), np.float32), "no entries"),
        (spaces.Dict({}), "empty Dict"),
        (spaces.Dict({"a/b": box((2,)), "a": spaces.Dict({"b": box((2,))})}), "both named"),
        (spaces.Dict({"action_mask": spaces.Discrete(3)}), "MultiBinary"),
    ],
)
def test_other_observation_spaces_are_refused_with_a_remedy(space, message):
    with pytest.raises(UnsupportedSpaceError, match=message):
        ObservationLayout(space)


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


def test_single_numbers_of_any_type_are_stored_and_others_refused_whatever_came_before():
    space = spaces.Dict({"kind": spaces.Discrete(5, start=2), "level": spaces.Box(0, 1, ())})
    layout = ObservationLayout(space)
    arrays = {leaf.name: np.zeros((ROWS, *leaf.shape), leaf.dtype) for leaf in layout.leaves}
    views = layout.views(arrays)
    for kind, level in ((3, 0.25), (4, 0.5), (np.int64(6), np.float32(0.75)), (np.array(2), np.array(1.0)), (5, 0.0)):
        layout.write(views, 1, {"kind": kind, "level": level})
        assert arrays["kind"][1, 0] == int(kind) - 2 and arrays["level"][1, 0] == float(level)
    for wrong in (2.5, [2], np.array([2]), "2", None):
        with pytest.raises(MisfitError, match="'kind'"):
            layout.write(views, 1, {"kind": wrong, "level": 0.0})
    assert arrays["kind"][1, 0] == 3


@pytest.mark.parametrize("before", [[], [3]])
@pytest.mark.parametrize("number", [2**70, 2**40, -(2**40)])
def test_a_whole_number_that_cannot_be_stored_is_refused_whatever_came_before(before, number):
    layout = ObservationLayout(spaces.Dict({"kind": spaces.Discrete(5)}))
    views = layout.views({"kind": np.zeros((1, 1), np.int32)})
    for earlier in before:
        layout.write(views, 0, {"kind": earlier})
    with pytest.raises(MisfitError, match=f"'kind' should be .* but is .*{number if abs(number) < 2**63 else ''}"):
        layout.write(views, 0, {"kind": number})
    layout.write(views, 0, {"kind": 4})
    assert views[0][0] == 4


@pytest.mark.parametrize(
    ("space", "is_plain"),
    [
        (spaces.Box(0, 1, (2,)), True),
        (box((5, 6, 3)), True),
        (spaces.MultiDiscrete([2, 3]), True),
        (spaces.MultiDiscrete([2, 3], start=[1, 1]), False),
        (spaces.Discrete(3), False),
        (spaces.Box(0, 1, ()), False),
        (spaces.Dict({"a": spaces.Box(0, 1, (2,))}), True),
        (spaces.Dict({"a": spaces.Discrete(2)}), False),
        (spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Box(0, 1, (2,))}), False),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Box(0, 1, (2,))})}), False),
    ],
)
def test_an_observation_is_plain_where_it_is_an_array_that_is_stored_as_it_comes(space, is_plain):
    assert ObservationLayout(space).is_plain == is_plain


class Lazy:
    """Becomes an array when it is asked for one, and counts how often."""

    dtype, shape = np.dtype(np.float64), (2,)
    conversions = 0

    def __array__(self, dtype=None, copy=None):
        self.conversions += 1
        return np.ones(2)


@pytest.mark.parametrize("is_dict", [False, True])
def test_what_becomes_an_array_does_so_once(is_dict):
    space = spaces.Box(-9, 9, (2,), np.float64)
    layout = ObservationLayout(spaces.Dict({"obs": space}) if is_dict else space)
    array, lazy = np.zeros((1, 2), np.float32), Lazy()
    for number in (1, 2, 3):
        layout.write_plain(layout.views({"obs": array}), 0, {"obs": lazy} if is_dict else lazy)
        assert lazy.conversions == number and array.tolist() == [[1, 1]]


@pytest.mark.parametrize("is_dict", [False, True])
def test_a_plain_observation_of_a_known_type_is_written_without_a_further_look(is_dict, monkeypatch):
    space = spaces.Box(-9, 9, (2,), np.float64)
    layout = ObservationLayout(spaces.Dict({"obs": space}) if is_dict else space)
    array = np.zeros((1, 2), np.float32)
    views = layout.views({"obs": array})
    layout.write_plain(views, 0, {"obs": np.ones(2)} if is_dict else np.ones(2))
    monkeypatch.setattr(layout, "write", lambda *_: pytest.fail("a further look"))
    layout.write_plain(views, 0, {"obs": np.full(2, 2.0)} if is_dict else np.full(2, 2.0))
    assert array.tolist() == [[2, 2]]


def test_plain_observations_are_looked_at_again_whenever_their_type_is_another_one():
    layout = ObservationLayout(spaces.Box(-9, 9, (2,), np.float64))
    array = np.zeros((1, 2), np.float32)
    for value in (np.ones(2), np.full(2, 2.0), [3, 3], np.full(2, 4, np.float32), (5.0, 5.0), np.full(2, 6.0)):
        layout.write_plain(layout.views({"obs": array}), 0, value)
        assert array.tolist() == [[float(value[0])] * 2]
        for wrong in (np.ones(1), np.ones((1, 2)), np.ones(2, np.complex64), 1.0, None, "ab"):
            with pytest.raises(MisfitError, match="'obs'"):
                layout.write_plain(layout.views({"obs": array}), 0, wrong)
        assert array.tolist() == [[float(value[0])] * 2]
