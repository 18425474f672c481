"""Doom: what is seen, how episodes end, what a user's own scenario needs, and that engines leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
import vizdoom

from appo.envs.families.doom import NAMES, defaults
from appo.envs.simulators import doom_engine
from appo.envs.simulators.doom_engine import start_engine
from appo.envs.simulators.doom_matches import MATCHES
from appo.envs.simulators.doom_scenarios import SCENARIOS, scenario_from_config
from appo.utils.options import ConfigError
from tests.envs.doom_cases import make

WAITS, LEFT, RIGHT, SHOOTS = 0, 1, 2, 3  # in doom_basic
SHORT_BASIC = """
doom_scenario_path = basic.wad
doom_map = map01
living_reward = -1
render_hud = false
episode_start_time = 14
episode_timeout = 30
available_buttons = { MOVE_LEFT MOVE_RIGHT ATTACK }
available_game_variables = { AMMO2 }
"""


@pytest.fixture
def scenarios_dir(tmp_path):
    """A user's folder with one scenario, `short`: doom_basic cut after 30 tics."""
    (tmp_path / "short.cfg").write_text(SHORT_BASIC)
    shutil.copy(Path(vizdoom.scenarios_path) / "basic.wad", tmp_path)
    return tmp_path


def plain_images(config, seed, tics_of_steps):
    """The images after each step, with ViZDoom used as its manual says, and colours last."""
    game = vizdoom.DoomGame()
    game.load_config(str(config))
    game.set_window_visible(False)
    game.set_doom_config_path(os.devnull)
    game.set_episode_timeout(0)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.RGB24)
    game.init()
    game.set_seed(int(gymnasium.utils.seeding.np_random(seed)[0].integers(2**31)))
    game.new_episode()
    screens = [game.get_state().screen_buffer]
    for tics in tics_of_steps:
        game.make_action([0, 1, 0], tics)
        screens.append(game.get_state().screen_buffer)
    game.close()
    return [cv2.resize(screen, (128, 72), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1) for screen in screens]


def test_every_scenario_has_spaces_before_any_engine_runs():
    sizes = {}
    for name in NAMES:
        if name[5:] in MATCHES:
            continue  # see test_doom_multiplayer
        env = make(name)
        space = env.action_space
        sizes[name] = tuple(head.n for head in space) if isinstance(space, gymnasium.spaces.Tuple) else int(space.n)
        assert env.observation_space["obs"].shape == (3, 72, 128)
        assert ("measurements" in env.observation_space.spaces) == bool(SCENARIOS[name[5:]].measurements)
    assert sizes["doom_basic"] == 4 and sizes["doom_deathmatch"] == (3, 3, 7, 2, 2, 3)
    my_way_home = sizes["doom_my_way_home"]
    assert isinstance(my_way_home, int) and not my_way_home < 5


@pytest.mark.parametrize("name", ["doom_defend_the_center", "doom_deathmatch"])
def test_random_play_stays_within_the_spaces(name, built):
    env = built(name)
    env.action_space.seed(0)
    observation = env.reset(seed=0)[0]
    images = set()
    for _ in range(200):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert 0 < info["num_frames"] <= 4 and np.isfinite(reward)
        images.add(observation["obs"].tobytes())
        if terminated or truncated:
            env.reset()
    assert len(images) > 150
    assert 0 < np.abs(observation["measurements"]).max() < 5


def test_the_last_step_before_the_time_limit_is_cut_and_still_shows_its_screen(scenarios_dir, built):
    env = built("doom_short", doom_scenarios_dir=str(scenarios_dir))
    results: list[tuple[Any, ...]] = [(env.reset(seed=3)[0], 0.0, False, False, {"num_frames": 0})]
    results += [env.step(RIGHT) for _ in range(8)]  # 30 tics are 7 steps of 4 and one of 2
    frames = [info["num_frames"] for *_, info in results]
    assert frames == [0, 4, 4, 4, 4, 4, 4, 4, 2]
    assert [truncated for _, _, _, truncated, _ in results] == [False] * 8 + [True]
    assert not any(terminated for _, _, terminated, _, _ in results)
    assert sum(reward for _, reward, *_ in results) == -30
    assert results[-1][4]["episode_extra_stats"]["ammo"] == 50

    expected = plain_images(scenarios_dir / "short.cfg", 3, frames[1:])
    for (observation, *_), image in zip(results, expected, strict=True):
        assert np.array_equal(observation["obs"], image)
    assert not np.array_equal(expected[-1], expected[-2])  # the last image is not merely the one before


def test_without_a_time_limit_in_the_scenario_nothing_is_truncated(scenarios_dir, built):
    (scenarios_dir / "endless.cfg").write_text(SHORT_BASIC.replace("episode_timeout = 30", ""))
    env = built("doom_endless", doom_scenarios_dir=str(scenarios_dir), env_frameskip=40)
    env.reset(seed=0)
    steps = [env.step(WAITS) for _ in range(20)]  # doom_basic itself would end after 300 tics
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in steps)
    assert sum(info["num_frames"] for *_, info in steps) == 800


