"""What the controller of a population asks of learners, when, and what a resumed run knows of it."""

import json
import types
from typing import Any

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.messages import (
    AdoptionRefused,
    AdoptPolicy,
    EpisodeFinished,
    EpisodesFinished,
    HyperparametersChanged,
    HyperparametersRefused,
    PolicyAdopted,
    PolicyRestored,
    SetHyperparameters,
    WorkerReady,
)
from appo.algorithms.reporting.population_log import PopulationLog
from appo.algorithms.run.controllers.context import ControllerContext
from appo.algorithms.run.controllers.population import Population
from appo.algorithms.workers.roster import LEARNER, Group, Roster
from tests.reporting.reporting_cases import small_statistics

TRAINING: Any = types.SimpleNamespace(state="training")
NAMES = {"learning_rate", "ppo_clip_ratio", "ppo_clip_value", "value_loss_coeff", "exploration_loss_coeff"}
NAMES |= {"max_grad_norm", "adam_beta1"}


class Case:
    """A controller whose learners answer when the test says so."""

    def __init__(self, folder, policies=3, options=(), states=None, shaping=()):
        words = ["--env=synthetic_identity", f"--train_dir={folder}", "--seed=5", f"--num_policies={policies}"]
        words += ["--with_pbt=True", "--pbt_start_mutation=1000", "--pbt_period_env_steps=500", *options]
        self.config = resolve([*words, "--num_workers=1", "--ppo_clip_value=1.0"]).config
        self.statistics = small_statistics(policies=policies, reward_shaping=shaping)
        unused: Any = None
        self.log = PopulationLog(folder)
        self.context = ControllerContext(
            self.config,
            self.statistics.arrays,
            Roster({LEARNER: Group(policies, 1)}),
            self.statistics,
            unused,
            self.log,
            folder,
            folder,
            unused,
        )
        self.folder, self.population = folder, Population(self.context)
        for policy in range(policies):
            self.take(restored(policy, *((states or {}).get(policy, ({}, {}, 0)))))

    def take(self, report):
        self.statistics.add(report)
        self.population.note(report)

    def play(self, frames, *objectives, episodes=20):
        """Every policy has seen so many frames more, and earns these returns.

        More episodes than are left out after a policy became another one.
        """
        self.statistics.arrays["env_frames"][0, :] += frames
        for policy, objective in enumerate(objectives):
            self.take(EpisodesFinished([EpisodeFinished(policy, objective, float("nan"), 10, {})] * episodes))

    def due(self):
        return list(self.population.due(TRAINING))

    def obey(self):
        """All that is asked for is carried out."""
        commands = self.due()
        for command in commands:
            self.take(answer(command))
        return commands

    def history(self):
        return [json.loads(line) for line in (self.folder / "pbt_history.jsonl").read_text().splitlines()]


def restored(policy, run_state, values, adoption):
    state = run_state or {}
    return PolicyRestored(policy, "file.pth" if state else "", 0, state, float("nan"), [], values, adoption)


def answer(command, train_step=7):
    if isinstance(command, AdoptPolicy):
        return PolicyAdopted(command.policy, command.source, command.values, train_step, command.request)
    return HyperparametersChanged(*command)


@pytest.fixture
def case(tmp_path):
    return Case(tmp_path)


def test_the_first_begins_with_the_options_of_the_run_the_others_with_mutations_of_all_of_them(case):
    begun = {command.policy: command.values for command in case.obey()}
    assert set(begun) == {0, 1, 2} and set(begun[0]) == NAMES
    assert begun[0]["learning_rate"] == case.config.learning.learning_rate
    for policy in (1, 2):
        assert all(begun[policy][name] != begun[0][name] for name in NAMES - {"adam_beta1"})
    assert begun[1] != begun[2]
    assert [row["kind"] for row in case.history()] == ["begin"] * 3
    assert json.loads((case.folder / "policy_01.json").read_text())["values"] == begun[1]


def test_each_policy_has_its_turn_when_its_frames_have_come(case):
    case.obey()
    case.play(999, 1.0, 2.0, 3.0)
    assert case.due() == []
    case.play(1)
    commands = {command.policy: command for command in case.obey()}
    assert isinstance(commands[0], AdoptPolicy) and commands[0].source == 2
    assert 2 not in commands, "the best is kept"
    assert case.due() == []
    case.play(499, 1.0, 2.0, 3.0)
    assert case.due() == []
    case.play(1)
    assert 0 in {command.policy for command in case.due()}
    rows = [row for row in case.history() if row["kind"] != "begin"]
    assert (rows[0]["policy"], rows[0]["kind"], rows[0]["source"]) == (0, "replace", 2)
    assert rows[0]["objectives"] == [1.0, 2.0, 3.0] and rows[0]["env_frames"] == 1000
    assert rows[0]["values"] == commands[0].values
    assert ("keep", 2) in {(row["kind"], row["policy"]) for row in rows}, "when it was copied"


