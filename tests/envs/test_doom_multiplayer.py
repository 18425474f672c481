"""Doom matches with real engines: who earns what, how a match ends, and what the loss of an engine costs."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import vizdoom

from appo.envs.adapters import step_arrays
from appo.envs.api import AgentRewardShaping, EnvContext, RewardShaping
from appo.envs.families.doom import DoomOptions
from appo.envs.faults import FaultPolicy
from appo.envs.registry import make_batch_env
from appo.envs.simulators import doom_match
from appo.envs.simulators.doom_match import MatchError
from appo.envs.simulators.doom_match_process import has_port, require_players
from appo.envs.vector.serial import SerialVecEnv
from appo.envs.wrappers import find_ability
from appo.utils.options import ConfigError
from benchmarks.faults import run_watch
from tests.envs.doom_cases import make

WAITS = (0, 0, 0, 0, 0, 0, 0)
WALKS = (1, 0, 0, 0, 0, 0, 0)  # into the pool in the middle of ViZDoom's duel, which kills
TURNS = (0, 0, 0, 0, 0, 0, 6)
SHOOTS = (0, 0, 0, 1, 0, 0, 0)


@pytest.fixture
def own_temporary(tmp_path_factory, monkeypatch):
    """A folder for temporary files that no other test uses."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def both(first, second):
    return {"player_0": first, "player_1": second}


