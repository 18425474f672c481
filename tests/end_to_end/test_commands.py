"""Options that a controller changes while real workers train: in force in the learner, its successor, a resumed run."""

from __future__ import annotations

import signal

import pytest

from appo.utils.files import read_json_lines
from tests.end_to_end.conftest import ROOT, SMALL
from tests.end_to_end.test_deaths import events

# The interpreter imports this at its start. It adds a controller to the driver's table, which sends a command once.
CONTROLLER = """
import pathlib
from appo.algorithms.messages import SetHyperparameters
from appo.algorithms.run.controllers import table
from appo.algorithms.run.controllers.context import Controller

class Changes(Controller):
    def __init__(self, context):
        self.left = [SetHyperparameters(0, {"learning_rate": 0.00077}), SetHyperparameters(0, {"learning_rate": -1.0})]

    def note(self, report):
        pass

    def due(self, snapshot):
        return [self.left.pop(0)] if self.left and pathlib.Path("now").exists() else []

table.CONTROLLERS += (Changes,)
"""


def rates(run):
    points = read_json_lines(run.folder / "metrics.jsonl")
    return [point["train/lr"] for point in points if "train/lr" in point]


def test_a_changed_option_is_in_force_in_the_learner_its_successor_and_a_resumed_run(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CONTROLLER)
    before = ["env", f"PYTHONPATH={tmp_path}:{ROOT}"]
    run = start(*SMALL, "--learning_rate=0.0005", "--snapshot_every_sec=1", before=before)
    run.wait_for_training(frames=3000)
    run.wait_for(lambda: rates(run))
    assert set(rates(run)) == {0.0005}
    (tmp_path / "now").touch()
    [changed] = run.wait_for(lambda: events(run, "hyperparameters_changed"))
    assert changed["values"] == {"learning_rate": 0.00077}
    [refused] = run.wait_for(lambda: events(run, "hyperparameters_refused"))
    assert "learning_rate=-1.0" in refused["reason"]
    run.wait_for(lambda: rates(run)[-1] == pytest.approx(0.00077))
    run.kill("learner-0")
    run.wait_for(lambda: events(run, "working"))
    steps = run.status()["policies"][0]["train_steps"]
    run.wait_for(lambda: run.status()["policies"][0]["train_steps"] > steps)
    count = len(rates(run))  # points repeat the last report of the learner that was lost
    run.wait_for(lambda: len(rates(run)) > count + 2)
    assert rates(run)[-1] == pytest.approx(0.00077)
    (tmp_path / "now").unlink()
    run.signal(signal.SIGTERM)
    assert run.end() == 143, run.output
    again = start(*SMALL, "--learning_rate=0.0005")
    count = len(rates(run))
    again.wait_for(lambda: len(rates(again)) > count)
    again.signal(signal.SIGTERM)
    assert again.end() == 143, again.output
    assert rates(again)[-1] == pytest.approx(0.00077)
