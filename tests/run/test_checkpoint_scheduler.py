"""When which checkpoint is asked for, what is in it, and what happens when none reaches the disk."""

import logging
import math
import types
from typing import Any

import pytest

from appo.algorithms.messages import CheckpointFailed, CheckpointSaved, EvaluationFinished, SaveCheckpoint, WorkerReady
from appo.algorithms.reporting import statistics as statistics_module
from appo.algorithms.reporting.snapshot import Point
from appo.algorithms.run.config import RunConfig
from appo.algorithms.run.controllers import checkpoints as module
from appo.algorithms.run.controllers.absent import LOOKS_BEFORE_WARNING
from appo.algorithms.run.controllers.checkpoints import EPISODES_BEFORE_WARNING, MOST_OPEN, CheckpointScheduler
from appo.algorithms.run.controllers.context import ControllerContext
from appo.algorithms.workers.roster import LEARNER, Group, Roster
from appo.utils import files
from tests.reporting.reporting_cases import Clock, episode, restored, small_statistics


class Case:
    """A scheduler whose learners write down what they are asked for."""

    def __init__(self, clock, policies=1, **options):
        self.clock, self.sent, self.is_gone = clock, [], set()
        self.statistics = small_statistics(policies=policies)
        for policy in range(policies):
            self.statistics.add(restored(policy))
        values = {"save_every_sec": 100.0, "save_best_every_sec": 5.0, "save_best_after": 1000}
        self.more_state: dict[str, Any] = {}
        config: Any = types.SimpleNamespace(run=RunConfig(**(values | options)))
        unused: Any = None
        roster = Roster({LEARNER: Group(policies, 1)})
        context = ControllerContext(
            config, unused, roster, self.statistics, unused, unused, unused, unused, self.run_state
        )
        self.scheduler = CheckpointScheduler(context)
        self.scheduler.may_save = True

    def run_state(self, policy):
        return self.statistics.run_state(policy) | self.more_state

    def send(self):
        """What the driver does with the commands of a controller."""
        for command in self.scheduler.due(self.statistics.snapshot()):
            assert isinstance(command, SaveCheckpoint)
            if command.policy not in self.is_gone:
                self.sent.append((command.policy, command))

    def save_all(self, kind):
        self.scheduler.ask_for_all(kind)
        self.send()

    def wait(self, seconds):
        """Let time pass, looking ten times a second; the kinds asked for, with the seconds at which they were."""
        asked, start = [], self.clock.now
        for tenth in range(1, round(seconds * 10) + 1):
            self.clock.now = start + tenth / 10
            before = len(self.sent)
            self.send()
            asked += [(round(tenth / 10), policy, command.kind) for policy, command in self.sent[before:]]
        return asked

    def answer(self):
        """Everything that was asked for is on disk."""
        for policy, command in self.sent:
            self.scheduler.note(CheckpointSaved(policy, command.kind, "x.pth", command.request))
        self.sent.clear()

    def play(self, *values, policy=0, frames=5000, **extra):
        self.statistics.arrays["env_frames"][0, policy] += frames
        for value in values:
            self.statistics.add(episode(policy, value, **extra))


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for each in (module, files):
        monkeypatch.setattr(each, "time", made)
    return made


def test_every_policy_is_saved_at_its_interval(clock):
    case = Case(clock, policies=2)
    assert case.wait(250.0) == [(t, policy, "latest") for t in (100, 200) for policy in (0, 1)]


def milestones(case, seconds):
    return [t for t, _, kind in case.wait(seconds) if kind == "milestone"]


@pytest.mark.parametrize(("every_s", "expected"), [(30.0, [30, 60, 90]), (0.0, []), (-1.0, [])])
def test_milestones_are_saved_only_when_asked_for(clock, monkeypatch, every_s, expected):
    monkeypatch.setattr(statistics_module, "time", clock)
    assert milestones(Case(clock, save_milestones_sec=every_s), 100.0) == expected


def test_milestones_go_on_over_starts_that_are_shorter_than_their_interval(clock, monkeypatch):
    """Each start trains for 55 s, after 5 s of preparation, in which a milestone may come due."""
    monkeypatch.setattr(statistics_module, "time", clock)
    asked: list[list[int]] = []
    state: dict[str, Any] = {}
    for _ in range(5):
        case = Case(clock, save_milestones_sec=62.0)
        for each in (case.statistics.add, case.scheduler.note):
            each(restored(0, **state))
        clock.now += 5.0
        asked.append(milestones(case, 55.0))
        state = case.run_state(0)
    assert asked == [[], [0], [0], [1], [3]], "at 62, 124, 186 and 248 s in all"


