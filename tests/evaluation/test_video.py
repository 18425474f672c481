"""Video files: written, readable by others, complete after `close`."""

import sys

import cv2
import imageio.v2 as imageio
import imageio_ffmpeg
import numpy as np
import pytest

from appo.algorithms.evaluation import video
from appo.algorithms.evaluation.video import VideoRecorder, even_sized
from appo.utils.options import ConfigError


def gradient(t, height, width):
    """An image that is brighter to the right, and with every t."""
    row = np.linspace(0, 100, width) + 8 * t
    return np.repeat(np.broadcast_to(row, (height, width))[..., None], 3, axis=2).astype(np.uint8)


def read_mp4(path):
    """(frames per second, [t, height, width, 3]), by another program than wrote it."""
    reader, images = cv2.VideoCapture(str(path)), []
    while (read := reader.read())[0]:
        images.append(read[1][..., ::-1])
    return reader.get(cv2.CAP_PROP_FPS), np.array(images)


@pytest.mark.parametrize("size", [(210, 160), (33, 47), (84, 84)])
def test_an_mp4_shows_every_image_at_the_pace_asked_for(tmp_path, size):
    recorder = VideoRecorder(tmp_path / "videos", "first", frames_per_second=12.5)
    images = [gradient(t, *size) for t in range(15)]
    for image in images:
        recorder.show(image)
    recorder.close()
    recorder.close()
    assert recorder.path == tmp_path / "videos" / "first.mp4" and recorder.num_frames == 15
    rate, seen = read_mp4(recorder.path)
    assert rate == 12.5
    expected = np.array([even_sized(image) for image in images])
    assert seen.shape == expected.shape
    assert np.abs(seen.astype(int) - expected).mean() < 4
    assert np.abs(seen[:-1].astype(int) - expected[1:]).mean() > 6  # neighbouring images differ by 8


def test_without_ffmpeg_a_gif_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "has_ffmpeg", lambda: False)
    recorder = VideoRecorder(tmp_path, "first", frames_per_second=10)
    for t in range(6):
        recorder.show(gradient(t, 20, 30))
    recorder.close()
    assert recorder.path == tmp_path / "first.gif"
    images = imageio.mimread(recorder.path)
    assert len(images) == 6 and images[0].shape[:2] == (20, 30)
    assert images[5].mean() > images[0].mean() + 20


def test_ffmpeg_is_missing_where_its_package_is_or_its_program(monkeypatch):
    assert video.has_ffmpeg()
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: (_ for _ in ()).throw(RuntimeError("no ffmpeg")))
    assert not video.has_ffmpeg()
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert not video.has_ffmpeg()


def test_an_earlier_video_is_never_overwritten(tmp_path):
    (tmp_path / "first.mp4").write_text("an earlier one")
    (tmp_path / "first_2.mp4").write_text("and one more")
    assert VideoRecorder(tmp_path, "first").path == tmp_path / "first_3.mp4"


def test_a_recorder_that_saw_nothing_leaves_no_file(tmp_path):
    VideoRecorder(tmp_path, "first").close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "videos").write_text("a file is in the way")
    with pytest.raises(ConfigError, match=r"--save_video cannot make the folder .*videos"):
        VideoRecorder(tmp_path / "videos", "first")


def test_images_become_even_by_repeating_their_last_row_and_column():
    image = gradient(1, 3, 5)
    even = even_sized(image)
    assert even.shape == (4, 6, 3)
    np.testing.assert_array_equal(even[:3, :5], image)
    np.testing.assert_array_equal(even[3], even[2])
    np.testing.assert_array_equal(even[:, 5], even[:, 4])
    same = gradient(1, 4, 6)
    assert even_sized(same) is same
