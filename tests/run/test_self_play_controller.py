"""What the controller of self-play asks for, whom it lets policies meet, and what a resumed run knows of it."""

import json
import logging
import types
from typing import Any
from unittest import mock

import pytest

from appo.algorithms.checkpoint_names import OPPONENT, file_name, folder_of
from appo.algorithms.config import resolve
from appo.algorithms.messages import (
    CheckpointFailed,
    CheckpointSaved,
    MatchesFinished,
    MatchFinished,
    OpponentFailed,
    PolicyAdopted,
    PolicyRestored,
    SaveCheckpoint,
    SetOpponent,
    SetOpponentShares,
    WorkerReady,
)
from appo.algorithms.reporting.population_log import PopulationLog
from appo.algorithms.run.controllers import self_play
from appo.algorithms.run.controllers.context import ControllerContext
from appo.algorithms.run.controllers.self_play import SelfPlay
from appo.algorithms.workers.roster import LEARNER, Group, Roster
from tests.reporting.reporting_cases import small_statistics

TRAINING: Any = types.SimpleNamespace(state="training")


class Case:
    """A controller whose checkpoints are empty files."""

    def __init__(self, folder, *options, policies=1, states=None):
        words = ["--env=synthetic_multi", f"--train_dir={folder}", "--experiment=run", f"--num_policies={policies}"]
        words += ["--self_play=True", "--self_play_pool_size=3", "--self_play_save_every=1000", "--serial_mode=True"]
        self.config = resolve([*words, *options]).config
        self.statistics = small_statistics(policies=policies)
        unused: Any = None
        log, roster = PopulationLog(folder), Roster({LEARNER: Group(policies, 1)})
        run_folder = self.config.run.folder
        self.context = ControllerContext(
            self.config, self.statistics.arrays, roster, self.statistics, unused, log, run_folder, folder, unused
        )
        self.folder, self.play = folder, SelfPlay(self.context)
        for policy in range(policies):
            self.restored(policy, (states or {}).get(policy, {}))

    def restored(self, policy, state, train_step=10_000):
        self.play.note(PolicyRestored(policy, "file.pth" if state else "", train_step, state, float("nan"), [], {}, 0))

    def run(self, frames=0, policy=0):
        """So many frames later: what is asked for; checkpoints are written."""
        self.statistics.arrays["env_frames"][0, policy] += frames
        commands = list(self.play.due(TRAINING))
        for command in commands:
            if isinstance(command, SaveCheckpoint):
                self.save(command)
        return commands

    def save(self, command):
        head = {"kind": OPPONENT, "train_step": command.env_frames // 10, "env_steps": command.env_frames}
        path = folder_of(self.config.run.checkpoint_dir(command.policy), OPPONENT) / file_name(head)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.play.note(CheckpointSaved(command.policy, OPPONENT, str(path), command.request))

    def settings(self):
        """What `due` tells the workers, apart: opponents, and shares by policy."""
        commands = self.run()
        shares = {command.policy: command.shares for command in commands if isinstance(command, SetOpponentShares)}
        return [command for command in commands if isinstance(command, SetOpponent)], shares

    def content(self):
        """What self_play.json would say now."""
        return self.play._matrix.content(self.play._players(), self.play._ratings())

    def meet(self, *match, times=1, numbers=None):
        players, outcomes = match[::2], match[1::2]
        numbers = numbers or (0,) * len(players)
        self.play.note(MatchesFinished([MatchFinished(players, numbers, outcomes)] * times))

    def files(self, policy=0):
        folder = folder_of(self.config.run.checkpoint_dir(policy), OPPONENT)
        return sorted(int(path.stem.split("_")[2]) for path in folder.glob("*.pth"))


def asked_for(commands):
    return [(command.policy, command.kind) for command in commands if isinstance(command, SaveCheckpoint)]


def test_a_policy_joins_the_pool_at_once_and_then_every_so_many_frames(tmp_path):
    case = Case(tmp_path)
    assert asked_for(case.run()) == [(0, OPPONENT)]
    opponents, shares = case.settings()
    assert opponents == [SetOpponent(0, 1, 0, 0)]
    assert shares == {0: pytest.approx([0.8, 0, 0, 0.2])}, "one in five is the random player"
    assert asked_for(case.run(999)) == []
    assert asked_for(case.run(1)) == [(0, OPPONENT)]
    assert case.settings()[0] == [SetOpponent(1, 2, 100, 1000)]


def test_a_pool_that_is_full_keeps_the_first_and_the_newest_and_their_files_alone(tmp_path):
    case = Case(tmp_path)
    for _ in range(4):
        case.run(1000)
    assert case.files() == [1000, 2000, 3000, 4000], "a checkpoint on disk may still name the one that left"
    saved = CheckpointSaved(0, "latest", "somewhere", 1)
    case.play.note(saved)
    case.play.state(0)  # for the next checkpoint
    case.play.note(saved)
    assert len(case.files()) == 4, "the one that was saved may have been asked for before"
    case.play.note(saved)
    assert case.files() == [1000, 3000, 4000]
    assert case.settings()[0] == [SetOpponent(1, 4, 400, 4000)], "in the place of the one that left"
    assert case.play.scalars(0)["self_play/pool"] == 3


def test_the_file_of_each_that_leaves_waits_for_checkpoints_of_its_own(tmp_path):
    case, saved = Case(tmp_path), CheckpointSaved(0, "latest", "somewhere", 1)
    for _ in range(4):
        case.run(1000)
    case.play.state(0)
    case.play.note(saved)
    case.run(1000)  # another one leaves, which the checkpoints on disk still name
    case.play.note(saved)
    assert case.files() == [1000, 3000, 4000, 5000], "that of the first to leave is gone"
    again = Case(tmp_path, states={0: case.play.state(0)})
    for _ in range(3):
        again.play.note(saved)
        again.play.state(0)
    assert len(again.files()) == 3 and again.files() == [past.env_frames for past in again.play._pool()]


def test_files_of_a_time_that_the_run_does_not_go_on_from_are_removed(tmp_path):
    case, saved = Case(tmp_path), CheckpointSaved(0, "latest", "somewhere", 1)
    case.run(1000)
    state = case.play.state(0)
    case.run(1000)
    earlier = Case(tmp_path)
    earlier.restored(0, state, train_step=150)
    earlier.play.state(0)
    for _ in range(2):
        earlier.play.note(saved)
    assert case.files() == [1000]


def test_those_who_win_are_met_more_often(tmp_path):
    case = Case(tmp_path, "--self_play_anchors=", "--self_play_sampling=pfsp_hard")
    for _ in range(2):
        case.run(1000)
    case.run()
    before = case.settings()[1][0]
    assert before == pytest.approx([0.5, 0.5, 0.0])
    case.meet(0, 1.0, 1, 0.0, numbers=(0, 1), times=50)
    case.meet(2, 1.0, 0, 0.0, numbers=(2, 0), times=50)
    won, lost, _ = case.settings()[1][0]
    assert lost > 10 * won > 0
    tags = case.play.scalars(0)
    assert tags["self_play/win_rate_pool"] == pytest.approx(0.5, abs=0.01)
    assert tags["self_play/win_rate_pool_min"] < 0.1 and tags["self_play/matches"] == 100


def test_results_and_ratings_are_written_for_all_players_and_belong_to_the_past_self_once_it_joins(tmp_path):
    case = Case(tmp_path)
    case.run()
    case.meet(0, 1.0, 4, 0.0, times=30)  # the random player
    case.meet(0, 0.5, 1, 0.5, numbers=(0, 1), times=5)
    case.run(1000)
    case.play._next_tell = 0.0
    case.meet(0, 0.0, 4, 1.0, times=2)
    case.run()
    told = json.loads((tmp_path / "self_play.json").read_text())
    assert told["players"] == ["policy_0", "policy_0@0", "policy_0@1000", "random"]
    assert told["wins"] == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 30], [2, 0, 0, 0]]
    assert told["draws"][2][1] == told["draws"][1][2] == 5
    ratings = told["ratings"]
    assert ratings["policy_0@1000"] > ratings["policy_0"] > ratings["random"] == 0.0, "two lost matches tell little"
    assert case.play.scalars(0)["self_play/rating"] == pytest.approx(ratings["policy_0"])
    assert case.play.scalars(0)["self_play/win_rate_random"] < 0.95