def test_the_best_policy_is_saved_when_it_became_better(clock):
    case = Case(clock, save_every_sec=1e9)
    assert case.wait(6.0) == []
    case.play(1.0, 2.0)
    assert case.wait(6.0) == []  # an average over two of three episodes is luck
    case.play(3.0)
    assert [kind for _, _, kind in case.wait(6.0)] == ["best"]
    assert case.sent[-1][1].metric == 2.0 and case.sent[-1][1].metric_name == "reward"
    assert case.wait(20.0) == []  # the same is not better
    case.play(0.0)
    assert case.wait(6.0) == []
    case.play(9.0, 9.0)
    assert len(case.wait(6.0)) == 1
    assert case.scheduler.best == [-math.inf]  # nothing of it is on disk yet
    case.answer()
    assert case.scheduler.best == [6.0]


def test_a_start_that_ends_before_the_next_look_leaves_its_best_policy_as_well(clock):
    case = Case(clock, save_every_sec=1e9)
    case.play(1.0, 2.0, 3.0)
    case.save_all("latest")
    assert [command.kind for _, command in case.sent] == ["best", "latest"]
    case.answer()
    case.save_all("latest")  # the same is not better
    assert [command.kind for _, command in case.sent] == ["latest"]


def test_there_is_no_best_before_enough_frames(clock):
    case = Case(clock, save_every_sec=1e9)
    case.play(1.0, 2.0, 3.0, frames=999)
    assert case.wait(6.0) == []
    case.play(frames=1)
    assert len(case.wait(6.0)) == 1


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("reward", 2.0), ("true_reward", 20.0), ("len", 10.0), ("kills", 5.0), ("unheard_of", None)],
)
def test_any_average_may_decide_what_is_best(clock, metric, expected):
    case = Case(clock, save_every_sec=1e9, save_best_metric=metric)
    case.play(2.0, 2.0, 2.0, true=20.0, kills=5.0)
    case.wait(6.0)
    assert [command.metric for _, command in case.sent] == ([] if expected is None else [expected])


def test_each_policy_has_its_own_best(clock):
    case = Case(clock, policies=2, save_every_sec=1e9)
    case.play(1.0, 1.0, 1.0, policy=1)
    case.wait(6.0)
    case.play(5.0, 5.0, 5.0, policy=0)
    case.wait(6.0)
    assert [(policy, command.metric) for policy, command in case.sent] == [(1, 1.0), (0, 5.0)]
    case.answer()
    assert case.scheduler.best == [5.0, 1.0]


def test_a_command_holds_what_the_driver_knows(clock):
    case = Case(clock, policies=2)
    case.more_state = {"population": [1, 2]}
    case.play(4.0, policy=1, frames=77)
    case.save_all("latest")
    [(_, first), (policy, command)] = case.sent
    assert policy == 1 and command.kind == "latest" and math.isnan(command.metric)
    assert command.env_frames == command.run_state["env_frames"] == 77
    assert command.run_state["episodes"]["returns"] == [4.0] and command.run_state["population"] == [1, 2]
    assert first.request != command.request


def test_it_waits_for_what_was_asked_for(clock):
    case = Case(clock, policies=2)
    assert not case.scheduler.awaited
    case.save_all("latest")
    requests = [command.request for _, command in case.sent]
    assert case.scheduler.awaited and len(requests) == 2
    case.scheduler.note(CheckpointSaved(0, "latest", "a.pth", requests[0]))
    assert case.scheduler.awaited
    case.scheduler.note(CheckpointFailed(1, "latest", "disk full", requests[1]))
    assert not case.scheduler.awaited and case.scheduler.failures == 1


def test_a_learner_that_takes_the_place_of_a_lost_one_is_asked_for_what_that_had_not_saved(clock):
    case = Case(clock, policies=2)
    case.save_all("latest")
    case.is_gone.add(1)
    case.save_all("milestone")  # is asked of nobody yet
    [(_, mine), (_, first), (_, milestone)] = case.sent
    case.scheduler.note(CheckpointSaved(0, "latest", "a.pth", mine.request))
    case.is_gone.clear()
    case.sent.clear()
    case.scheduler.note(WorkerReady("learner-1", 1, 0.5))
    case.send()
    assert [(policy, command.kind) for policy, command in case.sent] == [(1, "latest"), (1, "milestone")]
    assert case.sent[0][1] == first
    for _, command in case.sent:
        case.scheduler.note(CheckpointSaved(1, command.kind, "b.pth", command.request))
    assert case.scheduler.awaited  # policy 0 has not told of its milestone
    case.scheduler.note(CheckpointSaved(0, "milestone", "c.pth", milestone.request))
    assert not case.scheduler.awaited


