"""One Atari game: idle start, frame skip with max-pooling, 84x84 grey images, a stack of them, lives as episodes.

Everything between the console and the observation happens in grey: two screens are read per step, pooled, and shrunk.
The images of an observation lie interleaved in memory, pixel by pixel, as networks read them; four of them make one
32-bit number per pixel, so that the stack moves on with one shift. Each observation is an array of its own.
"""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ale_py
import ale_py.roms
import cv2
import gymnasium
import numpy as np

from appo.utils.options import ConfigError

if TYPE_CHECKING:
    from appo.envs.families.atari import AtariOptions

SIZE = 84  # height and width of an image
_IMAGES_PER_WORD = 4


class AtariEnv(gymnasium.Env[np.ndarray, np.int64]):
    """A game of the Arcade Learning Environment, preprocessed for learning.

    Observation: uint8 [stack, 84, 84], the oldest image first; an episode starts with copies of its first image.
    Reward: the change of the game's score, unclipped. Frames of idling and firing during `reset` are not counted.
    An info holds `num_frames`, and when the *game* ends `true_reward` and `episode_extra_stats` with its score.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 - Gymnasium's own way to declare it
    images_channels_last = True
    true_reward_in_info = True  # of games: a lost life has no score

    def __init__(self, name: str, options: AtariOptions, render_mode: str | None = None) -> None:
        self._rom = _rom_of(name)
        self._options = options
        self.render_mode = render_mode
        cv2.setNumThreads(1)  # images this small are shrunk faster than threads wake up

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._actions, screen_shape = _facts_of(self._rom)
        self._ale = ale_py.ALEInterface()  # its ROM is loaded with the first reset, which brings the seed
        self._ale.setFloat("repeat_action_probability", options.atari_repeat_action_probability)
        fire = ale_py.Action.FIRE
        self._opening = fire if options.atari_fire_reset and fire in self._actions else None
        self._screen, self._previous_screen = np.empty((2, *screen_shape), np.uint8)
        self._stack = np.empty((SIZE, SIZE, options.env_framestack), np.uint8)  # in memory: the images come last
        self._image = np.empty((SIZE, SIZE), np.uint8)

        self.action_space: gymnasium.spaces.Discrete[np.int64] = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(0, 255, (options.env_framestack, SIZE, SIZE), np.uint8)
        self._is_loaded = False
        self._is_life_lost = False  # by the last step: the next reset continues the game
        self._lives = 0
        self._score = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Continue the game right after a lost life; start a new one in every other case, or when a seed is given."""
        super().reset(seed=seed)
        if seed is not None or not self._is_loaded:
            self._ale.setInt("random_seed", int(self.np_random.integers(2**31)))
            self._ale.loadROM(self._rom)  # takes 0.1 s; the only moment at which the console takes its seed
            self._is_loaded, self._is_life_lost = True, False
        if self._is_life_lost:
            self._advance(ale_py.Action.NOOP)
        if not self._is_life_lost or self._ale.game_over():
            self._start_game()
        if self._opening is not None:
            self._advance(self._opening)
            if self._ale.game_over():
                self._start_game()
        self._is_life_lost = False
        self._lives = self._ale.lives()
        self._begin_stack()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold one action for `env_frameskip` frames, fewer when the game ends."""
        reward, frames = self._advance(self._actions[int(action)])
        lives = self._ale.lives()
        # A game may show 0 lives some frames before it is over; its end then ends the episode.
        has_lost_life = 0 < lives < self._lives
        ends_with_life = has_lost_life and self._options.atari_episodic_life
        if has_lost_life and not ends_with_life and self._opening is not None:
            more, frames_more = self._open_again(self._opening)
            reward, frames, lives = reward + more, frames + frames_more, self._ale.lives()
        else:
            self._shrink()
            self._stack = _pushed(self._stack, self._image)
        self._lives = lives
        is_over = self._ale.game_over()
        is_out_of_time = self._ale.getEpisodeFrameNumber() >= self._options.atari_max_frames
        self._is_life_lost = ends_with_life and not (is_over or is_out_of_time)

        info: dict[str, Any] = {"num_frames": frames}
        if is_over or is_out_of_time:
            info["true_reward"] = float(self._score)
            info["episode_extra_stats"] = {
                "game_score": float(self._score),
                "game_frames": float(self._ale.getEpisodeFrameNumber()),
            }
        terminated = is_over or ends_with_life
        return self._observation(), float(reward), terminated, is_out_of_time and not terminated, info

    def render(self) -> np.ndarray | None:
        """The console's screen in colour, [height, width, 3]."""
        return self._ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    def _start_game(self) -> None:
        longest = self._options.atari_noop_max
        idle_frames = int(self.np_random.integers(1, longest + 1)) if longest else 0
        self._ale.reset_game()
        self._score = 0
        for _ in range(idle_frames):
            self._score += self._ale.act(ale_py.Action.NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
                self._score = 0
        self._ale.getScreenGrayscale(self._screen)

    def _open_again(self, opening: ale_py.Action) -> tuple[int, int]:
        """Go on after a lost life as episodes do that end with one; the score gained and the frames covered.

        Whoever learned from such episodes has never seen a game that waits for FIRE in its middle.
        """
        reward, frames = self._advance(ale_py.Action.NOOP)
        if not self._ale.game_over():
            more, frames_more = self._advance(opening)
            reward, frames = reward + more, frames + frames_more
        self._begin_stack()
        return reward, frames

    def _begin_stack(self) -> None:
        self._shrink()
        self._stack = np.repeat(self._image[..., None], self._options.env_framestack, axis=-1)

    def _advance(self, action: ale_py.Action) -> tuple[int, int]:
        """Hold an action; leave the pooled screen in `self._screen`; return the score gained and the frames covered."""
        ale, skip = self._ale, self._options.env_frameskip
        reward, frames = 0, 0
        while frames < skip:
            reward += ale.act(action)
            frames += 1
            if ale.game_over():
                break
            if frames == skip - 1:
                ale.getScreenGrayscale(self._previous_screen)
        ale.getScreenGrayscale(self._screen)
        if skip > 1 and frames == skip:
            np.maximum(self._screen, self._previous_screen, out=self._screen)
        self._score += reward
        return reward, frames

    def _shrink(self) -> None:
        cv2.resize(self._screen, (SIZE, SIZE), dst=self._image, interpolation=cv2.INTER_AREA)

    def _observation(self) -> np.ndarray:
        return self._stack.transpose(2, 0, 1)


def _pushed(stack: np.ndarray, image: np.ndarray) -> np.ndarray:
    """[height, width, stack] without its oldest image, and with a new one at the end; an array of its own."""
    if stack.shape[-1] == _IMAGES_PER_WORD:
        words = stack.view("<u4")[..., 0] >> 8
        words |= image.astype("<u4") << 24
        return words.view(np.uint8).reshape(stack.shape)
    return np.concatenate((stack[..., 1:], image[..., None]), axis=-1)


@functools.cache
def _facts_of(rom: Path) -> tuple[list[ale_py.Action], tuple[int, int]]:
    """The actions that mean something in a game, and the height and width of its screen."""
    ale = ale_py.ALEInterface()
    ale.loadROM(rom)
    return ale.getMinimalActionSet(), ale.getScreenDims()


def _rom_of(name: str) -> Path:
    """`atari_space_invaders` and `ALE/SpaceInvaders-v5` -> the file of `space_invaders`."""
    if name.startswith("ALE/") and not name.endswith("-v5"):
        raise ConfigError(f"{name!r}: the version of ALE's environments is 5; {name.rpartition('-v')[0] or name}-v5")
    games = ale_py.roms.get_all_rom_ids()
    wanted = re.sub(r"^atari_|^ALE/|(NoFrameskip)?-v\d+$", "", name)
    for game in games:
        is_meant = wanted in (game, game.title().replace("_", ""))
        if is_meant and (rom := ale_py.roms.get_rom_path(game)) is not None:
            return rom
    close = difflib.get_close_matches(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", wanted).lower(), games)
    hint = ", ".join(f"atari_{game}" for game in close or games)
    raise ConfigError(f"{name!r} is no Atari game; {'close to it' if close else 'there are'}: {hint}")