def test_a_match_with_one_who_has_left_the_pool_does_not_count(tmp_path):
    case = Case(tmp_path)
    case.run()
    case.meet(0, 1.0, 1, 0.0, numbers=(0, 77))
    assert case.play.scalars(0)["self_play/matches"] == 0


def test_the_last_results_are_written_at_the_end_and_drawn_matches_are_told_of(tmp_path, caplog):
    case = Case(tmp_path)
    case.run()
    with caplog.at_level(logging.WARNING):
        case.meet(0, 1.0, 4, 1.0, times=300)
    assert caplog.text.count("the first 200 matches were all drawn") == 1
    case.play.end(case.statistics.last_snapshot())
    assert json.loads((tmp_path / "self_play.json").read_text())["draws"][0] == [0, 0, 300]


def test_a_start_that_ends_before_it_has_begun_leaves_the_results_of_the_one_before(tmp_path):
    (tmp_path / "self_play.json").write_text("those of before")
    case = Case(tmp_path)
    case.play.end(case.statistics.last_snapshot()._replace(state="starting"))
    assert (tmp_path / "self_play.json").read_text() == "those of before"


def test_a_rating_goes_on_from_that_of_the_newest_past_self(tmp_path):
    case = Case(tmp_path)
    case.run()
    case.meet(0, 1.0, 4, 0.0, times=200)
    before = case.play._ratings()["policy_0"]
    case.run(1000)
    after = case.play._ratings()
    assert before > 500 and after["policy_0"] == pytest.approx(after["policy_0@1000"], rel=0.01)
    case.meet(0, 0.0, 4, 1.0, times=200)
    assert case.play._ratings()["policy_0"] < 0.0


