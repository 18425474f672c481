"""Atari against a slow plain reimplementation, and the rules of how its episodes start and end."""

import itertools
import subprocess
import sys
from typing import Any

import ale_py
import ale_py.roms
import cv2
import gymnasium
import numpy as np
import pytest

from appo.envs.api import EnvContext
from appo.envs.families.atari import FAMILY, AtariOptions
from appo.utils.options import ConfigError

NOOP, FIRE = 0, 1


def make(name="atari_breakout", render_mode=None, **options):
    return FAMILY.make(name, AtariOptions(**options), EnvContext(render_mode=render_mode))


def play(env, actions, seed):
    """What each step returned, and the observation of each reset in the same form, resetting where an episode ends."""
    results: list[tuple[Any, ...]] = [(env.reset(seed=seed)[0], 0.0, False, False, {})]
    for action in actions:
        results.append(env.step(action))
        if results[-1][2] or results[-1][3]:
            results.append((env.reset()[0], 0.0, False, False, {}))
    return results


def actions_of(env, count, seed=0):
    return np.random.default_rng(seed).integers(env.action_space.n, size=count)


class PlainAtari:
    """The preprocessing as the papers tell it: one frame at a time, everything copied, nothing shared."""

    def __init__(self, game, seed, sticky=0.0):
        self.rng = gymnasium.utils.seeding.np_random(seed)[0]
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", sticky)
        self.ale.setInt("random_seed", int(self.rng.integers(2**31)))
        rom = ale_py.roms.get_rom_path(game)
        assert rom is not None
        self.ale.loadROM(rom)
        self.buttons = self.ale.getMinimalActionSet()

    def hold(self, button, frames=4):
        screens, reward = [], 0
        for _ in range(frames):
            if self.ale.game_over():
                break
            reward += self.ale.act(button)
            screens.append(self.ale.getScreenGrayscale().astype(np.int32))
        last_two = screens[-2:] if len(screens) == frames else screens[-1:]
        self.image = cv2.resize(np.max(last_two, axis=0).astype(np.uint8), (84, 84), interpolation=cv2.INTER_AREA)
        return reward

    def start_episode(self):
        if self.ale.game_over() or self.ale.getEpisodeFrameNumber() == 0:
            self.ale.reset_game()
            for _ in range(self.rng.integers(1, 31)):
                self.ale.act(ale_py.Action.NOOP)
        else:
            self.hold(ale_py.Action.NOOP)
        self.hold(ale_py.Action.FIRE)
        self.lives, self.images = self.ale.lives(), [self.image] * 4
        return np.stack(self.images)

    def step(self, action):
        reward = self.hold(self.buttons[action])
        self.images = [*self.images[1:], self.image]
        lost_life, self.lives = 0 < self.ale.lives() < self.lives, self.ale.lives()
        return np.stack(self.images), reward, lost_life or self.ale.game_over()


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_equals_the_plain_preprocessing_over_several_lives_and_games(sticky):
    env, plain = make(atari_repeat_action_probability=sticky), PlainAtari("breakout", 7, sticky)
    observation = env.reset(seed=7)[0]
    assert np.array_equal(observation, plain.start_episode())
    rewards, lives, games = 0, 0, 0
    for action in actions_of(env, 700):
        observation, reward, terminated, truncated, info = env.step(action)
        expected, expected_reward, expected_end = plain.step(action)
        assert (reward, terminated, truncated) == (expected_reward, expected_end, False)
        assert np.array_equal(observation, expected)
        rewards += reward
        if terminated:
            lives, games = lives + 1, games + ("true_reward" in info)
            assert np.array_equal(env.reset()[0], plain.start_episode())
    assert rewards > 0 and lives > 5 and games >= 1  # otherwise this test would prove little


def test_the_newest_image_is_last_and_earlier_observations_stay_as_they_were():
    env = make()
    observations = [env.reset(seed=1)[0]]
    copies = [observations[0].copy()]
    for action in [3] * 20:  # a steady move, so that each image differs
        observations.append(env.step(action)[0])
        copies.append(observations[-1].copy())
    for before, after in itertools.pairwise(observations):
        assert np.array_equal(after[:3], before[1:])
    assert not np.array_equal(observations[4][3], observations[4][2])
    assert (observations[0] == observations[0][0]).all()
    assert all(map(np.array_equal, observations, copies))


@pytest.mark.parametrize("name", ["atari_space_invaders", "ALE/Pong-v5"])
def test_random_play_stays_within_the_spaces(name):
    env = make(name)
    results = play(env, actions_of(env, 200), seed=3)
    assert all(env.observation_space.contains(result[0]) for result in results)
    assert len({result[0].tobytes() for result in results}) > 150
    steps = [result for result in results if result[4]]
    assert len(steps) == 200 and {info["num_frames"] for *_, info in steps} <= {1, 2, 3, 4}