def test_nothing_is_decided_before_every_policy_has_played_enough_episodes(case):
    case.obey()
    case.play(2000, 1.0, 2.0)
    case.play(0, 0.0, 0.0, 3.0, episodes=2)
    assert case.due() == []
    case.play(0, 0.0, 0.0, 3.0, episodes=1)
    assert case.due(), "of three, which is all that --stats_avg remembers here"


def test_a_policy_that_was_replaced_is_judged_by_new_episodes_only(case):
    case.obey()
    case.play(1000, 1.0, 2.0, 3.0)
    case.obey()
    assert len(case.statistics.episodes[0].returns) == 0 and case.statistics.episodes[2].returns
    case.play(500)
    assert case.due() == []
    case.play(0, 9.0, 2.0, 3.0, episodes=10)
    assert case.due() == [] and not case.statistics.episodes[0].returns, "these were under way"
    case.play(0, 9.0, 2.0, 3.0, episodes=3)
    assert case.due()


def test_what_is_not_answered_is_asked_again_by_the_next_learner_and_later(case, monkeypatch):
    case.obey()
    case.play(1000, 1.0, 2.0, 3.0)
    asked = case.due()
    assert asked and case.due() == []
    case.take(WorkerReady("learner-0", 1, 0.5))
    assert case.due() == [command for command in asked if command.policy == 0]
    case.play(5000, 1.0, 2.0, 3.0)
    later = {command.policy for command in case.due()}
    assert 0 not in later, "no further turn before the answer"
    monkeypatch.setattr("appo.algorithms.run.controllers.requests.time.monotonic", lambda: 1e9)
    assert asked[0] in case.due()


def test_a_policy_that_is_about_to_change_is_not_copied(tmp_path):
    case = Case(tmp_path, policies=2)
    case.obey()
    case.play(1000, 1.0, 2.0)
    case.population.members[1].open = {"kind": "mutate", "source": 1}
    assert case.due() == []
    case.population.members[1].open = {}
    assert [type(command) for command in case.due()] == [AdoptPolicy]
    case.play(0, 1.0, -5.0)
    assert case.due() == [], "nor has the one that is being copied a turn before it was"
    case.take(answer(AdoptPolicy(0, 1, {}, 1)))
    assert case.population.members[1].open == {} and case.population.members[0].adoptions == 1


@pytest.mark.parametrize("objectives", [(1.0, 2.0, 3.0), (3.0, 2.0, 1.0)])
def test_what_a_learner_refuses_is_not_in_force(case, objectives):
    before = {command.policy: command.values for command in case.obey()}
    case.play(1000, *objectives)
    for command in case.due():
        if isinstance(command, AdoptPolicy):
            case.take(AdoptionRefused(command.policy, command.source, "a test", command.request))
        elif isinstance(command, SetHyperparameters):
            case.take(HyperparametersRefused(*command, "a test"))
        assert case.population.members[command.policy].values == before[command.policy]


def test_a_resumed_run_goes_on_with_what_was_in_force_and_the_next_turns(case, tmp_path):
    case.obey()
    case.play(1000, 1.0, 2.0, 3.0)
    case.obey()
    kept, states = case.population, {}
    for policy, member in enumerate(kept.members):
        run_state = case.statistics.run_state(policy) | kept.state(policy)
        states[policy] = (json.loads(json.dumps(run_state)), member.values, member.adoptions)
    again = Case(tmp_path, states=states)
    assert [vars(member) for member in again.population.members] == [vars(member) for member in kept.members]
    assert again.due() == [] and len(again.history()) == len(case.history()), "nothing begins anew"
    case.play(500, 1.0, 2.0, 3.0)
    again.play(500, 1.0, 2.0, 3.0)
    assert again.due() == case.due()