def test_a_seat_of_a_frozen_policy_without_a_past_self_is_nobody_s(tmp_path):
    case = Case(tmp_path)
    case.run()
    case.meet(0, 1.0, 2, 0.0, numbers=(0, 0))
    assert case.play.scalars(0)["self_play/matches"] == 0


def test_a_past_self_that_cannot_be_read_leaves_the_pool_and_its_file_stays(tmp_path, caplog):
    case = Case(tmp_path)
    case.run()
    case.run(1000)
    with caplog.at_level(logging.WARNING):
        case.play.note(OpponentFailed(1, "damaged"))
    assert "policy_0@0 leaves the pool, it cannot be read: damaged" in caplog.text
    opponents, shares = case.settings()
    assert SetOpponent(0, 0, 0, 0) in opponents and shares[0] == pytest.approx([0, 0.8, 0, 0.2])
    for _ in range(3):
        case.run(1000)
        case.play.state(0)
        for _ in range(2):
            case.play.note(CheckpointSaved(0, "latest", "somewhere", 1))
    assert case.files() == [0, 1000, 3000, 4000]


def test_a_policy_that_became_another_one_begins_with_the_results_of_that(tmp_path):
    case = Case(tmp_path, policies=2)
    case.run()
    case.meet(0, 1.0, 2, 0.0, numbers=(0, 1), times=9)
    case.meet(1, 0.0, 2, 1.0, numbers=(0, 1), times=9)
    case.play.note(PolicyAdopted(1, 0, {}, 5, 1))
    assert case.play._sides[1].scores == case.play._sides[0].scores
    assert case.play._matrix.of("policy_1", "policy_0@0").matches == 0
    assert case.play._matrix.of("policy_0", "policy_0@0").wins == 9


def test_a_policy_that_became_another_one_has_the_rating_of_that(tmp_path):
    case = Case(tmp_path, policies=2)
    case.run()
    case.meet(0, 3.0, 1, 1.0, 2, 2.0, numbers=(0, 0, 1), times=20)
    before = case.content()["ratings"]
    assert before["policy_0"] > before["policy_1"]
    case.play.note(PolicyAdopted(1, 0, {}, 5, 1))
    assert case.content()["ratings"] == before | {"policy_1": before["policy_0"]}


def test_more_than_two_players_are_rated_by_their_places(tmp_path):
    case = Case(tmp_path)
    case.run()
    for _ in range(20):
        case.meet(0, 3.0, 1, 2.0, 4, 1.0, numbers=(0, 1, 0))
    ratings = case.content()["ratings"]
    assert ratings["policy_0"] > ratings["policy_0@0"] > ratings["random"] == 0.0
    assert case.content()["wins"][0] == [0, 20, 20]


def test_two_players_on_four_seats_are_rated_by_their_results(tmp_path):
    case = Case(tmp_path)
    case.run()
    case.meet(0, 3.0, 0, 1.0, 4, 2.0, 4, 0.0)
    assert case.play._placements is None and case.content()["wins"][0] == [0, 0, 3]


