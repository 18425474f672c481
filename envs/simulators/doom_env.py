"""One Doom scenario as a Gymnasium environment.

The time limit is ours, not the engine's: the engine's own would end the episode and take away the last screen, and what
a truncated episode would have earned is judged by that screen. So the engine is told of no limit, and the last step is
cut to cover exactly the tics that the scenario allows. After a death or an exit there is no screen; the last one seen
is returned again, for nothing follows a terminated episode.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import gymnasium
import numpy as np
import vizdoom

from appo.envs.simulators.doom_engine import start_engine
from appo.envs.simulators.doom_scenarios import (
    SCENARIOS,
    STATISTIC_NAMES,
    Head,
    Scenario,
    full_value,
    scenario_from_config,
)
from appo.utils.options import ConfigError

if TYPE_CHECKING:
    from appo.envs.families.doom import DoomOptions

Observation = dict[str, Any]  # of arrays


class DoomEnv(gymnasium.Env[Observation, Any]):
    """A scenario played alone, one engine process of its own, started by the first `reset`.

    Observation: `obs`, uint8 [3 * stack, height, width], the oldest image first, its colours interleaved in memory as
    the engine draws them and networks read them, and, where the scenario has any,
    `measurements`, float32, game variables divided so that they are about 1.
    Reward: the scenario's own, summed over the tics of a step. An info holds `num_frames`, the tics that the step
    covered, and at the end of an episode `episode_extra_stats`, and `true_reward` where the scenario counts kills.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 35}  # noqa: RUF012 - Gymnasium's own way to declare it

    def __init__(self, name: str, options: DoomOptions, render_mode: str | None = None) -> None:
        cv2.setNumThreads(1)  # images this small are shrunk faster than threads wake up
        self.render_mode = render_mode
        self._game = game = _load_game(find_config(name, options.doom_scenarios_dir))
        self._scenario = scenario = SCENARIOS.get(name) or scenario_from_config(
            [button.name for button in game.get_available_buttons()],
            [variable.name for variable in game.get_available_game_variables()],
        )
        game.set_available_buttons([getattr(vizdoom.Button, button) for button in scenario.buttons])
        game.set_available_game_variables(_variables(scenario.measurements))
        self._tic_limit = game.get_episode_timeout()  # 0: none
        game.set_episode_timeout(0)

        self._frameskip = options.env_frameskip
        self._size = (options.res_w, options.res_h)
        self._interpolation = _choose_resolution(game, self._size, options.wide_aspect_ratio)
        self._images: np.ndarray = np.zeros((options.res_h, options.res_w, 3 * options.env_framestack), np.uint8)
        self._screen = np.zeros((game.get_screen_height(), game.get_screen_width(), 3), np.uint8)
        self._scales = np.array([1 / full_value(variable) for variable in scenario.measurements], np.float32)
        self._measurements = np.zeros(len(self._scales), np.float32)
        self._first_tic = self._tic = 0

        self._presses = [_press_table(head, scenario) for head in scenario.heads]
        heads = [gymnasium.spaces.Discrete(len(head)) for head in scenario.heads]
        self.action_space = heads[0] if len(heads) == 1 else gymnasium.spaces.Tuple(heads)
        self.observation_space = self._observation_space()

    def _observation_space(self) -> gymnasium.spaces.Dict[Any]:
        observations: dict[str, gymnasium.Space[Any]] = {
            "obs": gymnasium.spaces.Box(0, 255, self._images.transpose(2, 0, 1).shape, np.uint8)
        }
        if len(self._scales):
            observations["measurements"] = gymnasium.spaces.Box(-np.inf, np.inf, self._scales.shape, np.float32)
        return gymnasium.spaces.Dict(observations)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode, and the engine before the first one.

        Raises:
            RuntimeError: the engine does not start.
        """
        super().reset(seed=seed)
        if not self._game.is_running():
            start_engine(self._game)
        # Given once, a seed would make the first two episodes the same.
        self._game.set_seed(int(self.np_random.integers(2**31)))
        self._game.new_episode()
        self._first_tic = self._tic = self._game.get_episode_time()
        self._see(self._game.get_state())
        self._images = np.tile(self._images[..., -3:], self._images.shape[-1] // 3)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Hold the chosen buttons for `env_frameskip` tics, fewer when the episode ends."""
        game, tics = self._game, self._frameskip
        if self._tic_limit:
            tics = min(tics, self._first_tic + self._tic_limit - self._tic)
        reward = game.make_action(self._buttons(action), tics)
        tic = game.get_episode_time()
        # The clock reads 0 when the level was left; such a step counts with all its tics.
        info: dict[str, Any] = {"num_frames": tic - self._tic if tic else tics}
        self._tic = tic

        terminated = game.is_episode_finished()
        truncated = not terminated and tic - self._first_tic >= self._tic_limit > 0
        if not terminated:
            self._see(game.get_state())
        if terminated or truncated:
            self._report_into(info)
        return self._observation(), reward, terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """The engine's last screen, [height, width, 3]."""
        return self._screen if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """End the engine; called any number of times."""
        self._game.close()

    def _buttons(self, action: Any) -> list[float]:
        if len(self._presses) == 1:
            return self._presses[0][int(action)]
        pressed = [table[int(choice)] for table, choice in zip(self._presses, action, strict=True)]
        return [sum(of_button) for of_button in zip(*pressed, strict=True)]

    def _see(self, state: vizdoom.GameState) -> None:
        """Take over the engine's screen and variables. Observations given out earlier keep theirs."""
        self._screen = state.screen_buffer  # an array of its own, not the engine's memory
        image = cv2.resize(self._screen, self._size, interpolation=self._interpolation)
        one_image = self._images.shape == image.shape
        self._images = image if one_image else np.concatenate((self._images[..., 3:], image), axis=-1)
        if len(self._scales):
            self._measurements = np.multiply(np.asarray(state.game_variables), self._scales, dtype=np.float32)

    def _observation(self) -> Observation:
        images = self._images.transpose(2, 0, 1)
        if len(self._scales):
            return {"obs": images, "measurements": self._measurements}
        return {"obs": images}

    def _report_into(self, info: dict[str, Any]) -> None:
        read, scenario = self._game.get_game_variable, self._scenario
        variables = zip(scenario.statistics, _variables(scenario.statistics), strict=True)
        info["episode_extra_stats"] = {STATISTIC_NAMES.get(name, name.lower()): read(it) for name, it in variables}
        if scenario.objective:
            info["true_reward"] = read(*_variables((scenario.objective,)))


