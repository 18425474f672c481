"""What a run says at its end of evaluations that are missing, and what the worker tells of the one that is cut off."""

import types
from typing import Any

import numpy as np
import pytest

from appo.algorithms.messages import (
    EvaluationCutOff,
    EvaluationFinished,
    EvaluationVideoSaved,
    Ready,
    WorkerLost,
    WorkerQuarantined,
    WorkerReady,
)
from appo.algorithms.run.controllers import evaluations as module
from appo.algorithms.run.controllers.evaluations import Evaluations
from appo.algorithms.workers import evaluation_worker
from appo.algorithms.workers.evaluation_worker import EvaluationWorker
from tests.reporting.reporting_cases import Clock

CUT_OFF = EvaluationCutOff(0, 7, 3, 6.0)
LOST = WorkerLost("evaluation", 0, "running", "killed by SIGKILL")


def finished(policy):
    return EvaluationFinished(policy, 1, 5, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, {}, 1.0)


def said(caplog, monkeypatch, *reports, every=4.0, video=0.0, policies=1, metric="reward", lasts=30.0, state="ended"):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    workers = types.SimpleNamespace(eval_every_sec=every, eval_episodes=5, eval_video_every_sec=video)
    sampling, run = types.SimpleNamespace(num_policies=policies), types.SimpleNamespace(save_best_metric=metric)
    config = types.SimpleNamespace(workers=workers, sampling=sampling, run=run)
    context: Any = types.SimpleNamespace(config=config)
    last: Any = types.SimpleNamespace(state=state)
    controller = Evaluations(context)
    for report in reports:
        if isinstance(report, float):
            clock.now += report
        else:
            controller.note(report)
    clock.now += lasts
    assert not controller.due(last)
    with caplog.at_level("INFO"):
        controller.end(last)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_one_that_was_cut_off_is_told_with_what_is_missing_for_it(caplog, monkeypatch):
    reports = [Ready("evaluation"), CUT_OFF]
    [(level, told)] = said(caplog, monkeypatch, *reports, video=5.0, metric="eval_reward")
    assert level == "WARNING"
    assert told == (
        "no evaluation was finished, so there are no eval/ tags, no best checkpoint by eval_reward and no videos: "
        "3 of 5 episodes were played in 6 s when the run ended; a smaller --eval_every_sec, fewer --eval_episodes or "
        "a longer run gives some"
    )


@pytest.mark.parametrize(
    ("reports", "lasts", "why"),
    [
        ([Ready("actor-00")], 30.0, "its environments were still being built"),
        ([Ready("evaluation")], 3.0, "the run ended 3 s after its process was ready; one was due after 4"),
        ([Ready("evaluation")], 30.0, "the run ended before"),
        ([Ready("evaluation"), 30.0, WorkerReady("evaluation", 1, 0.5)], 3.0, "the run ended 3 s after"),
        ([Ready("evaluation"), LOST], 30.0, "its environments were still being built"),
        ([WorkerQuarantined("evaluation", "4 times")], 30.0, "its process failed again and again; see log/evaluation"),
        ([WorkerQuarantined("actor-00", "4 times"), CUT_OFF], 30.0, "3 of 5 episodes were played"),
    ],
)
def test_that_there_was_none_is_told_with_the_cause(caplog, monkeypatch, reports, lasts, why):
    [(level, told)] = said(caplog, monkeypatch, *reports, lasts=lasts)
    assert level == "WARNING" and told.startswith("no evaluation was finished, so there are no eval/ tags: ")
    assert why in told and "video" not in told


def test_policies_that_were_not_evaluated_are_named(caplog, monkeypatch):
    [(_, told)] = said(caplog, monkeypatch, Ready("evaluation"), finished(0), finished(2), CUT_OFF, policies=4)
    assert told.startswith("no evaluation of policy 1, 3 was finished: 3 of 5")


def test_the_last_of_several_is_told_without_a_warning(caplog, monkeypatch):
    [(level, told)] = said(caplog, monkeypatch, Ready("evaluation"), finished(0), CUT_OFF)
    assert level == "INFO" and told.startswith("the last evaluation is not reported: 3 of 5 episodes")


def test_nothing_is_said_where_nothing_is_missing(caplog, monkeypatch):
    assert not said(caplog, monkeypatch, Ready("evaluation"), finished(0))
    assert not said(caplog, monkeypatch, finished(0), EvaluationVideoSaved(0, 1, "x.gif"), video=5.0)
    assert not said(caplog, monkeypatch, every=0.0)
    assert not said(caplog, monkeypatch, state="starting"), "the run has not begun"


def test_evaluations_of_which_none_was_recorded_are_told(caplog, monkeypatch):
    [(level, told)] = said(caplog, monkeypatch, finished(0), video=5.0)
    assert level == "WARNING" and told.startswith("no evaluation was recorded")


class Weights:
    def read_into(self, _):
        return types.SimpleNamespace(version=7)


@pytest.mark.parametrize(("is_complete", "tells"), [(False, EvaluationCutOff), (True, EvaluationFinished)])
def test_the_worker_tells_what_the_end_of_the_run_cut_off_and_what_was_just_finished(monkeypatch, is_complete, tells):
    made: Any = EvaluationWorker.__new__(EvaluationWorker)
    spec = types.SimpleNamespace(agents_per_env=2)
    made.job = types.SimpleNamespace(spec=spec, episodes=5, deterministic=False)
    received = types.SimpleNamespace(numpy=lambda: None)
    made._policies = [types.SimpleNamespace(received=received, adopt_received=lambda: None)]
    made._weights, made._env = [Weights()], None
    made.counters = types.SimpleNamespace(stop_requested=True, count=lambda _: None)
    reports: list[Any] = []
    made.report = reports.append
    made._record = lambda *_: pytest.fail("the run has ended")
    numbers = np.ones(6)
    means = dict.fromkeys(("mean", "sem", "min", "max"), 1.0)
    result = types.SimpleNamespace(
        **means,
        returns=numbers,
        true_returns=numbers,
        lengths=numbers,
        matches=np.repeat(np.arange(3), 2),
        extra={},
        wall_time=2.0,
        is_complete=is_complete,
    )
    monkeypatch.setattr(evaluation_worker, "evaluate_policy", lambda *_, **__: result)
    made._score(0)
    [report] = reports
    assert isinstance(report, tells) and report.version == 7
    if not is_complete:
        assert report == CUT_OFF._replace(seconds=2.0)
