"""A window that shows what an environment draws.

Every environment that can draw into an array is shown in the same window, at the pace that is asked for; so --fps means
the same everywhere, and environments that know no windows of their own (Atari, Doom) are watched like the others.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_DISPLAY = "offscreen"  # the driver of SDL, pygame's base, that draws into memory only
_SMALLEST_HEIGHT = 400  # smaller images are magnified by a whole number to at least this


class NoWindowError(RuntimeError):
    """No window can be opened; the message says why."""


def has_display() -> bool:
    """Whether there is a screen to open windows on, as far as the process environment tells."""
    if not sys.platform.startswith("linux"):
        return True
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    return os.environ.get("SDL_VIDEODRIVER", NO_DISPLAY) != NO_DISPLAY


class Window:
    """Opened by the first image; closed by the user, with its button, Escape or Q, or by `close`."""

    def __init__(self, title: str, frames_per_second: float = 30.0) -> None:
        """Make sure that a window can be opened.

        Args:
            title: of the window.
            frames_per_second: at which `show` lets images follow each other; may be changed at any time.

        Raises:
            NoWindowError: there is no display, or the package that opens windows is missing.
        """
        if not has_display():
            raise NoWindowError("there is no display")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would greet on standard output
        try:
            import pygame
        except ImportError:
            raise NoWindowError("pygame is not installed (pip install pygame-ce)") from None
        try:
            pygame.display.init()
        except pygame.error as error:
            raise NoWindowError(f"the display cannot be used ({error})") from error
        self.frames_per_second = frames_per_second
        self.is_closed = False
        """By the user."""
        self._pygame: Any = pygame
        self._title = title
        self._screen: Any = None
        self._clock: Any = pygame.time.Clock()

    def show(self, image: NDArray[np.uint8]) -> None:
        """Show one image [height, width, 3], then wait until the next one is due."""
        pygame = self._pygame
        if self._screen is None:
            self._screen = self._open(*image.shape[:2])
        surface = pygame.image.frombuffer(np.ascontiguousarray(image), image.shape[1::-1], "RGB")
        self._screen.blit(pygame.transform.scale(surface, self._screen.get_size()), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            is_key = event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
            self.is_closed |= is_key or event.type == pygame.QUIT
        self._clock.tick(self.frames_per_second)

    def close(self) -> None:
        """Close the window; called any number of times."""
        self._pygame.display.quit()

    def _open(self, height: int, width: int) -> Any:
        factor = -(-_SMALLEST_HEIGHT // height) if height < _SMALLEST_HEIGHT else 1
        screen = self._pygame.display.set_mode((width * factor, height * factor))
        self._pygame.display.set_caption(self._title)
        return screen