def find_config(name: str, user_folder: str) -> Path:
    """The `.cfg` of a scenario: the user's own before ViZDoom's.

    Raises:
        ConfigError: there is none; the message names the folders and what they hold.
    """
    folders = [Path(vizdoom.scenarios_path)]
    if user_folder:
        folders.insert(0, Path(user_folder).expanduser().absolute())
        if not folders[0].is_dir():
            raise ConfigError(f"doom_scenarios_dir={user_folder!r} is no folder; it should hold <x>.cfg for doom_<x>")
    for folder in folders:
        if re.fullmatch(r"[\w-]+", name) and (folder / f"{name}.cfg").is_file():
            return folder / f"{name}.cfg"
    found = "; ".join(f"{folder} holds {', '.join(_scenarios_in(folder)) or 'none'}" for folder in folders)
    hint = "" if user_folder else "; name the folder of your own scenarios with --doom_scenarios_dir"
    raise ConfigError(f"there is no scenario file {name}.cfg for doom_{name}: {found}{hint}")


def _scenarios_in(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.cfg"))


def _load_game(config: Path) -> vizdoom.DoomGame:
    game = vizdoom.DoomGame()
    try:
        game.load_config(str(config))
    except Exception as error:  # ViZDoom has an exception for each way in which a file can be wrong
        raise ConfigError(f"ViZDoom cannot read {config}: {error}") from error
    wad = Path(game.get_doom_scenario_path())
    if not wad.is_file():
        raise ConfigError(f"{config} names the scenario {wad}, which does not exist; put that .wad file there")
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_console_enabled(False)
    return game


def _choose_resolution(game: vizdoom.DoomGame, size: tuple[int, int], is_wide: bool) -> int:
    """Let the engine draw the smallest screen that holds the image; return how to resize it.

    Drawing costs more than resizing, and for a moderate reduction two taps per axis are four times cheaper than areas.
    """
    wanted = 16 / 9 if is_wide else 4 / 3
    screens = []
    for name, resolution in vizdoom.ScreenResolution.__members__.items():
        width, height = map(int, name.removeprefix("RES_").split("X"))
        if abs(width / height - wanted) < 0.01:
            screens.append((width, height, resolution))
    screens.sort(key=lambda screen: screen[0])
    fitting = [screen for screen in screens if screen[0] >= size[0] and screen[1] >= size[1]]
    width, height, resolution = fitting[0] if fitting else screens[-1]
    game.set_screen_resolution(resolution)
    is_moderate = width < 2 * size[0] and height < 2 * size[1]
    return int(cv2.INTER_LINEAR if is_moderate else cv2.INTER_AREA)


def _press_table(head: Head, scenario: Scenario) -> list[list[float]]:
    """choice -> how far each of the scenario's buttons is pressed."""
    return [[float(dict(choice).get(button, 0.0)) for button in scenario.buttons] for choice in head]


def _variables(names: tuple[str, ...]) -> list[vizdoom.GameVariable]:
    return [getattr(vizdoom.GameVariable, name) for name in names]
