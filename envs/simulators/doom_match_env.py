"""Doom matches as environments: among agents in PettingZoo's parallel interface, against bots in Gymnasium's.

A match goes on when a player dies: the player sees what a dead one sees until the game lets it respawn. All leave
together, truncated when the time is over, terminated if the map itself ends the match. A seed does not repeat a match:
engines draw some of their random numbers by the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from appo.envs.simulators.doom_games import find_first_config, load_game, press_table
from appo.envs.simulators.doom_images import ImageStack, choose_resolution
from appo.envs.simulators.doom_match import DoomMatch, MatchError
from appo.envs.simulators.doom_matches import FIGHTER, MATCHES, MatchPlan, map_of, party
from appo.envs.simulators.doom_scenarios import STATISTIC_NAMES, full_value
from appo.envs.simulators.doom_shaping import AGENTS_WEIGHTS, BOTS_WEIGHTS, Shaping

if TYPE_CHECKING:
    from appo.envs.families.doom import DoomOptions

Observation = dict[str, Any]  # of arrays
_MOST_MEASURED = 5.0  # in units of full values
_SCREENS_IN_A_ROW = 4


class DoomMatchEnv:
    """A match of one or more agents, and bots; its process is started by the first `reset`.

    Observation: `obs`, uint8 [3 * stack, height, width], and `measurements`, float32, see `doom_matches.FIGHTER`.
    Reward: what `doom_shaping` says, and the scenario's own, of all tics of a step. The last infos of an episode hold
    `true_reward`, the frags, and `episode_extra_stats`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 35}  # noqa: RUF012 - Gymnasium's own way to declare it
    action_mask_in_info = False
    images_channels_last = True

    def __init__(self, name: str, options: DoomOptions, render_mode: str | None = None) -> None:
        """Prepare the match `name`, one of `MATCHES`.

        Raises:
            ConfigError: these players cannot play it, or its scenario's files are missing or cannot be read.
        """
        self.render_mode = render_mode
        kind, self._party = MATCHES[name], party(name, options)
        config = find_first_config(kind.files, options.doom_scenarios_dir)
        load_game(config)  # refuses what cannot be read before a process is started
        size = (options.res_w, options.res_h)
        resolution = choose_resolution(size, options.wide_aspect_ratio)

        agents = self._party.num_agents
        weights = BOTS_WEIGHTS if agents == 1 else AGENTS_WEIGHTS
        self._shapings = [Shaping(weights) for _ in range(agents)]
        named = (*FIGHTER.measurements, *FIGHTER.statistics, FIGHTER.objective, *self._shapings[0].variables)
        self._plan = MatchPlan(
            config=str(config),
            map_name=map_of(kind, config),
            resolution=resolution.name,
            width=resolution.width,
            height=resolution.height,
            buttons=FIGHTER.buttons,
            variables=tuple(dict.fromkeys(named)),
            num_players=agents,
            num_bots=self._party.num_bots,
            respawn_delay_s=kind.respawn_delay_s,
        )
        self._frameskip = options.env_frameskip
        self._measured = self._columns(FIGHTER.measurements)
        self._scales = np.array([1 / full_value(variable) for variable in FIGHTER.measurements])
        # A telefragged player's health is a million below 0; only frags mean something there.
        self._lowest = np.array([-_MOST_MEASURED if name == "FRAGCOUNT" else 0.0 for name in FIGHTER.measurements])
        self._shaped = self._columns(self._shapings[0].variables)
        self._told = self._columns(FIGHTER.statistics)
        self._presses = [np.array(press_table(head, FIGHTER)) for head in FIGHTER.heads]

        self.possible_agents = [f"player_{i}" for i in range(agents)]
        self.agents: list[str] = []
        self._stacks = [ImageStack(size, options.env_framestack, resolution.interpolation) for _ in range(agents)]
        self._action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(len(head)) for head in FIGHTER.heads])
        self._observation_space = gymnasium.spaces.Dict(
            {
                "obs": gymnasium.spaces.Box(0, 255, self._stacks[0].images.shape, np.uint8),
                "measurements": gymnasium.spaces.Box(
                    -_MOST_MEASURED, _MOST_MEASURED, (len(FIGHTER.measurements),), np.float32
                ),
            }
        )
        self.np_random = np.random.default_rng()
        self.match: DoomMatch | None = None
        """None before the first reset, and after a failure."""
        self._tic = 0
        self._first = self._latest = np.zeros((agents, len(self._plan.variables)))

    def _columns(self, variables: tuple[str, ...]) -> list[int]:
        return [self._plan.variables.index(variable) for variable in variables]

    @property
    def unwrapped(self) -> DoomMatchEnv:
        """Itself, as PettingZoo's environments say it; `np_random` is its source of seeds."""
        return self

    def observation_space(self, agent: str) -> gymnasium.spaces.Dict[Any]:
        """The same for all."""
        return self._observation_space

    def action_space(self, agent: str) -> gymnasium.spaces.Tuple:
        """The same for all."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, dict[str, Any]]]:
        """Begin a match with everybody alive.

        Raises:
            MatchError: its engines did not start, or one of them died or is stuck; the next reset starts others.
        """
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        try:
            if self.match is None:
                self.match = DoomMatch(self._plan._replace(seed=int(self.np_random.integers(2**31))))
            self.match.start()
        except MatchError:
            self.match = None
            raise
        self.agents, self._tic = list(self.possible_agents), 0
        board = self.match.board
        self._first = self._latest = board.numbers.copy()
        for stack, screen in zip(self._stacks, board.screens, strict=True):
            stack.start(screen)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Hold everybody's chosen buttons for `env_frameskip` tics, fewer when the match ends.

        Raises:
            MatchError: an engine died or is stuck; the next reset starts others.
        """
        if self.match is None:
            raise MatchError("the match is over; reset it")
        board, tics = self.match.board, min(self._frameskip, self._party.num_tics - self._tic)
        for i, agent in enumerate(self.possible_agents):
            pressed = [table[int(choice)] for table, choice in zip(self._presses, actions[agent], strict=True)]
            board.actions[i] = np.sum(pressed, axis=0)
        try:
            played, has_ended = self.match.step(tics)
        except MatchError:
            self.match = None
            raise
        return self._results(played, has_ended)

    def _results(self, played: int, has_ended: bool) -> tuple[dict[str, Any], ...]:
        assert self.match is not None
        board, acting = self.match.board, self.possible_agents
        before, self._latest = self._latest[:, self._shaped], board.numbers.copy()
        after = self._latest[:, self._shaped]
        rewards = {
            agent: float(board.rewards[i]) + self._shapings[i].reward(before[i], after[i])
            for i, agent in enumerate(acting)
        }
        self._tic += played
        for stack, screen in zip(self._stacks, board.screens, strict=True):
            stack.add(screen)
        is_over = has_ended or self._tic >= self._party.num_tics
        infos: dict[str, dict[str, Any]] = {agent: {"num_frames": max(1, played)} for agent in acting}
        if is_over:
            self._report_into(infos)
            self.agents = []
        terminated = dict.fromkeys(acting, has_ended)
        return self._observe(), rewards, terminated, dict.fromkeys(acting, is_over and not has_ended), infos

    def _report_into(self, infos: dict[str, dict[str, Any]]) -> None:
        brought = (self._latest - self._first)[:, self._told]
        for info, numbers in zip(infos.values(), brought.tolist(), strict=True):
            named = dict(zip(FIGHTER.statistics, numbers, strict=True))
            info["episode_extra_stats"] = {STATISTIC_NAMES.get(name, name.lower()): n for name, n in named.items()}
            info["true_reward"] = named[FIGHTER.objective]

    def _observe(self) -> dict[str, Observation]:
        scaled = np.clip(self._latest[:, self._measured] * self._scales, self._lowest, _MOST_MEASURED)
        measurements = scaled.astype(np.float32)
        return {
            agent: {"obs": stack.images, "measurements": measurements[i]}
            for i, (agent, stack) in enumerate(zip(self.possible_agents, self._stacks, strict=True))
        }

    def render(self) -> np.ndarray | None:
        """What the players see now, side by side, [height, width, 3]."""
        if self.render_mode != "rgb_array" or self.match is None:
            return None
        screens = self.match.board.screens
        in_a_row = min(_SCREENS_IN_A_ROW, len(screens))
        missing = -len(screens) % in_a_row
        shown = np.concatenate((screens, np.zeros((missing, *screens.shape[1:]), np.uint8)))
        return np.concatenate(
            [np.concatenate(shown[i : i + in_a_row], axis=1) for i in range(0, len(shown), in_a_row)], axis=0
        )

    def get_reward_shaping(self) -> dict[str, float]:
        """The first agent's weights, see `doom_shaping`."""
        return self._shapings[0].weights

    def set_reward_shaping(self, weights: dict[str, float]) -> None:
        """Give all agents these weights."""
        for agent in range(len(self._shapings)):
            self.set_agent_reward_shaping(agent, weights)

    def set_agent_reward_shaping(self, agent: int, weights: dict[str, float]) -> None:
        """Give one agent these weights."""
        self._shapings[agent].weights = weights

    def close(self) -> None:
        """End the match; called any number of times."""
        match, self.match = self.match, None
        if match is not None:
            match.close()


