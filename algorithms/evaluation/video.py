"""Writing what an environment draws into a video file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.utils.options import ConfigError

_QUALITY = 7  # of 10: text on the screen stays sharp


class VideoRecorder:
    """A video file that grows with every image: mp4 where ffmpeg is installed, else gif.

    The file is opened with the first image and complete after `close`.
    """

    def __init__(self, folder: Path, name: str, frames_per_second: float = 30.0) -> None:
        """Make the folder and choose a name there that is not taken.

        Args:
            folder: of the videos; made when it is missing.
            name: of the file, without its ending.
            frames_per_second: of the video; may be changed until the first image.

        Raises:
            ConfigError: no video can be written there, or the package that writes videos is missing.
        """
        if importlib.util.find_spec("imageio") is None:
            raise ConfigError("--save_video needs imageio, which is not installed: pip install imageio imageio-ffmpeg")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--save_video cannot make the folder {folder}: {error}") from error
        self.path = _unused(folder, name, "mp4" if has_ffmpeg() else "gif")
        self.frames_per_second = frames_per_second
        self.num_frames = 0
        self._writer: Any = None

    def show(self, image: NDArray[np.uint8]) -> None:
        """Append one image [height, width, 3]; all of a video have the same size."""
        if self._writer is None:
            self._writer = self._open()
        self._writer.append_data(even_sized(image))
        self.num_frames += 1

    def close(self) -> None:
        """Complete the file; called any number of times."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        import imageio.v2 as imageio

        if self.path.suffix == ".gif":
            return imageio.get_writer(self.path, mode="I", duration=1000 / self.frames_per_second, loop=0)
        return imageio.get_writer(
            self.path,
            format="FFMPEG",
            fps=self.frames_per_second,
            codec="libx264",
            quality=_QUALITY,
            macro_block_size=1,  # images keep their size: every player copes with even ones
        )


def has_ffmpeg() -> bool:
    """Whether mp4 can be written."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):  # not installed; or there, without a program for this machine
        return False
    return True


def even_sized(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image, its last row and column repeated where their number is odd: the codec halves colours both ways."""
    height, width = image.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return image
    return np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _unused(folder: Path, name: str, ending: str) -> Path:
    path, number = folder / f"{name}.{ending}", 1
    while path.exists():
        number += 1
        path = folder / f"{name}_{number}.{ending}"
    return path
