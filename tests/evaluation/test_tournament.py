"""A tournament: who takes part, how many matches count, what is written."""

import itertools
import json
import os
import signal

import pytest
from gymnasium import spaces

import enjoy_appo
from appo.algorithms import checkpoints
from appo.algorithms.evaluation.tournament import Tournament, find_entrants
from appo.envs.api import EnvContext
from appo.envs.registry import make_batch_env, register_env
from appo.utils.options import ConfigError

GAME = "pettingzoo_classic_tictactoe_v3"


def enjoy(*argv):
    return enjoy_appo.main(["enjoy_appo.py", *map(str, argv), "--no_render", "--tournament"])


@pytest.fixture
def played(experiment, tmp_path):
    """An experiment with a newest checkpoint, and two past selves of other weights."""
    place, folder = experiment(GAME)
    newest = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert newest is not None
    for step in (3, 7):
        weights = {name: tensor * (1.0 + step) for name, tensor in newest.payload["model"].items()}
        checkpoints.save(folder / "checkpoint_p0", "opponent", step, 10 * step, {"model": weights})
    return place, folder


def test_everybody_meets_everybody_as_often_as_asked(played, capsys):
    place, folder = played
    assert enjoy(*place, "--max_num_episodes=21") == 0
    told = json.loads((folder / "tournament.json").read_text())
    assert told["players"] == ["policy_0", "policy_0@30", "policy_0@70", "random"]
    for i in range(4):
        for j in range(4):
            games = told["wins"][i][j] + told["wins"][j][i] + told["draws"][i][j]
            assert games == (21 if i != j else 0) and told["draws"][i][j] == told["draws"][j][i]
    assert told["ratings"]["random"] == 0.0
    printed = capsys.readouterr().out
    assert printed.count(" won, ") == 6 and "policy_0@70 - random: " in printed and "rating" in printed


def test_ctrl_c_marks_its_results_and_leaves_those_of_a_complete_tournament(played, capsys, monkeypatch):
    place, folder = played
    words = [*place, "--tournament_players=policy_0,random", "--eval_deterministic"]
    play = Tournament.play

    def interrupted(self, matches, **how):
        steps, goes_on = itertools.count(), how["after_step"]

        def after_step():
            if next(steps) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return goes_on()

        return play(self, matches, **(how | {"after_step": after_step}))

    def told():
        return json.loads((folder / "tournament.json").read_text())

    monkeypatch.setattr(Tournament, "play", interrupted)
    assert enjoy(*words, "--max_num_episodes=1000") == 130
    assert "stopped early" in capsys.readouterr().out and told()["complete"] is False
    monkeypatch.setattr(Tournament, "play", play)
    assert enjoy(*words, "--max_num_episodes=2") == 0
    complete = told()
    assert complete["complete"] and complete["deterministic"] and complete["seed"] == 3
    assert list(complete["checkpoints"]) == ["policy_0"]
    monkeypatch.setattr(Tournament, "play", interrupted)
    assert enjoy(*words, "--max_num_episodes=1000") == 130
    assert "not saved" in capsys.readouterr().out and told() == complete
    monkeypatch.setattr(Tournament, "play", play)
    assert enjoy(*words, "--max_num_episodes=1") == 0
    assert "has 2 matches of each pair, these are 1" in capsys.readouterr().out and told() == complete
    assert enjoy(*words[:-1], "--max_num_episodes=1") == 0, "played in another way"
    assert "not saved" not in capsys.readouterr().out and not told()["deterministic"]


def test_the_same_seed_plays_the_same_tournament(played):
    place, folder = played
    results = []
    for seed in (1, 1, 2):
        assert enjoy(*place, "--max_num_episodes=8", f"--seed={seed}") == 0
        results.append(json.loads((folder / "tournament.json").read_text())["wins"])
    assert results[0] == results[1] != results[2]


