"""A short animated picture of an episode, made after an evaluation beside training.

The episode is played in an environment of its own, which is drawn after every step; it counts in no score.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from appo.algorithms.evaluation.evaluate import Player, evaluate_policy
from appo.algorithms.evaluation.screen import Screen
from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.registry import ResolvedEnv
from appo.envs.vector.make import vec_env_of

MAX_IMAGES, MAX_HEIGHT, MAX_WIDTH = 120, 120, 240  # small, since TensorBoard's files keep every video
MAX_FRAMES = 4000  # of a recorded episode
KEEP_VIDEOS = 10  # files of each policy
# Milliseconds that an image is shown; browsers slow down what changes faster.
_SHORTEST_MS, _LONGEST_MS = 20.0, 100.0
_REMEDY = "leave out --eval_video_every_sec"


class VideoClip:
    """Images in a small size; of a long episode every second, fourth ... one, so that there are never too many."""

    def __init__(self) -> None:
        """There are no images yet."""
        self.frames_per_second = 30.0
        self.clear()

    def clear(self) -> None:
        """Drop all images."""
        self._images: list[Any] = []  # uint8 [height, width, 3] each
        self._seen, self._stride = 0, 1

    def show(self, image: NDArray[np.uint8]) -> None:
        """Take one image [height, width, 3]."""
        if self._seen % self._stride == 0:
            self._images.append(_shrunk(image))
        self._seen += 1
        if len(self._images) > MAX_IMAGES:
            del self._images[1::2]
            self._stride *= 2

    def save(self, path: Path) -> None:
        """Write an animated GIF. No image is shown for longer than a tenth of a second, so long episodes are sped up.

        Raises:
            OSError: the file cannot be written; nothing is left of it.
        """
        import imageio.v2 as imageio

        shown_ms = min(max(1000.0 * self._stride / self.frames_per_second, _SHORTEST_MS), _LONGEST_MS)
        partial = path.with_suffix(".part")
        try:
            imageio.mimwrite(partial, self._images, format="GIF", duration=shown_ms, loop=0)
            partial.replace(path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


class EpisodeVideos:
    """Records one episode at a time, each into a file of its own."""

    def __init__(self, env: ResolvedEnv, family_options: Any, context: EnvContext, folder: Path) -> None:
        """Build the environment.

        Args:
            env: the environment to play.
            family_options: the options of its family.
            context: its place in the run.
            folder: where the files are written; made when it is missing.

        Raises:
            ConfigError: the environment cannot be drawn.
        """
        self._clip, self._folder = VideoClip(), folder
        self._screen = Screen([self._clip], 0.0, may_open_windows=False, remedy=_REMEDY)
        self._env = vec_env_of(self._screen.build(env, family_options, context))

    def record(
        self, player: Player, policy: int, version: int, *, deterministic: bool, goes_on: Callable[[], bool]
    ) -> Path | None:
        """Play an episode, or the first `MAX_FRAMES` of it, and write the file; all but the newest files are removed.

        Args:
            player: has at least as many rows as the environment has agents.
            policy: number of the policy, part of the file's name.
            version: policy version of its weights, part of the file's name.
            deterministic: take the most likely action instead of drawing one.
            goes_on: called after every step; False ends the recording.

        Returns:
            The file; None where `goes_on` ended the recording.

        Raises:
            OSError: the file cannot be written.
        """
        is_stopped = False

        def after_step() -> bool:
            nonlocal is_stopped
            self._screen.flush()
            is_stopped = not goes_on()
            return not is_stopped

        self._clip.clear()
        evaluate_policy(player, self._env, 1, max_frames=MAX_FRAMES, deterministic=deterministic, after_step=after_step)
        if is_stopped:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"eval_policy{policy}_step{version:012d}.gif"
        self._clip.save(path)
        files = sorted(self._folder.glob(f"eval_policy{policy}_step*.gif"), key=lambda file: file.stat().st_mtime_ns)
        for old in files[:-KEEP_VIDEOS]:
            old.unlink(missing_ok=True)
        return path

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def require_images(env: ResolvedEnv, family_options: Any) -> None:
    """Draw an environment once, to refuse one that cannot be recorded.

    Raises:
        ConfigError: it cannot be drawn, or `render` does not return an image.
        EnvError: the environment failed.
    """
    screen = Screen([VideoClip()], 0.0, may_open_windows=False, remedy=_REMEDY)
    batch = screen.build(env, family_options, EnvContext(seed=0))
    try:
        batch.reset(step_arrays(batch.spec, batch.num_envs))
        screen.flush()
    finally:
        batch.close()


def _shrunk(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    scale = min(MAX_HEIGHT / height, MAX_WIDTH / width)
    if scale >= 1:
        return image.copy()
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
