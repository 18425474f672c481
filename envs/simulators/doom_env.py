"""One Doom scenario as a Gymnasium environment.

The time limit is ours, not the engine's: the engine's own would end the episode and take away the last screen, and what
a truncated episode would have earned is judged by that screen. So the engine is told of no limit, and the last step is
cut to cover exactly the tics that the scenario allows. After a death or an exit there is no screen; the last one seen
is returned again, for nothing follows a terminated episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import vizdoom

from appo.envs.simulators.doom_engine import start_engine
from appo.envs.simulators.doom_games import find_config, load_game, press_table, variables
from appo.envs.simulators.doom_images import ImageStack, choose_resolution
from appo.envs.simulators.doom_scenarios import SCENARIOS, STATISTIC_NAMES, full_value, scenario_from_config

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
    images_channels_last = True

    def __init__(self, name: str, options: DoomOptions, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._game = game = load_game(find_config(name, options.doom_scenarios_dir))
        self._scenario = scenario = SCENARIOS.get(name) or scenario_from_config(
            [button.name for button in game.get_available_buttons()],
            [variable.name for variable in game.get_available_game_variables()],
        )
        game.set_available_buttons([getattr(vizdoom.Button, button) for button in scenario.buttons])
        game.set_available_game_variables(variables(scenario.measurements))
        self._tic_limit = game.get_episode_timeout()  # 0: none
        game.set_episode_timeout(0)

        self._frameskip = options.env_frameskip
        size = (options.res_w, options.res_h)
        resolution = choose_resolution(size, options.wide_aspect_ratio)
        game.set_screen_resolution(getattr(vizdoom.ScreenResolution, resolution.name))
        self._stack = ImageStack(size, options.env_framestack, resolution.interpolation)
        self._screen = np.zeros((resolution.height, resolution.width, 3), np.uint8)
        self._scales = np.array([1 / full_value(variable) for variable in scenario.measurements], np.float32)
        self._measurements = np.zeros(len(self._scales), np.float32)
        self._first_tic = self._tic = 0

        self._presses = [press_table(head, scenario) for head in scenario.heads]
        heads = [gymnasium.spaces.Discrete(len(head)) for head in scenario.heads]
        self.action_space = heads[0] if len(heads) == 1 else gymnasium.spaces.Tuple(heads)
        self.observation_space = self._observation_space()

    def _observation_space(self) -> gymnasium.spaces.Dict[Any]:
        observations: dict[str, gymnasium.Space[Any]] = {
            "obs": gymnasium.spaces.Box(0, 255, self._stack.images.shape, np.uint8)
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
        self._see(self._game.get_state(), self._stack.start)
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
            self._see(game.get_state(), self._stack.add)
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

    def _see(self, state: vizdoom.GameState, take_over: Callable[[np.ndarray], None]) -> None:
        """Take over the engine's screen and variables. Observations given out earlier keep theirs."""
        self._screen = state.screen_buffer  # an array of its own, not the engine's memory
        take_over(self._screen)
        if len(self._scales):
            self._measurements = np.multiply(np.asarray(state.game_variables), self._scales, dtype=np.float32)

    def _observation(self) -> Observation:
        images = self._stack.images
        if len(self._scales):
            return {"obs": images, "measurements": self._measurements}
        return {"obs": images}

    def _report_into(self, info: dict[str, Any]) -> None:
        read, scenario = self._game.get_game_variable, self._scenario
        named = zip(scenario.statistics, variables(scenario.statistics), strict=True)
        info["episode_extra_stats"] = {STATISTIC_NAMES.get(name, name.lower()): read(it) for name, it in named}
        if scenario.objective:
            info["true_reward"] = read(*variables((scenario.objective,)))
