"""Videos of episodes after evaluations: how long, how large, which files stay, and what ends a recording."""

import itertools

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

from appo.algorithms.config import resolve
from appo.algorithms.evaluation import episode_video
from appo.algorithms.evaluation.episode_video import (
    KEEP_VIDEOS,
    MAX_HEIGHT,
    MAX_IMAGES,
    MAX_WIDTH,
    EpisodeVideos,
    VideoClip,
    require_images,
)
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.envs.api import EnvContext
from appo.envs.registry import probe
from appo.envs.registry import resolve as resolve_env
from appo.utils.options import ConfigError
from tests.evaluation.test_screen import Numbered

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        ((100, 4000), (6, MAX_WIDTH)),
        ((4000, 100), (MAX_HEIGHT, 3)),
        ((1, 10**5), (1, MAX_WIDTH)),
        ((MAX_HEIGHT, MAX_WIDTH), (MAX_HEIGHT, MAX_WIDTH)),
        ((2 * MAX_HEIGHT, 2 * MAX_WIDTH), (MAX_HEIGHT, MAX_WIDTH)),
        ((30, 40), (30, 40)),
    ],
)
def test_an_image_is_small_whatever_its_shape(tmp_path, size, kept):
    clip = VideoClip()
    clip.show(np.full((*size, 3), 7, np.uint8))
    clip.save(tmp_path / "clip.gif")
    assert imageio.mimread(tmp_path / "clip.gif")[0].shape[:2] == kept


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def write_half(path, images, **how):
        path.write_bytes(b"half of it")
        raise OSError("No space left on device")

    clip = VideoClip()
    clip.show(np.zeros((8, 8, 3), np.uint8))
    monkeypatch.setattr(imageio, "mimwrite", write_half)
    with pytest.raises(OSError, match="No space left"):
        clip.save(tmp_path / "clip.gif")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "kept"), [(1, 1), (MAX_IMAGES, MAX_IMAGES), (5 * MAX_IMAGES, None)])
def test_a_clip_is_short_and_small_and_spans_the_whole_episode(tmp_path, number, kept):
    clip = VideoClip()
    clip.frames_per_second = 20.0
    for t in range(number):
        clip.show(np.full((2 * MAX_HEIGHT, 3 * MAX_HEIGHT, 3), 255 * t // max(1, number - 1), np.uint8))
    clip.save(tmp_path / "clip.gif")
    images = imageio.mimread(tmp_path / "clip.gif", memtest=False)
    assert len(images) == kept or (kept is None and MAX_IMAGES // 2 < len(images) <= MAX_IMAGES)
    assert images[0].shape[:2] == (MAX_HEIGHT, 3 * MAX_HEIGHT // 2)
    assert images[0][..., :3].max() == 0 and (number == 1 or images[-1][..., :3].min() > 240)
    if number > 1:
        shown_ms = imageio.get_reader(tmp_path / "clip.gif").get_meta_data()["duration"]
        assert shown_ms == (50 if number <= MAX_IMAGES else 100), "a long episode is sped up"
    clip.clear()
    clip.show(np.zeros((8, 8, 3), np.uint8))
    clip.save(tmp_path / "clip.gif")
    assert len(imageio.mimread(tmp_path / "clip.gif")) == 1 and not list(tmp_path.glob("*.part"))


def player_of(env):
    config = resolve([f"--env={env}", "--hidden_size=8", "--mlp_layers=8", "--device=cpu"]).config
    torch.manual_seed(1)
    return PolicyInference(build_actor_critic(config.model, probe(env, config.family)), 1, "cpu", seed=1)


def videos_of(env, folder):
    return EpisodeVideos(resolve_env(env), resolve([f"--env={env}"]).config.family, EnvContext(seed=1), folder)


@pytest.fixture
def cartpole(tmp_path):
    videos, player = videos_of("CartPole-v1", tmp_path / "videos"), player_of("CartPole-v1")

    def record(policy, version, goes_on=lambda: True):
        return videos.record(player, policy, version, deterministic=False, goes_on=goes_on)

    yield record
    videos.close()


def test_the_newest_files_of_each_policy_stay_whatever_their_steps(cartpole, tmp_path):
    other = cartpole(1, 5)
    # After a start from an earlier checkpoint, the newest video is of an earlier step.
    paths = [cartpole(0, version) for version in (*range(100, 101 + KEEP_VIDEOS), 7)]
    assert sorted((tmp_path / "videos").iterdir()) == sorted([*paths[-KEEP_VIDEOS:], other])
    assert paths[-1].name == "eval_policy0_step000000000007.gif"
    images = imageio.mimread(paths[-1], memtest=False)
    assert len(images) > 5 and any((images[0] != image).any() for image in images[1:])


class Grey(Numbered):
    """Episodes of five steps; draws the number of the step as a shade of grey, always into the same array."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.image = np.zeros((8, 8, 3), np.uint8)

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.steps == 5, truncated, info

    def render(self):
        self.image[:] = 40 * self.steps
        return self.image


def test_a_recording_is_one_episode_from_its_first_image_to_its_last(tmp_path):
    env = f"{Grey.__module__}:{Grey.__name__}"
    videos, player = videos_of(env, tmp_path), player_of(env)
    for version in (1, 2):
        path = videos.record(player, 0, version, deterministic=True, goes_on=lambda: True)
        assert path is not None
        shades = [int(image[0, 0, 0]) for image in imageio.mimread(path)]
        assert shades == pytest.approx([40 * step for step in range(6)], abs=2)
    videos.close()


def test_a_recording_that_is_ended_leaves_no_file(cartpole, tmp_path):
    answers = iter([True, True, False])
    assert cartpole(0, 1, lambda: next(answers)) is None
    assert not (tmp_path / "videos").exists()
    assert cartpole(0, 2) is not None


def test_a_long_episode_is_recorded_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(episode_video, "MAX_FRAMES", 50)  # of 200
    videos, calls = videos_of("Pendulum-v1", tmp_path), itertools.count()
    path = videos.record(player_of("Pendulum-v1"), 0, 3, deterministic=True, goes_on=lambda: next(calls) >= 0)
    videos.close()
    assert path is not None and next(calls) == 51
    assert 40 < len(imageio.mimread(path, memtest=False)) <= 51, "images that are alike become one"


def test_what_cannot_be_written_is_told(tmp_path):
    (tmp_path / "a file").write_text("")
    videos = videos_of("CartPole-v1", tmp_path / "a file" / "videos")
    with pytest.raises(OSError, match="Not a directory"):
        videos.record(player_of("CartPole-v1"), 0, 1, deterministic=False, goes_on=lambda: True)
    videos.close()


def test_what_cannot_be_drawn_is_refused_with_the_option_to_leave_out():
    require_images(resolve_env("CartPole-v1"), resolve(["--env=CartPole-v1"]).config.family)
    config = resolve(["--env=synthetic_bandit"]).config
    with pytest.raises(ConfigError, match=r"draws no images .*; leave out --eval_video_every_sec"):
        require_images(resolve_env("synthetic_bandit"), config.family)