def test_what_the_learner_says_is_in_force_counts_more_than_what_the_driver_had_decided(case, tmp_path):
    case.obey()
    run_state = case.statistics.run_state(0) | case.population.state(0)
    again = Case(tmp_path, states={0: (run_state, {"learning_rate": 0.5}, 4)})
    assert again.population.members[0].values["learning_rate"] == 0.5
    assert again.population.members[0].requests == 4, "or the next request would be taken for one that was answered"
    without = Case(tmp_path, states={0: (case.statistics.run_state(0), {}, 7)})
    assert without.population.members[0].requests == 7, "nor without a state of the population"


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("objectives", [(1.0, 2.0, 3.0), (1.5, 1.0, 2.0)], ids=["replace", "mutate"])
def test_a_decision_that_was_open_when_the_run_ended_is_settled_by_what_the_learner_says(tmp_path, objectives, is_done):
    case = Case(tmp_path, options=["--pbt_mutation_rate=1"])
    case.obey()
    case.play(1000, *objectives)
    command = next(command for command in case.due() if command.policy == 0)
    member = case.population.members[0]
    before, request = member.values, getattr(command, "request", 0)
    run_state = json.loads(json.dumps(case.statistics.run_state(0) | case.population.state(0)))
    values, adoption = (command.values, request) if is_done else (before, 0)
    again = Case(tmp_path, states={0: (run_state, values, adoption)})
    new = again.population.members[0]
    assert new.values == values and new.open == {}
    assert new.decisions == is_done and new.adoptions == (is_done and request > 0)
    assert (len(again.statistics.episodes[0].returns) == 0) == (is_done and request > 0)
    turn = new.next_frames <= again.statistics.env_frames(0)
    assert turn != is_done, "what was not done is decided again"


def test_a_new_policy_whose_first_values_were_not_set_yet_is_given_them_again(case, tmp_path):
    asked = [command for command in case.due() if command.policy == 1]
    run_state = json.loads(json.dumps(case.statistics.run_state(1) | case.population.state(1)))
    again = Case(tmp_path, states={1: (run_state, {}, 0)})
    assert [command for command in again.due() if command.policy == 1] == asked


def test_a_typed_period_holds_after_a_resume(case, tmp_path):
    case.obey()
    run_state = json.loads(json.dumps(case.statistics.run_state(2) | case.population.state(2)))
    values = case.population.members[2].values
    again = Case(tmp_path, options=["--pbt_period_env_steps=70"], states={2: (run_state, values, 0)})
    again.obey()
    again.play(1000, 1.0, 2.0, 3.0)
    again.obey()
    again.play(0, 1.0, 2.0, 3.0)
    again.obey()
    assert again.population.members[2].next_frames == again.statistics.env_frames(2) + 70


@pytest.mark.parametrize(("option", "decisions"), [("pbt_start_mutation", 0), ("pbt_period_env_steps", 1)])
def test_a_shorter_wait_that_is_typed_for_a_resume_holds_from_then_on(case, tmp_path, option, decisions):
    case.obey()
    if decisions:
        case.play(1000, 1.0, 2.0, 3.0)
        case.obey()
        case.play(0, 1.0, 2.0, 3.0)
        case.obey()
    member = case.population.members[2]
    run_state = json.loads(json.dumps(case.statistics.run_state(2) | case.population.state(2)))
    assert member.decisions == decisions and member.next_frames - case.statistics.env_frames(2) >= 500
    again = Case(tmp_path, options=[f"--{option}=70"], states={2: (run_state, member.values, 0)})
    assert again.population.members[2].next_frames == again.statistics.env_frames(2) + 70


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_budget_within_which_no_decision_comes_is_warned_of_once_at_the_start(tmp_path, caplog):
    case = Case(tmp_path, options=["--train_for_env_steps=2900"])
    case.obey()
    case.play(100, 1.0, 2.0, 3.0)
    case.due()
    [warning] = warnings_of(caplog)
    assert "about 966 frames, too few for a decision, the first after 1000 (pbt_start_mutation)" in warning
    caplog.clear()
    Case(tmp_path, options=["--train_for_env_steps=4500"])
    assert not warnings_of(caplog)


def test_a_resumed_run_is_warned_of_what_is_left(case, tmp_path, caplog):
    case.obey()
    for frames in (1000, 0):  # the turn of a policy that is copied comes after that
        case.play(frames, 1.0, 2.0, 3.0)
        case.obey()
    case.play(100)
    states = {}
    for policy, member in enumerate(case.population.members):
        run_state = case.statistics.run_state(policy) | case.population.state(policy)
        states[policy] = (json.loads(json.dumps(run_state)), member.values, member.adoptions)
    Case(tmp_path, options=["--train_for_env_steps=4500"], states=states)
    assert not warnings_of(caplog), "400 are left until the next turn"
    Case(tmp_path, options=["--train_for_env_steps=4497"], states=states)
    [warning] = warnings_of(caplog)
    assert "about 399 frames" in warning and "the next decision, after 400 (pbt_period_env_steps)" in warning