def test_frames_of_all_steps_are_the_frames_of_the_game():
    env = make(atari_noop_max=0, atari_fire_reset=False, atari_episodic_life=False)
    results = play(env, [FIRE] + [FIRE, 2, 3] * 300, seed=0)
    end = next(index for index, result in enumerate(results) if result[2])
    frames = [info["num_frames"] for *_, info in results[1 : end + 1]]
    assert sum(frames) == results[end][4]["episode_extra_stats"]["game_frames"]
    assert set(frames[:-1]) == {4}


def test_losing_a_life_ends_the_episode_and_only_the_last_life_ends_the_game():
    env = make("atari_breakout")
    results = play(env, [NOOP] * 250, seed=0)  # FIRE serves the ball, and nobody plays it
    infos = [info for _, _, terminated, _, info in results if terminated]
    assert ["true_reward" in info for info in infos[:6]] == [False] * 4 + [True, False]
    scores = sum(reward for _, reward, *_ in results[: 1 + [i for i, r in enumerate(results) if r[2]][4]])
    assert infos[4]["true_reward"] == infos[4]["episode_extra_stats"]["game_score"] == scores


def test_without_episodic_life_one_episode_is_one_game():
    env = make(atari_episodic_life=False)
    env.reset(seed=0)
    steps = [env.step(FIRE) for _ in range(250)]
    end = [terminated for _, _, terminated, _, _ in steps].index(True)
    assert "true_reward" in steps[end][4]
    assert not any("true_reward" in info for *_, info in steps[:end])


def test_whole_games_go_on_after_a_lost_life_as_episodes_of_one_life_begin():
    lives, games = make(), make(atari_episodic_life=False)
    lives.reset(seed=2)
    games.reset(seed=2)
    lost, score, is_over = 0, 0.0, False
    actions = iter(actions_of(games, 2000))
    while not is_over:
        action = next(actions)
        seen, _, has_ended, *_ = lives.step(action)
        whole, reward, is_over, _, info = games.step(action)
        score += reward
        if has_ended and not is_over:
            lost += 1
            seen = lives.reset()[0]
            assert info["num_frames"] == 12, "the action, idling, FIRE"
        assert has_ended or not is_over
        assert np.array_equal(seen, whole)
    assert lost == 4 and score == info["true_reward"]


def test_without_fire_breakout_never_begins():
    lives_lost = {}
    for fires in (True, False):
        results = play(make(atari_fire_reset=fires), [NOOP] * 150, seed=0)
        lives_lost[fires] = sum(terminated for _, _, terminated, _, _ in results)
    assert lives_lost[True] > 0 and lives_lost[False] == 0


def test_idle_starts_differ_and_are_bounded():
    env = make(atari_noop_max=5, atari_fire_reset=False, atari_max_frames=8, env_frameskip=1)
    starts = []
    for seed in range(12):
        env.reset(seed=seed)
        steps = 0
        while not env.step(NOOP)[3]:
            steps += 1
        starts.append(8 - (steps + 1))
    assert set(starts) <= {1, 2, 3, 4, 5} and len(set(starts)) > 2


def test_a_game_that_runs_out_of_time_is_truncated_and_the_next_one_is_new():
    env = make(atari_max_frames=60, atari_noop_max=0, atari_fire_reset=False)
    first = env.reset(seed=0)[0]
    steps = [env.step(FIRE) for _ in range(15)]
    assert [truncated for _, _, _, truncated, _ in steps] == [False] * 14 + [True]
    assert not any(terminated for _, _, terminated, _, _ in steps)
    assert steps[-1][4]["true_reward"] == sum(reward for _, reward, *_ in steps)
    assert not np.array_equal(steps[-1][0], first)
    assert np.array_equal(env.reset()[0], first)


def test_the_seed_decides_everything():
    def digest(env, seed):
        return [result[0].tobytes() for result in play(env, actions_of(env, 60), seed)]

    env, other = make(atari_repeat_action_probability=0.25), make(atari_repeat_action_probability=0.25)
    first = digest(env, 5)
    assert first == digest(other, 5) == digest(env, 5)
    assert first != digest(env, 6)


def test_sticky_actions_change_the_game():
    env, sticky = make(), make(atari_repeat_action_probability=0.5)
    actions = actions_of(env, 40)
    assert not np.array_equal(play(env, actions, 1)[-1][0], play(sticky, actions, 1)[-1][0])
    assert FAMILY.defaults("ALE/Breakout-v5")["atari_repeat_action_probability"] == 0.25
    assert "atari_repeat_action_probability" not in FAMILY.defaults("atari_breakout")


def test_rendering_shows_the_screen_in_colour():
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)
    assert len(np.unique(env.render().reshape(-1, 3), axis=0)) > 3


def test_an_unknown_game_is_refused_with_what_is_close():
    with pytest.raises(ConfigError, match="atari_space_invaders"):
        make("ALE/SpaceInvader-v5")
    with pytest.raises(ConfigError, match=r"there are: .*atari_breakout"):
        make("atari_zzz")


def test_importing_the_family_imports_no_simulator():
    code = "import sys, appo.envs.families.atari; "
    code += "sys.exit(any(name in sys.modules for name in ('ale_py', 'cv2', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
