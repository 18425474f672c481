"""What is allowed of observations but seldom meant: numbers outside of their bounds, images that no convolution reads.

The check before the start asks; each thing is told once, as a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from appo.envs.api import ACTION_MASK

_IMAGE_TOPS = (1.0, 255.0)  # brightness is counted up to one of these
_LEAST_IMAGE = 8  # pixels of the shorter side; what is smaller is a board
_CHANNELS = (1, 3, 4)
# Of a bound's size, or of 1: single precision rounds numbers to 1e-7, and sums of them to a little more.
_TOLERANCE = 1e-5


class ObservationWatch:
    """The arrays of one observation space."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._boxes = dict(_boxes(space, ()))
        self._unseen = dict(self._boxes)  # those that have not left their bounds so far

    def images_read_as_vectors(self) -> Iterator[str]:
        """A line for each array that looks like an image, and is none because of its dtype."""
        for path, box in self._boxes.items():
            if _looks_like_image(box):
                yield (
                    f"{_name(path)!r} is an image of {box.dtype} {box.shape}, which is read as {np.prod(box.shape)} "
                    "separate numbers, not by a convolution: make it uint8 from 0 to 255, with "
                    "gymnasium.wrappers.TransformObservation for example, or name an --encoder=my_file of your own"
                )

    def outside(self, observation: Any) -> Iterator[str]:
        """A line for each array that is outside of its bounds for the first time.

        Args:
            observation: one that fits its space in shape and dtype, or a batch of them.
        """
        for path, box in list(self._unseen.items()):
            value = observation
            for key in path:
                value = value[key]
            array = np.asarray(value)
            low, high = box.low.astype(np.float64), box.high.astype(np.float64)
            wrong = (array < low - _slack(low)) | (array > high + _slack(high))
            if wrong.any():
                del self._unseen[path]
                place = tuple(int(index) for index in np.argwhere(wrong)[0])
                bound = place[array.ndim - box.low.ndim :]
                where = f" at {list(bound)}" if bound else ""
                yield (
                    f"{_name(path)!r} is {array[place]:g}{where}, outside of its Box from {box.low[bound]:g} to "
                    f"{box.high[bound]:g}; it is used as it is, so correct the bounds of observation_space"
                )


def _slack(bound: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(bound), _TOLERANCE * np.maximum(1.0, np.abs(bound)), 0.0)


def _looks_like_image(box: spaces.Box) -> bool:
    if len(box.shape) != 3 or box.dtype == np.uint8 or not (box.low == 0).all():
        return False
    channels_first, channels_last = box.shape[0] in _CHANNELS, box.shape[2] in _CHANNELS
    sides = box.shape[:2] if channels_last else box.shape[1:]
    is_brightness = any((box.high == top).all() for top in _IMAGE_TOPS)
    return is_brightness and (channels_first or channels_last) and min(sides) >= _LEAST_IMAGE


def _boxes(space: spaces.Space[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], spaces.Box]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _boxes(part, (*path, key))
    elif isinstance(space, spaces.Box) and _name(path) != ACTION_MASK:
        yield path, space


def _name(path: tuple[str, ...]) -> str:
    return "/".join(map(str, path)) or "obs"