def test_failures_are_told_once_a_minute_with_their_number(clock, caplog):
    case = Case(clock)
    with caplog.at_level(logging.WARNING):
        for second in range(150):
            case.scheduler.note(CheckpointFailed(0, "latest", f"disk full at {second}", second))
            clock.now += 1.0
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "disk full at 0 (1 failures so far)",
        "disk full at 60 (61 failures so far)",
        "disk full at 120 (121 failures so far)",
    ]


def test_the_run_is_unsaved_as_long_as_the_newest_answer_about_a_policy_is_bad_or_missing(clock):
    case = Case(clock, policies=2)
    assert case.scheduler.why_unsaved() == ""
    case.save_all("latest")
    first, second = (command.request for _, command in case.sent)
    case.scheduler.note(CheckpointSaved(0, "latest", "a.pth", first))
    assert "in time" in case.scheduler.why_unsaved()
    case.scheduler.note(CheckpointFailed(1, "latest", "disk full", second))
    assert not case.scheduler.awaited and case.scheduler.why_unsaved() == "disk full"
    case.scheduler.note(CheckpointSaved(1, "best", "b.pth", 99))
    assert case.scheduler.why_unsaved() == "disk full"  # a resume does not start from the best
    case.scheduler.note(CheckpointSaved(1, "latest", "c.pth", 100))
    assert case.scheduler.why_unsaved() == ""


def test_a_request_that_failed_is_made_good_by_a_later_one_and_by_no_earlier_one(clock):
    case = Case(clock, save_every_sec=1.0)
    case.wait(100.0)  # as many are open as may be
    case.save_all("latest")
    *earlier, last = (command.request for _, command in case.sent)
    case.scheduler.note(CheckpointFailed(0, "latest", "too slow", last))
    for request in earlier:
        case.scheduler.note(CheckpointSaved(0, "latest", "a.pth", request))
    assert not case.scheduler.awaited and case.scheduler.why_unsaved() == "too slow"
    case.scheduler.note(CheckpointSaved(0, "latest", "b.pth", last + 1))
    case.scheduler.note(CheckpointFailed(0, "latest", "an earlier one", last))
    assert case.scheduler.why_unsaved() == ""


def test_a_resumed_run_knows_what_was_best(clock):
    case = Case(clock, policies=2, save_every_sec=1e9)
    for report in (restored(0, best=3.0), restored(1)):
        case.scheduler.note(report)
    assert case.scheduler.best == [3.0, -math.inf]
    case.play(2.0, 2.0, 2.0)
    assert case.wait(6.0) == []
    case.play(4.0, 4.0, 4.0)
    assert len(case.wait(6.0)) == 1


def test_a_best_checkpoint_that_failed_is_asked_for_again_while_it_is_still_better(clock):
    case = Case(clock, save_every_sec=1e9)
    case.play(1.0, 1.0, 1.0)
    assert len(case.wait(6.0)) == 1
    case.answer()
    case.play(5.0, 5.0, 5.0)
    assert len(case.wait(6.0)) == 1
    [(_, command)] = case.sent
    assert case.wait(20.0) == []  # it is on its way
    case.scheduler.note(CheckpointFailed(0, "best", "disk full", command.request))
    assert case.scheduler.best == [1.0]
    assert len(case.wait(6.0)) == 1 and case.sent[-1][1].metric == 5.0
    case.scheduler.note(CheckpointFailed(0, "best", "disk full", case.sent[-1][1].request))
    case.play(0.5, 0.5, 0.5)
    assert case.wait(20.0) == []
    case.play(3.0, 3.0, 3.0)
    assert len(case.wait(6.0)) == 1 and case.sent[-1][1].metric == 3.0
    case.answer()
    assert case.scheduler.best == [3.0]


def test_an_answer_that_comes_twice_or_late_takes_nothing_back(clock):
    case = Case(clock, save_every_sec=1e9)
    for value in (2.0, 4.0):
        case.play(value, value, value)
        assert len(case.wait(6.0)) == 1
    first, second = (CheckpointSaved(0, "best", "x.pth", command.request) for _, command in case.sent)
    for answer in (second, first, first):
        case.scheduler.note(answer)
    assert case.scheduler.best == [4.0] and not case.scheduler.awaited