def test_a_checkpoint_that_is_not_answered_is_asked_for_again(tmp_path, monkeypatch, caplog):
    case = Case(tmp_path)
    [command] = [command for command in case.play.due(TRAINING) if isinstance(command, SaveCheckpoint)]
    assert asked_for(case.play.due(TRAINING)) == []
    case.play.note(WorkerReady("learner-0", 1, 1.0))
    assert asked_for(case.play.due(TRAINING)) == [(0, OPPONENT)]
    with caplog.at_level(logging.WARNING):
        case.play.note(CheckpointFailed(0, OPPONENT, "the disk is full", command.request))
    assert "did not join the pool of past selves: the disk is full" in caplog.text
    assert asked_for(case.play.due(TRAINING)) == [], "not at once"
    monkeypatch.setattr(self_play.time, "monotonic", lambda: 1e9)
    assert asked_for(case.run()) == [(0, OPPONENT)]
    assert case.play.scalars(0)["self_play/pool"] == 1


def test_a_resumed_run_goes_on_with_the_pool_the_results_and_the_next_turn(tmp_path, caplog):
    case = Case(tmp_path, policies=2)
    case.run()
    case.run(1000, policy=1)
    case.meet(0, 1.0, 2, 0.0, numbers=(0, 1), times=9)
    case.meet(1, 1.0, 0, 0.0, times=4)
    states = {policy: json.loads(json.dumps(case.play.state(policy))) for policy in (0, 1)}
    again = Case(tmp_path, policies=2, states=states)
    assert again.play._pool() == case.play._pool() != []
    assert again.content() == case.content()
    assert again.play._shares(0) == case.play._shares(0) and again.play.state(1) == case.play.state(1)
    told = again.settings()[0]
    assert [(each.frozen, each.number) for each in told] == [(0, 1), (3, 2), (4, 3)]
    again.run(1000)
    assert again.play._pool()[1].number == 4, "numbers never come again"

    gone = again.config.run.checkpoint_dir(0) / "opponents" / "checkpoint_000000000000_000000000000000.pth"
    gone.unlink()
    with caplog.at_level(logging.WARNING):
        less = Case(tmp_path, policies=2, states=states)
    assert "the files of policy_0@0 are gone" in caplog.text
    assert [past.name for past in less.play._pool()] == ["policy_1@0", "policy_1@1000"]
    assert asked_for(less.run()) == [(0, OPPONENT)], "its pool is empty"


def test_a_run_goes_on_with_another_time_between_past_selves(tmp_path):
    case = Case(tmp_path, "--self_play_save_every=1000000")
    case.run()
    sooner = Case(tmp_path, "--self_play_save_every=100", states={0: case.play.state(0)})
    assert asked_for(sooner.run(99)) == [] and asked_for(sooner.run(1)) == [(0, OPPONENT)]


def test_a_smaller_pool_is_what_a_resumed_run_was_told_to_have(tmp_path):
    case = Case(tmp_path)
    for _ in range(3):
        case.run(1000)
    smaller = Case(tmp_path, "--self_play_pool_size=2", states={0: case.play.state(0)})
    assert [past.env_frames for past in smaller.play._pool()] == [1000, 3000]
    assert [past.frozen for past in smaller.play._pool()] == [0, 1]


def test_without_self_play_nothing_is_asked_told_or_kept(tmp_path):
    case = Case(tmp_path, "--self_play=False")
    assert case.run(1_000_000) == [] and case.play.state(0) == {} and case.play.scalars(0) == {}


def test_a_run_that_goes_on_without_self_play_keeps_the_pool_for_one_that_goes_on_with_it(tmp_path):
    case = Case(tmp_path)
    case.run()
    state = case.play.state(0)
    without = Case(tmp_path, "--self_play=False", states={0: state})
    assert without.play.state(0) == state


def test_ratings_are_fitted_once_for_the_file_and_all_policies(tmp_path, monkeypatch):
    """With 256 past selves a fit takes 80 ms, in which the driver does nothing else."""
    case, fits = Case(tmp_path, policies=4), mock.Mock(return_value={"policy_1": 5.0})
    monkeypatch.setattr(self_play, "elo_ratings", fits)
    case.run()
    case.play._next_tell = 0.0
    case.run()
    case.run()
    assert [case.play.scalars(policy).get("self_play/rating") for policy in range(4)] == [None, 5.0, None, None]
    assert fits.call_count == 2
    assert json.loads((tmp_path / "self_play.json").read_text())["ratings"] == {"policy_1": 5.0}
