"""Observation spaces: what each becomes, how observations are written, and what is refused."""

import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.api import MisfitError, ObservationLeaf, UnsupportedSpaceError
from appo.envs.observation_layout import ObservationLayout

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
