"""From an engine's screens to the images that a policy sees."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import vizdoom


class Resolution(NamedTuple):
    """A size in which the engine draws."""

    name: str  # in `vizdoom.ScreenResolution`
    width: int
    height: int
    interpolation: int  # OpenCV's, by which its screens are brought to the image's size


def choose_resolution(size: tuple[int, int], is_wide: bool) -> Resolution:
    """The smallest screen that holds an image of `size`, (width, height).

    Drawing costs more than resizing, and for a moderate reduction two taps per axis are four times cheaper than areas.
    """
    wanted = 16 / 9 if is_wide else 4 / 3
    screens = []
    for name in vizdoom.ScreenResolution.__members__:
        width, height = map(int, name.removeprefix("RES_").split("X"))
        if abs(width / height - wanted) < 0.01:
            screens.append((width, height, name))
    screens.sort()
    fitting = [screen for screen in screens if screen[0] >= size[0] and screen[1] >= size[1]]
    width, height, name = fitting[0] if fitting else screens[-1]
    is_moderate = width < 2 * size[0] and height < 2 * size[1]
    return Resolution(name, width, height, int(cv2.INTER_LINEAR if is_moderate else cv2.INTER_AREA))


class ImageStack:
    """The last images of one player, the oldest first, their colours interleaved in memory as networks read them."""

    def __init__(self, size: tuple[int, int], num_images: int, interpolation: int) -> None:
        """`size`: (width, height) of an image."""
        cv2.setNumThreads(1)  # images this small are shrunk faster than threads wake up
        self._size, self._interpolation = size, interpolation
        self._images: np.ndarray = np.zeros((size[1], size[0], 3 * num_images), np.uint8)

    def add(self, screen: np.ndarray) -> None:
        """Take over a screen, [height, width, 3]. Images given out earlier keep what they show."""
        image = cv2.resize(screen, self._size, interpolation=self._interpolation)
        one_image = self._images.shape == image.shape
        self._images = image if one_image else np.concatenate((self._images[..., 3:], image), axis=-1)

    def start(self, screen: np.ndarray) -> None:
        """Begin an episode: every image is the first one."""
        self.add(screen)
        self._images = np.tile(self._images[..., -3:], self._images.shape[-1] // 3)

    @property
    def images(self) -> np.ndarray:
        """[3 * number, height, width]."""
        return self._images.transpose(2, 0, 1)