def test_no_best_is_picked_from_fewer_episodes_with_the_metric_than_its_average_covers(clock):
    case = Case(clock, save_every_sec=1e9, save_best_metric="kills")
    case.play(1.0, 1.0, 1.0, 1.0)
    case.play(1.0, kills=99.0)
    assert case.wait(6.0) == []
    case.play(1.0, 1.0, kills=3.0)
    assert len(case.wait(6.0)) == 1 and case.sent[0][1].metric == 35.0


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_no_number_is_no_best(clock, value):
    case = Case(clock, save_every_sec=1e9, save_best_metric="kills")
    case.play(1.0, 1.0, 1.0, kills=value)
    assert case.wait(6.0) == []


def test_a_learner_that_answers_nothing_is_not_asked_without_end(clock):
    case = Case(clock, save_every_sec=1.0)
    assert len(case.wait(100.0)) == MOST_OPEN
    case.save_all("latest")  # the last one is asked for in any case
    assert len(case.sent) == MOST_OPEN + 1
    case.answer()
    assert len(case.wait(2.5)) == 2


def test_nothing_is_saved_before_the_options_have_worked(clock):
    case = Case(clock)
    case.scheduler.may_save = False
    assert case.wait(250.0) == []
    case.scheduler.may_save = True
    assert [kind for _, _, kind in case.wait(1.0)] == ["latest"]


@pytest.mark.parametrize("ends", [False, True])
def test_a_best_metric_that_no_episode_has_is_told_once_with_the_nearest(clock, caplog, ends):
    case = Case(clock, save_best_metric="kils")
    point = case.statistics.snapshot()._replace(points=(Point(0, 1, {}),))
    for _ in range(2 * LOOKS_BEFORE_WARNING):
        case.scheduler.due(point)
    assert not caplog.records, "no episode has ended"
    case.play(1.0, kills=3.0)
    for _ in range(3 if ends else 2 * LOOKS_BEFORE_WARNING):
        case.scheduler.due(point)
    assert len(caplog.records) == (0 if ends else 1)
    for _ in range(2):
        case.scheduler.end(point)
    [record] = caplog.records
    assert record.getMessage().startswith(
        "save_best_metric=kils is in no episode so far, so no checkpoint is best; there"
    )
    assert "there are kills; " in record.getMessage()


def test_a_best_metric_that_comes_late_is_not_told_of(clock, caplog):
    case = Case(clock, save_best_metric="eval_score")
    point = case.statistics.snapshot()._replace(points=(Point(0, 1, {}),))
    case.play(1.0)
    for _ in range(2 * LOOKS_BEFORE_WARNING):
        case.scheduler.due(point)  # no evaluation has been made
    case.statistics.add(EvaluationFinished(0, 1, 1, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, {"score": 3.0}, 1.0))
    case.scheduler.due(point)
    case.scheduler.end(point)
    assert not caplog.records


def test_one_evaluation_shows_that_a_best_metric_is_misspelt(clock, caplog):
    case = Case(clock, save_best_metric="eval_rewrd")
    point = case.statistics.snapshot()._replace(points=(Point(0, 1, {}),))
    case.play(*[1.0] * EPISODES_BEFORE_WARNING)
    case.scheduler.due(point)
    assert not caplog.records, "no evaluation has been made"
    case.statistics.add(EvaluationFinished(0, 1, 1, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, {}, 1.0))
    case.scheduler.due(point)
    case.scheduler.end(point)
    [record] = caplog.records
    told = "save_best_metric=eval_rewrd is in no evaluation so far, so no checkpoint is best; there are eval_reward,"
    assert record.getMessage().startswith(told)


def test_a_hundred_episodes_show_that_a_best_metric_is_misspelt(clock, caplog):
    case = Case(clock, save_best_metric="kils")
    point = case.statistics.snapshot()._replace(points=(Point(0, 1, {}),))
    case.play(*[1.0] * (EPISODES_BEFORE_WARNING - 1), kills=1.0)
    case.scheduler.due(point)
    assert not caplog.records
    case.play(1.0, kills=1.0)
    case.scheduler.due(point)
    case.scheduler.due(point)
    [record] = caplog.records
    assert "there are kills;" in record.getMessage()


def test_only_episodes_of_this_start_show_that_a_best_metric_is_misspelt(clock, caplog):
    before = Case(clock)
    before.play(*[1.0] * EPISODES_BEFORE_WARNING)
    case = Case(clock, save_best_metric="kills")
    case.statistics.add(restored(0, **before.run_state(0)))
    point = case.statistics.snapshot()._replace(points=(Point(0, 1, {}),))
    case.scheduler.due(point)
    case.play(1.0, kills=1.0)
    case.scheduler.due(point)
    assert not caplog.records