def test_a_death_terminates_and_repeats_the_last_image(built):
    env = built("doom_health_gathering")
    result: tuple[Any, ...] = (env.reset(seed=0)[0], 0.0, False, False, {})
    earned, frames = 0.0, 0
    while not result[2]:
        before, result = result[0], env.step(WAITS)
        earned, frames = earned + result[1], frames + result[4]["num_frames"]
        assert not result[3]
    assert frames == earned + 100  # 1 a tic, and 100 for dying
    assert np.array_equal(result[0]["obs"], before["obs"])
    assert result[4]["episode_extra_stats"]["health"] <= 0
    assert env.reset()[0]["measurements"] > 0.8


def test_killing_the_monster_terminates_doom_basic_with_frames_counted(built):
    env = built("doom_basic")
    env.reset(seed=1)
    rewards: list[float] = []
    terminated = False
    while not terminated and len(rewards) < 2000:
        step = len(rewards)
        _, reward, terminated, truncated, info = env.step((LEFT, SHOOTS, RIGHT)[step // 15 % 3 if step % 2 else 1])
        rewards.append(reward)
        assert 0 < info["num_frames"] <= 4
        if truncated:
            env.reset()
    assert terminated and info["episode_extra_stats"]["kills"] == 1
    assert sum(rewards[-3:]) > 90  # the level is left a few tics after the kill


def test_kills_are_the_objective_of_a_deathmatch(built):
    env = built("doom_deathmatch")
    env.reset(seed=0)
    info = {}
    while "episode_extra_stats" not in info:
        info = env.step((0, 0, 5, 1, 0, 0))[4]  # turns and shoots
    assert info["true_reward"] == info["episode_extra_stats"]["kills"]


def test_the_seed_decides_everything(built):
    def digests(env, seed, episodes=3):
        found = []
        for episode in range(episodes):
            env.reset(seed=seed if episode == 0 else None)
            found.append(b"".join(env.step(1 + step % 2)[0]["obs"].tobytes() for step in range(10)))
        return found

    env, other = built("doom_health_gathering"), built("doom_health_gathering")
    first = digests(env, 1)
    assert first == digests(other, 1) == digests(env, 1)
    assert len({*first, *digests(env, 2)}) == 6


def test_stacked_images_are_the_last_ones_oldest_first(built):
    env, single = built("doom_basic", env_framestack=3), built("doom_basic")
    stacked, images = [env.reset(seed=2)[0]["obs"]], [single.reset(seed=2)[0]["obs"]]
    for _ in range(4):
        stacked.append(env.step(LEFT)[0]["obs"])
        images.append(single.step(LEFT)[0]["obs"])
    assert len({image.tobytes() for image in images}) == 5
    images = [images[0]] * 2 + images
    for step, stack in enumerate(stacked):
        assert np.array_equal(stack, np.concatenate(images[step : step + 3]))


@pytest.mark.parametrize(
    "options, screen", [({}, (120, 160)), ({"wide_aspect_ratio": True}, (144, 256)), ({"res_w": 300}, (240, 320))]
)
def test_the_engine_draws_the_smallest_screen_that_holds_the_image(options, screen, built):
    env = built("doom_basic", "rgb_array", **options)
    observation = env.reset(seed=0)[0]
    assert observation["obs"].shape == (3, 72, options.get("res_w", 128))
    assert env.render().shape == (*screen, 3)
    assert env.render().mean(axis=(0, 1)) == pytest.approx(observation["obs"].mean(axis=(1, 2)), abs=3)


def test_few_buttons_become_one_choice_and_many_a_choice_each():
    few = scenario_from_config(["MOVE_LEFT", "MOVE_RIGHT", "ATTACK"], [])
    assert [len(head) for head in few.heads] == [4]
    walk = ["ATTACK", "USE", "MOVE_FORWARD", "MOVE_BACKWARD", "MOVE_LEFT", "TURN_LEFT"]
    many = scenario_from_config([*walk, "SELECT_WEAPON1", "SELECT_WEAPON2"], ["HEALTH", "KILLCOUNT"])
    assert [len(head) for head in many.heads] == [3, 2, 2, 3, 2, 2]
    assert many.objective == "KILLCOUNT" and set(many.buttons) >= {"ATTACK", "USE", "SELECT_WEAPON2"}
    aiming = scenario_from_config(["ATTACK", "TURN_LEFT", "TURN_RIGHT", "TURN_LEFT_RIGHT_DELTA"], [])
    assert aiming.buttons == ("ATTACK", "TURN_LEFT_RIGHT_DELTA")


def test_a_missing_scenario_names_the_folders_and_what_they_hold(scenarios_dir):
    with pytest.raises(ConfigError, match=r"doom_battle: .*defend_the_center.*--doom_scenarios_dir"):
        make("doom_battle")
    with pytest.raises(ConfigError) as raised:
        make("doom_battle", doom_scenarios_dir=str(scenarios_dir))
    assert f"{scenarios_dir} holds short" in str(raised.value)
    with pytest.raises(ConfigError, match="is no folder"):
        make("doom_battle", doom_scenarios_dir=str(scenarios_dir / "nowhere"))
    with pytest.raises(ConfigError, match=r"for doom_basics; did you mean doom_basic\? .* holds"):
        make("doom_basics")
    with pytest.raises(ConfigError, match="there is no scenario file"):
        make("doom_../short", doom_scenarios_dir=str(scenarios_dir))


def test_a_broken_scenario_is_refused_before_an_engine_starts(scenarios_dir):
    (scenarios_dir / "no_wad.cfg").write_text(SHORT_BASIC.replace("basic.wad", "lost.wad"))
    with pytest.raises(ConfigError, match=r"no_wad.cfg names the scenario .*lost.wad"):
        make("doom_no_wad", doom_scenarios_dir=str(scenarios_dir))
    with pytest.raises(
        ConfigError, match=r"^doom.cfg names no scenario, but the whole game; type doom_<scenario>, such"
    ):
        make("doom")


class FailingGame:
    """A game whose engine fails to start a number of times."""

    def __init__(self, failures):
        self.failures, self.starts, self.closes = failures, 0, 0

    def init(self):
        self.starts += 1
        if self.starts <= self.failures:
            raise vizdoom.ViZDoomErrorException("no luck")

    def close(self):
        self.closes += 1

    def get_instance_id(self):
        return "of-nobody"

    def set_doom_config_path(self, path):
        pass

    def set_vizdoom_path(self, path):
        pass


def test_an_engine_that_fails_to_start_is_tried_again(monkeypatch):
    monkeypatch.setattr(doom_engine, "_FIRST_PAUSE_S", 0.001)
    game = FailingGame(failures=2)
    start_engine(game)  # type: ignore[arg-type]  # stands in for an engine
    assert (game.starts, game.closes) == (3, 2)
    game = FailingGame(failures=100)
    with pytest.raises(RuntimeError, match="did not start in 4 attempts: no luck"):
        start_engine(game)  # type: ignore[arg-type]  # stands in for an engine
    assert game.starts == game.closes == 4


PLAYER = """
import sys, hashlib
from appo.envs.api import EnvContext
from appo.envs.families.doom import FAMILY
env = FAMILY.make("doom_take_cover", FAMILY.config(), EnvContext())
env.reset(seed=4)
images = [env.step(1)[0]["obs"].tobytes() for _ in range(10)]
print(hashlib.sha1(b"".join(images)).hexdigest(), flush=True)
sys.stdin.readline()
"""


def start_player():
    return subprocess.Popen(
        [sys.executable, "-c", PLAYER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )


def engines_of(pid):
    """Process ids of the Doom engines that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == pid and status[0] != "Z" and b"+viz_instance_id" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def test_two_processes_play_side_by_side_and_a_killed_one_takes_its_engine_along():
    players = [start_player(), start_player()]
    try:
        digests = [player.stdout.readline() for player in players]  # both are alive when both have answered
        assert digests[0] == digests[1] != ""
        (engine,) = engines_of(players[0].pid)
        assert os.getpgid(engine) != os.getpgid(players[0].pid)  # Ctrl+C in the terminal does not reach it
        assert not [path for path in Path("/dev/shm").glob("ViZDoom*") if is_open_in(engine, path)]
        players[0].send_signal(signal.SIGKILL)
        players[0].wait(timeout=10)
        deadline = time.monotonic() + 5
        while is_running(engine) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(engine)
        assert len(engines_of(players[1].pid)) == 1
    finally:
        for player in players:
            player.kill()
            player.communicate()


def is_open_in(pid, path):
    try:
        return any(link.exists() and link.samefile(path) for link in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # the name is gone: it was that of an engine of another test, which has just started
        return False


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_closing_ends_the_engine_and_nothing_is_left_where_the_user_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make("doom_basic")
    env.reset(seed=0)
    assert len(engines_of(os.getpid())) == 1
    env.close()
    env.close()
    assert not engines_of(os.getpid())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["doom_my_way_home", "doom_deadly_corridor"])
def test_a_scenario_that_pays_rarely_learns_from_longer_iterations(name):
    rare, others = defaults(name), defaults("doom_basic")
    rows = [each["batch_size"] * each["num_batches_per_iteration"] for each in (rare, others)]
    assert rows == [4096, 512] and rare["gamma"] == 0.995 and "gamma" not in others


def test_importing_the_family_imports_no_simulator():
    code = "import sys, appo.envs.families.doom; "
    code += "sys.exit(any(name in sys.modules for name in ('vizdoom', 'cv2', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
