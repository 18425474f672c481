"""A controller and a sink are added by a line in one table each, and the rest of a run knows them."""

import json

import pytest
import torch

from appo.algorithms.config import resolve
from appo.algorithms.messages import EpisodesFinished, SaveCheckpoint, TrainingReport
from appo.algorithms.run import driver as module
from appo.algorithms.run import resources
from appo.algorithms.run.controllers.context import Controller
from appo.algorithms.run.driver import Driver
from appo.algorithms.run.experiment import Experiment
from appo.algorithms.run.serial import SerialWorkerPool
from appo.algorithms.workers.seeds import Seeds
from appo.envs.registry import probe
from appo.utils.signals import StopSignals

OPTIONS = ["--batch_size=128", "--rollout=8", "--num_workers=1", "--num_envs_per_worker=8", "--use_rnn=False"]


class SavesOften(Controller):
    """Asks for a milestone with every iteration that it hears of."""

    made: list["SavesOften"] = []  # noqa: RUF012

    def __init__(self, context):
        self.heard, self.asked, self._to_ask = set(), 0, 0
        self.made.append(self)

    def note(self, report):
        self.heard.add(type(report))
        self._to_ask += isinstance(report, TrainingReport)

    def due(self, snapshot):
        commands = []
        for _ in range(self._to_ask):
            self.asked += 1
            commands.append(SaveCheckpoint(0, "milestone", snapshot.env_frames, run_state(), self.asked, 0.0, ""))
        self._to_ask = 0
        return commands

    def scalars(self, policy):
        return {"zz_test/asked": float(self.asked)}


class FailsAtEnd(Controller):
    """Comes before another one in the table."""

    def __init__(self, context):
        pass

    def note(self, report):
        pass

    def due(self, snapshot):
        return ()

    def end(self, last):
        raise ValueError("as told")


class SeesTheEnd(FailsAtEnd):
    """Keeps what there is when it is told of the end."""

    seen: list[tuple[str, str]] = []  # noqa: RUF012

    def __init__(self, context):
        self._summary = context.config.run.folder / "summary.json"

    def end(self, last):
        reason = json.loads(self._summary.read_text())["reason"] if self._summary.exists() else ""
        self.seen.append((last.state, reason))


class Hears:
    """A user's own class."""

    def __init__(self):
        self.heard = []

    def on_point(self, policy, env_frames, tags):
        self.heard.append(env_frames)

    def on_end(self):
        self.heard.append("end")


class Remembers:
    """A sink that keeps the states of the snapshots that it was given."""

    made: list["Remembers"] = []  # noqa: RUF012

    def __init__(self, files):
        self.states, self.points, self.is_closed = [], [], False
        self.made.append(self)

    def write(self, snapshot):
        self.states.append((snapshot.state, snapshot.env_frames))
        self.points += snapshot.points

    def close(self):
        self.is_closed = True


def run_state():
    return {"env_frames": 1, "train_seconds": 1.0, "episodes": {}}


@pytest.fixture
def callback():
    return Hears()


@pytest.fixture
def driver(tmp_path, monkeypatch, callback):
    """Of a whole run in one process, with controllers and a sink more than the tables have."""
    more = (SavesOften, FailsAtEnd, SeesTheEnd)
    monkeypatch.setattr(module, "CONTROLLERS", (*module.CONTROLLERS, *more))
    monkeypatch.setattr(module, "SINKS", (*module.SINKS, Remembers))
    threads, stop = torch.get_num_threads(), StopSignals(lambda: pytest.fail("nobody asked for the end"))
    words = ["--env=synthetic_identity", f"--train_dir={tmp_path}", "--device=cpu", "--seed=1", "--serial_mode=True"]
    resolved = resolve([*words, "--train_for_env_steps=2000", *OPTIONS])
    config, spec = resolved.config, probe("synthetic_identity", resolved.config.family)
    shared = resources.allocate(config, resources.sizes_of(config, spec))
    experiment = Experiment.open(resolved, words)
    plan = resources.plan_of(config, spec, "cpu", [experiment.checkpoint_dir(0)], Seeds(1, 0))
    yield Driver(config, experiment, SerialWorkerPool(plan, shared), shared, stop, callback)
    experiment.close()
    stop.restore()
    torch.set_num_threads(threads)
    for kept in (SavesOften.made, SeesTheEnd.seen, Remembers.made):
        kept.clear()


@pytest.fixture
def run(driver):
    """The experiment of a run that was followed to its end."""
    driver.run()
    driver.end("the test is over", 0.0)
    return driver._experiment


def test_a_controller_hears_every_report_and_its_commands_are_carried_out(run):
    (controller,) = SavesOften.made
    assert {TrainingReport, EpisodesFinished} <= controller.heard
    milestones = list((run.checkpoint_dir(0) / "milestones").iterdir())
    assert controller.asked >= 3 and milestones


def test_tags_of_a_controller_are_in_the_points(run):
    [controller], [sink] = SavesOften.made, Remembers.made
    assert sink.points[-1].scalars["zz_test/asked"] == controller.asked


def test_a_sink_is_given_every_snapshot_to_the_last_and_is_closed(run):
    (sink,) = Remembers.made
    assert sink.states[-1][0] == "ended" and sink.is_closed
    assert {state for state, _ in sink.states[:-1]} == {"training"}
    frames = [frames for _, frames in sink.states]
    assert frames == sorted(frames) and frames[-1] >= 2000


@pytest.mark.usefixtures("run")
def test_controllers_end_after_the_summary_is_written_and_each_whatever_becomes_of_the_others(caplog):
    assert SeesTheEnd.seen == [("ended", "the test is over")]
    warnings = [record.getMessage() for record in caplog.get_records("setup") if record.levelname == "WARNING"]
    assert "FailsAtEnd failed at the end of the run: ValueError('as told')" in warnings


def test_controllers_of_a_run_that_ends_before_it_has_begun_end_as_well_and_are_given_no_numbers(driver, callback):
    driver.end("stopped by SIGINT", 0.0)
    assert SeesTheEnd.seen == [("starting", "")] and callback.heard == ["end"]
    (sink,) = Remembers.made
    assert not sink.states and sink.is_closed