def test_an_objective_that_no_episode_tells_is_warned_of_once(tmp_path, caplog):
    case = Case(tmp_path, options=["--pbt_target_objective=goals"])
    case.obey()
    for _ in range(3):
        case.play(1000, 1.0, 2.0, 3.0)
        assert case.due() == []
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "pbt_target_objective=goals" in warning and "reward" in warning


@pytest.mark.parametrize("reports", [True, False])
def test_weights_of_a_reward_are_tuned_for_an_objective_of_its_own_only(tmp_path, reports):
    case = Case(tmp_path, shaping=(("kill", 1.0),), options=["--pbt_mutation_rate=1"])
    begun = {command.policy: command for command in case.due()}
    assert "reward:kill" not in begun[1].values, "learners have no use for it"
    for command in begun.values():
        case.take(answer(command))
    first = [member.values["reward:kill"] for member in case.population.members]
    assert first[0] == 1.0 and first[1] != 1.0
    assert {command.policy for command in case.due()} >= {1, 2}, "environments are told"
    true = 5.0 if reports else float("nan")
    for policy, objective in enumerate((1.0, 2.0, 3.0)):
        episode = EpisodeFinished(policy, objective, true * objective, 10, {})
        case.take(EpisodesFinished([episode] * 20))
    case.play(1000)
    case.obey()
    now = [member.values["reward:kill"] for member in case.population.members]
    assert (now[1] != first[1]) == reports
    assert case.population.scalars(1)["zz_pbt/rew_kill"] == now[1]


def test_the_period_doubles_while_the_best_does_not_rise(tmp_path):
    case = Case(tmp_path, policies=2, options=["--pbt_double_period=True"])
    case.obey()
    case.play(1000, 1.0, 1.0)
    case.obey()
    periods = []
    for objective in (1.0, 1.0, 1.0, 1.0, 2.0):
        case.play(8000, objective, objective)
        case.obey()
        periods.append(500 * 2 ** case.population.members[0].doublings)
    assert periods == [1000, 2000, 4000, 4000, 500]


def test_a_lucky_best_does_not_keep_the_period_long(tmp_path):
    case = Case(tmp_path, policies=2, options=["--pbt_double_period=True"])
    case.obey()
    case.play(1000, 9.0, 9.0)
    case.obey()
    periods = []
    for objective in (1.0, 1.0, 2.0, 3.0, 3.0):
        case.play(8000, objective, objective)
        case.obey()
        periods.append(500 * 2 ** case.population.members[0].doublings)
    assert periods == [1000, 2000, 500, 500, 1000]


def test_start_values_are_each_policys_own(tmp_path):
    file = tmp_path / "start.json"
    file.write_text('[{"learning_rate": 1e-6}, {"learning_rate": 0.1, "gamma": 0.9}]')
    case = Case(tmp_path, policies=2, options=[f"--pbt_start_values={file}"])
    begun = [command.values for command in case.obey()]
    assert begun[0]["learning_rate"] == 1e-6 and begun[1]["learning_rate"] == 0.1 and begun[1]["gamma"] == 0.9
    assert begun[0]["gamma"] == case.config.learning.gamma, "or a copy would keep what only its own past had"
    assert begun[0]["ppo_clip_ratio"] == begun[1]["ppo_clip_ratio"] == case.config.learning.ppo_clip_ratio


def test_tags_show_what_is_in_force(case):
    case.obey()
    case.play(1000, 1.0, 2.0, 3.0)
    case.obey()
    tags = case.population.scalars(0)
    assert tags["zz_pbt/cfg_learning_rate"] == case.population.members[0].values["learning_rate"]
    assert tags["zz_pbt/decisions"] == tags["zz_pbt/adoptions"] == 1.0


def test_without_pbt_nothing_is_asked_or_kept(tmp_path):
    case = Case(tmp_path, options=["--with_pbt=False"])
    case.play(10_000, 1.0, 2.0, 3.0)
    assert case.due() == [] and case.population.state(0) == {} == case.population.scalars(0)
    assert not (tmp_path / "pbt_history.jsonl").exists()