def test_both_players_have_the_first_move_equally_often(played):
    """A player against itself under two names: who begins has an advantage in this game, and wins no more of them."""
    place, folder = played
    newest = checkpoints.load_newest_valid(folder / "checkpoint_p0")
    assert newest is not None
    checkpoints.save(folder / "checkpoint_p0", "milestone", 12, 99, {"model": newest.payload["model"]})
    assert enjoy(*place, "--tournament_players=policy_0,*milestone*", "--max_num_episodes=400") == 0
    told = json.loads((folder / "tournament.json").read_text())
    assert told["players"] == ["policy_0", "policy_0@milestone_99"]
    assert 0.4 < told["wins"][0][1] / (told["wins"][0][1] + told["wins"][1][0]) < 0.6


def test_patterns_say_who_takes_part(played):
    _, folder = played
    folders = [folder / "checkpoint_p0"]
    assert find_entrants(folders, "latest", "", ["clever"]).scripts == ("random", "clever")
    chosen = find_entrants(folders, "latest", "", [], "policy_0@*, random")
    assert (list(chosen.checkpoints), chosen.scripts) == (["policy_0@30", "policy_0@70"], ("random",))
    pool = ["policy_0", "policy_0@70", "random"]
    assert list(find_entrants(folders, "latest", "", [], "", pool).checkpoints) == ["policy_0", "policy_0@70"]
    named = find_entrants(folders, "latest", "", [], "policy_0@30,policy_0", pool)
    assert list(named.checkpoints) == ["policy_0", "policy_0@30"], "outside of the pool only by name"
    with pytest.raises(
        ConfigError, match="tournament_players='policy_9' fits no player; there are policy_0, random, policy_0@30"
    ):
        find_entrants(folders, "latest", "", [], "policy_0,policy_9")
    with pytest.raises(ConfigError, match="needs two players"):
        find_entrants(folders, "latest", "", [], "random")


class Alone:
    """A game of one step, in which the second agent never takes part."""

    scripted_players = ("sleeps",)

    def __init__(self):
        self.possible_agents, self.agents = ["left", "right"], []

    def scripted_action(self, name, agent):
        return 0

    def observation_space(self, agent):
        return spaces.Discrete(2)

    action_space = observation_space

    def reset(self, seed=None, options=None):
        self.agents = ["left"]
        return {"left": 0}, {"left": {}}

    def step(self, actions):
        self.agents = []
        return {"left": 0}, {"left": 1.0}, {"left": True}, {"left": False}, {"left": {}}

    def close(self):
        pass


def test_matches_in_which_one_player_takes_no_part_end_and_count_for_neither():
    register_env("alone", Alone)
    batch = make_batch_env("alone", None, [EnvContext(seed=1), EnvContext(seed=2, env_id=1)])
    tournament, steps = Tournament(batch, {}, ("random", "sleeps"), seed=1), iter(range(100))
    assert tournament.play(5, after_step=lambda: next(steps) < 50)
    assert tournament.matrix.state() == []
    batch.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policy_index=0", "--max_num_episodes=0"], "max_num_episodes=0 says nothing to --tournament=True"),
        (["--max_num_frames=10"], "max_num_frames is not for --tournament=True"),
        (["--render_action_repeat=2"], "render_action_repeat is not for --tournament=True"),
        (["--tournament=False", "--tournament_players=random"], "tournament_players is for --tournament=True"),
    ],
)
def test_options_that_say_nothing_to_a_tournament_are_refused(played, capsys, options, told):
    place, _ = played
    assert enjoy_appo.main(["enjoy_appo.py", *place, "--no_render", "--tournament", *options]) == 2
    assert told in capsys.readouterr().err


def test_an_environment_of_single_agents_has_no_matches(experiment, capsys):
    place, _ = experiment("CartPole-v1")
    assert enjoy(*place) == 2
    assert "needs an environment with several agents; this one has 1" in capsys.readouterr().err


def test_matches_are_recorded(experiment, tmp_path):
    place, folder = experiment("pettingzoo_mpe2_simple_spread_v3")
    argv = [*place, "--tournament", "--tournament_players=policy_0,random", "--save_video", "--max_num_episodes=1"]
    assert enjoy_appo.main(["enjoy_appo.py", *map(str, argv)]) == 0
    [video] = (folder / "videos").iterdir()
    assert video.name.startswith("pettingzoo_mpe2_simple_spread_v3_tournament") and video.stat().st_size > 1000