def processes():
    """pid -> (parent, command line) of everything that runs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in ("Z", "X"):
                found[int(folder.name)] = (int(parent), (folder / "cmdline").read_bytes().decode())
        except OSError:  # it has just ended
            continue
    return found


def engines_of(match_pid):
    """The host first."""
    found = [(pid, line) for pid, (parent, line) in processes().items() if parent == match_pid]
    found = [(pid, line) for pid, line in found if "+viz_instance_id" in line]
    return [pid for pid, _ in sorted(found, key=lambda entry: "-join" in entry[1])]


def leftovers(memory_before):
    """Names that no living process uses, and folders. Other tests start engines: names may be in the making."""
    deadline = time.monotonic() + 5
    while memory := run_watch.abandoned_shared_memory(memory_before):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return memory | {path.name for path in Path(tempfile.gettempdir()).iterdir()}


def names_in_use(pid):
    """Names in shared memory of what a process has mapped."""
    found = re.findall(r"/dev/shm/(ViZDoom\w+)", Path(f"/proc/{pid}/maps").read_text())
    assert found
    return {name for name in found if Path("/dev/shm", name).exists()}


def all_end(pids, seconds=5.0):
    deadline = time.monotonic() + seconds
    while set(pids) & set(processes()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not set(pids) & set(processes())


def test_who_takes_part_is_known_before_any_engine_runs():
    duel, crowd = make("doom_duel"), make("doom_multi_deathmatch", doom_num_agents=3)
    assert duel.possible_agents == ["player_0", "player_1"] and len(crowd.possible_agents) == 3
    assert [head.n for head in duel.action_space("player_0")] == [3, 3, 8, 2, 2, 2, 11]
    assert duel.observation_space("player_1")["obs"].shape == (3, 72, 128)
    assert find_ability(duel, AgentRewardShaping) is duel
    assert duel.unwrapped.np_random  # what serial runs remember of an environment
    for name in ("doom_duel_bots", "doom_deathmatch_bots"):
        env = make(name)
        assert not hasattr(env, "possible_agents") and find_ability(env, RewardShaping) is env
        assert env.action_space == duel.action_space("player_0")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("doom_duel", {"doom_num_agents": 3}, r"doom_num_agents=3, but doom_duel takes 2 agents.*multi_deathmatch"),
        ("doom_duel", {"doom_num_bots": 1}, r"doom_num_bots=1, but doom_duel takes 0 bots.*doom_duel_bots"),
        ("doom_deathmatch_bots", {"doom_num_agents": 2}, "takes 1 agents"),
        ("doom_multi_deathmatch", {"doom_num_agents": 9, "doom_num_bots": 8}, "nearest: doom_num_bots=7"),
        ("doom_basic", {"doom_num_bots": 1}, "doom_num_bots=1, but doom_basic is played alone; for: doom_duel, "),
        ("doom_deathmatch", {"doom_match_minutes": 2.0}, "doom_deathmatch is played alone"),
    ],
)
def test_players_that_make_no_sense_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make(name, **options)


def test_a_duel_goes_on_after_a_death_and_ends_for_both_when_the_time_is_over(built):
    env = built("doom_duel", "rgb_array", doom_match_minutes=0.1)  # 210 tics: 52 steps of 4 and one of 2
    assert set(env.reset(seed=1)[0]) == {"player_0", "player_1"}
    results = []
    while env.agents:
        results.append(env.step(both(WALKS, WAITS)))
        observations, _, _, _, infos = results[-1]
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
    frames = [result[4]["player_0"]["num_frames"] for result in results]
    assert frames == [4] * 52 + [2]
    assert [all(result[3].values()) for result in results] == [False] * 52 + [True]
    assert not any(any(result[2].values()) for result in results)

    walker, waiter = infos["player_0"], infos["player_1"]
    assert walker["true_reward"] == walker["episode_extra_stats"]["frags"] < 0
    deaths = walker["episode_extra_stats"]["deaths"]
    assert deaths >= 1 and waiter["true_reward"] == waiter["episode_extra_stats"]["deaths"] == 0
    is_dead = [result[0]["player_0"]["measurements"][5] for result in results]
    assert {0.0, 1.0} == set(is_dead)  # it died, was seen dead, and came back
    assert is_dead.index(1.0) < len(is_dead) - 1 - is_dead[::-1].index(0.0)
    earned = {agent: sum(result[1][agent] for result in results) for agent in env.possible_agents}
    assert earned["player_0"] < -deaths and earned["player_1"] == pytest.approx(0, abs=0.02)
    assert not np.array_equal(*(observations[agent]["obs"] for agent in env.possible_agents))
    assert env.render().shape == (120, 2 * 160, 3)

    pid = env.match.pid
    assert env.reset()[0]["player_0"]["measurements"][0] == 1 and env.match.pid == pid  # the same engines go on
    assert env.step(both(WAITS, WAITS))[4]["player_0"]["num_frames"] == 4


def test_each_agent_has_weights_of_its_own(built):
    env = built("doom_duel", doom_match_minutes=0.2)
    nothing = dict.fromkeys(env.get_reward_shaping(), 0.0)
    env.set_agent_reward_shaping(0, nothing)
    env.set_agent_reward_shaping(1, nothing | {"death": -7.0})
    env.reset(seed=1)
    rewards, infos = [], {}
    while env.agents:
        _, reward, _, _, infos = env.step(both(WALKS, WALKS))
        rewards.append((reward["player_0"], reward["player_1"]))
    first, second = np.sum(rewards, axis=0)
    deaths = [infos[agent]["episode_extra_stats"]["deaths"] for agent in env.possible_agents]
    assert min(deaths) >= 1
    assert first == 0 and second == -7 * deaths[1]


def test_the_reward_of_a_step_is_that_of_all_its_tics(built, tmp_path):
    """In a scenario of the user's own, which is preferred to ViZDoom's."""
    shutil.copy(Path(vizdoom.scenarios_path) / "multi_duel.wad", tmp_path)
    (tmp_path / "duel.cfg").write_text("doom_scenario_path = multi_duel.wad\nliving_reward = 2\ndeath_penalty = 100\n")
    env = built("doom_duel", doom_scenarios_dir=str(tmp_path), env_frameskip=7, doom_match_minutes=0.05)
    env.set_reward_shaping(dict.fromkeys(env.get_reward_shaping(), 0.0))
    env.reset(seed=1)
    while env.agents:
        _, rewards, _, _, infos = env.step(both(WALKS, WAITS))
        assert set(rewards.values()) == {2.0 * infos["player_0"]["num_frames"]}


def test_a_map_that_ends_by_itself_terminates_for_all_and_can_begin_again(built, tmp_path):
    shutil.copy(Path(vizdoom.scenarios_path) / "multi_duel.wad", tmp_path)
    (tmp_path / "duel.cfg").write_text("doom_scenario_path = multi_duel.wad\ngame_args = +timelimit 0.05\n")
    env = built("doom_duel", doom_scenarios_dir=str(tmp_path))
    for _ in range(2):
        env.reset()
        results = []
        while env.agents:
            results.append(env.step(both(WAITS, TURNS)))
        assert 5 < len(results) <= 27  # 105 tics, some of which passed before everybody was alive
        _, rewards, terminated, truncated, infos = results[-1]
        assert all(terminated.values()) and not any(truncated.values())
        assert set(rewards.values()) == {0.0} and all("true_reward" in info for info in infos.values())


def test_bots_join_and_join_again(built):
    env = built("doom_deathmatch_bots", doom_num_bots=3, doom_match_minutes=0.02)
    for _ in range(2):
        observation = env.reset(seed=1)[0]
        assert observation["measurements"][7] == pytest.approx(0.4)  # tens of players
        truncated = False
        while not truncated:
            *_, truncated, info = env.step(SHOOTS)
        assert set(info["episode_extra_stats"]) >= {"frags", "deaths", "hits", "damage"}
    assert len(engines_of(env.among.match.pid)) == 1


def test_a_killed_engine_costs_its_match_one_step_and_no_other_match_anything():
    failures: list[bool] = []
    policy = FaultPolicy(3, count=lambda is_bad_data, _: failures.append(is_bad_data))
    contexts = [EnvContext(env_id=i, seed=1) for i in range(2)]
    vec = make_batch_env("doom_duel", DoomOptions(), contexts, policy)
    assert isinstance(vec, SerialVecEnv)
    out = step_arrays(vec.spec, 2)
    try:
        vec.reset(out)
        actions = np.zeros((4, 7), np.float32)
        vec.step(actions, out)
        victim, other = (env.match.pid for env in vec.envs)
        os.kill(engines_of(victim)[0], signal.SIGKILL)
        began = time.monotonic()
        while not out.crashed.any():
            vec.step(actions, out)
        assert time.monotonic() - began < 10
        assert out.crashed.tolist() == [1, 1, 0, 0] and out.is_first.tolist() == [1, 1, 0, 0]
        assert vec.envs[0].match.pid != victim and vec.envs[1].match.pid == other
        assert all_end([victim])
        for _ in range(5):
            vec.step(actions, out)
            assert not out.crashed.any() and out.frames.tolist() == [4] * 4
        assert len(failures) == 1
    finally:
        vec.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_stopped_engine_is_noticed_and_its_match_ends(which, built, monkeypatch):
    env = built("doom_duel")
    env.reset(seed=1)
    engines = engines_of(env.match.pid)
    os.kill(engines[which], signal.SIGSTOP)
    monkeypatch.setattr(doom_match, "ANSWER_LIMIT_S", 1.0)
    began = time.monotonic()
    with pytest.raises(MatchError, match="an engine is stuck"):
        for _ in range(3):  # what it had sent before may suffice for a tic
            env.step(both(TURNS, TURNS))
    assert 0.9 < time.monotonic() - began < 5
    assert all_end(engines)
    with pytest.raises(MatchError, match="the match is over"):
        env.step(both(TURNS, TURNS))


def test_a_port_that_is_taken_is_exchanged_for_another(built, monkeypatch):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 0))
        port = taken.getsockname()[1]
        assert has_port(os.getpid(), port) and not has_port(os.getppid(), port)
        ports = [port]
        choose = secrets.choice
        monkeypatch.setattr(secrets, "choice", lambda choices: ports.pop() if ports else choose(choices))
        env = built("doom_duel")
        env.reset(seed=1)
        assert not ports
        (host, _) = engines_of(env.match.pid)
        assert f"-port\0{port}\0" not in processes()[host][1]
    assert not has_port(host, port)


def test_players_that_reached_another_match_notice_by_the_names():
    require_players({"ours_0", "ours_1"}, ["ours_1", "ours_0", "a bot", ""])
    with pytest.raises(RuntimeError, match=r"another match: its players are theirs_0, ours_1$"):
        require_players({"ours_0", "ours_1"}, ["theirs_0", "ours_1", ""])


def test_a_match_that_does_not_get_ready_leaves_nothing(own_temporary, monkeypatch):
    before = run_watch.shared_memory()
    monkeypatch.setattr(doom_match, "CONNECT_LIMIT_S", 0.6)  # engines run by then, and have not met yet
    monkeypatch.setattr(doom_match, "_ATTEMPTS", 1)
    env = make("doom_duel")
    with pytest.raises(MatchError, match=r"did not start in 1 attempts: .*did not answer"):
        env.reset()
    assert not leftovers(before)
    assert not [line for parent, line in processes().values() if parent == os.getpid() and "doom_match" in line]


def test_closing_leaves_nothing(own_temporary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, descriptors = run_watch.shared_memory(), len(list(Path("/proc/self/fd").iterdir()))
    env = make("doom_duel")
    env.reset()
    pids = [env.match.pid, *engines_of(env.match.pid)]
    assert len(pids) == 3
    assert not any(names_in_use(pid) for pid in pids)  # a killed process could not remove them
    env.close()
    env.close()
    assert all_end(pids) and not leftovers(before) and not list(tmp_path.iterdir())
    del env
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


PLAYER = """
import sys
from appo.envs.api import EnvContext
from appo.envs.families.doom import FAMILY
env = FAMILY.make("doom_duel", FAMILY.config(), EnvContext())
env.reset()
print(env.match.pid, flush=True)
while True:
    env.step(dict.fromkeys(env.agents, (0,) * 7))