class DoomBotsEnv(gymnasium.Env[Observation, Any]):
    """A match of one agent against bots, see `DoomMatchEnv`."""

    metadata = DoomMatchEnv.metadata
    action_mask_in_info = False
    images_channels_last = True

    def __init__(self, name: str, options: DoomOptions, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.among = DoomMatchEnv(name, options, render_mode)
        (self._agent,) = self.among.possible_agents
        self.observation_space = self.among.observation_space(self._agent)
        self.action_space = self.among.action_space(self._agent)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """See `DoomMatchEnv.reset`."""
        super().reset(seed=seed)
        observations, infos = self.among.reset(int(self.np_random.integers(2**31)))
        return observations[self._agent], infos[self._agent]

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """See `DoomMatchEnv.step`."""
        observation, reward, terminated, truncated, info = (
            results[self._agent] for results in self.among.step({self._agent: action})
        )
        return observation, reward, terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """What the agent sees now."""
        return self.among.render()

    def get_reward_shaping(self) -> dict[str, float]:
        """The weights now in force, see `doom_shaping`."""
        return self.among.get_reward_shaping()

    def set_reward_shaping(self, weights: dict[str, float]) -> None:
        """Take new weights, from the next step on."""
        self.among.set_reward_shaping(weights)

    def close(self) -> None:
        """End the match; called any number of times."""
        self.among.close()