"""


def test_a_killed_actor_takes_its_matches_along():
    player = subprocess.Popen([sys.executable, "-c", PLAYER], stdout=subprocess.PIPE, text=True)
    try:
        assert player.stdout is not None
        match = int(player.stdout.readline())
        pids = [match, *engines_of(match)]
        assert len(pids) == 3
    finally:
        player.kill()
        player.communicate()
    assert all_end(pids)


def test_doom_battle_is_shaped_and_the_shipped_scenarios_are_not(built, tmp_path):
    shutil.copy(Path(vizdoom.scenarios_path) / "deathmatch.wad", tmp_path)
    (tmp_path / "battle.cfg").write_text("doom_scenario_path = deathmatch.wad\nliving_reward = 1\n")
    assert not isinstance(make("doom_deathmatch"), RewardShaping)
    env = built("doom_battle", doom_scenarios_dir=str(tmp_path))
    weights = env.get_reward_shaping()
    env.set_reward_shaping(dict.fromkeys(weights, 0.0) | {"ammo_spent": -0.5})
    env.reset(seed=1)
    rewards = [env.step((0, 0, 0, 1, 0))[1] for _ in range(12)]  # shoots; pistol and chaingun share bullets
    assert sum(rewards) < 12 * 4 and set(rewards) == {4.0, 1.0}
