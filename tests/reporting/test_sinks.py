"""Where a run's numbers go: the same ones into TensorBoard and metrics.jsonl, and the run as it stands."""

import errno
import io
import itertools
import json
import math
import os
import re
import shutil
import sys
import warnings

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.messages import PolicyRestored
from appo.algorithms.reporting import statistics as statistics_module
from appo.algorithms.reporting.bottleneck import Finding
from appo.algorithms.reporting.budget import Budget
from appo.algorithms.reporting.sinks import status as status_module
from appo.algorithms.reporting.sinks import tensorboard as tensorboard_module
from appo.algorithms.reporting.sinks.status import as_json, from_json, write_summary
from appo.algorithms.reporting.sinks.table import SINKS, view
from appo.algorithms.reporting.sinks.terminal import NoLines, TerminalLines, status_line
from appo.algorithms.reporting.sinks.terminal_view import TerminalView
from appo.algorithms.run.config import RunConfig
from appo.algorithms.run.experiment import Experiment
from appo.utils import files as files_module
from appo.utils.files import read_json_lines
from tests.reporting.reporting_cases import Clock, episode, small_statistics, training
from tests.reporting.terminal_emulator import PseudoTerminal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that TensorBoard's reader loads
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for each in (tensorboard_module, statistics_module, files_module):
        monkeypatch.setattr(each, "time", made)
    return made


class Run:
    """The sinks of a run with two policies that is told about its events by the test."""

    def __init__(self, folder, policies=2, every_s=20.0):
        options = [f"--train_dir={folder}", "--experiment=first", f"--num_policies={policies}"]
        self.experiment = Experiment.open(resolve(["--env=CartPole-v1", *options]), ["train_appo.py"])
        self.experiment.accept()
        self.statistics = small_statistics(policies=policies, budget=Budget(10_000, 500.0), every_s=every_s)
        for policy in range(policies):
            self.statistics.add(PolicyRestored(policy, "", 0, {}, math.nan, [], {}, 0))
        self.files = self.experiment.output_files(policies)
        self.sinks = [make(self.files) for make in SINKS]

    def write(self):
        """One turn of the driver."""
        self._hand_out(self.statistics.snapshot())

    def write_point(self):
        """A point now, due or not."""
        self.statistics._next_point = 0.0
        self.write()

    def close(self):
        self._hand_out(self.statistics.last_snapshot())
        for sink in self.sinks:
            sink.close()

    def _hand_out(self, snapshot):
        for sink in self.sinks:
            sink.write(snapshot)

    def lines(self):
        path = self.experiment.metrics_file
        return list(read_json_lines(path)) if path.exists() else []

    def status(self):
        return json.loads(self.experiment.status_file.read_text())

    def events(self, policy):
        """Tag -> [(x, value)] as TensorBoard reads it."""
        accumulator = EventAccumulator(str(self.experiment.summary_dir(policy)), size_guidance={"scalars": 0})
        accumulator.Reload()
        tags = accumulator.Tags()["scalars"]
        return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


@pytest.fixture
def run(tmp_path, clock):
    made = Run(tmp_path)
    yield made
    made.experiment.close()


def test_nothing_is_written_before_there_is_something_to_say(run, clock):
    for _ in range(100):
        run.write()
        clock.now += 1.0
    assert run.lines() == []
    assert run.status()["policies"][0]["avg_reward"] is None


def test_the_first_point_comes_with_the_first_episodes_of_a_policy(run, clock):
    run.statistics.add(training(0, loss=1.0))
    run.write()
    clock.now += 0.1
    run.statistics.add(episode(0, 3.0))
    run.write()
    clock.now += 0.1
    run.statistics.add(episode(0, 4.0))
    run.write()  # neither the first episodes nor due
    clock.now += 0.1
    run.statistics.add(episode(1, 7.0))
    run.write()
    seen = [(line["policy"], line.get("0_aux/avg_reward")) for line in run.lines()]
    assert seen == [(0, None), (1, None), (0, 3.0), (1, None), (0, 3.5), (1, 7.0)]


def test_points_come_at_their_interval_and_status_every_second(run, clock):
    run.statistics.add(training(0, loss=1.0))
    run.statistics.arrays["env_frames"][...] = 1
    times: list[float] = []
    statuses = 0
    for _ in range(1000):
        before = run.experiment.status_file.stat().st_mtime_ns if run.experiment.status_file.exists() else 0
        run.write()
        statuses += run.experiment.status_file.stat().st_mtime_ns != before
        times = [line["time"] for line in run.lines() if line["policy"] == 0] if len(times) < 3 else times
        clock.now += 0.1
    times = [line["time"] for line in run.lines() if line["policy"] == 0]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[:19] == pytest.approx([0.5] * 19, abs=0.15), "at first, when most changes"
    assert all(after >= before - 0.15 for before, after in itertools.pairwise(gaps)) and gaps[-1] > 4.0
    assert 85 <= statuses <= 101


def test_the_first_frames_are_told_at_once(run, clock):
    run.write()
    clock.now += 0.3
    run.statistics.arrays["env_frames"][...] = [[7, 0], [0, 0]]
    run.write()
    assert json.loads(run.experiment.status_file.read_text())["env_frames"] == 7


def test_tensorboard_and_metrics_jsonl_hold_the_same_numbers_over_the_frames_of_each_policy(run, clock):
    for point in range(3):
        run.statistics.arrays["env_frames"][...] += [[100, 10], [200, 20]]
        run.statistics.add(episode(0, 1.0 + point, kills=point))
        run.statistics.add(episode(1, -5.0))
        run.statistics.add(training(0, loss=0.5 * point, entropy=math.nan, version_diff_avg=1.0))
        run.write_point()
        clock.now += 10.0
    clock.now += 1.0
    run.close()
    lines = run.lines()
    assert len(lines) == 2 * 4  # three points and the last one
    for policy, frames in enumerate([[300, 600, 900, 900], [30, 60, 90, 90]]):
        of_policy = [line for line in lines if line["policy"] == policy]
        assert [line["env_frames"] for line in of_policy] == frames
        scalars = [{tag: value for tag, value in line.items() if "/" in tag} for line in of_policy]
        events = run.events(policy)
        assert set(events) == set().union(*scalars)
        for tag, points in events.items():
            expected = [(x, line[tag]) for x, line in zip(frames, scalars, strict=True) if tag in line]
            assert [x for x, _ in points] == [x for x, _ in expected]
            assert [value for _, value in points] == pytest.approx([value for _, value in expected], rel=1e-5)
    first = run.events(0)
    assert [value for _, value in first["0_aux/avg_reward"]] == [1.0, 1.5, 2.0, 2.0]
    assert {"0_aux/_fps", "0_aux/avg_kills", "0_aux/policy_lag_avg", "train/loss", "stats/actor_env_step"} <= set(first)
    assert "train/entropy" not in first and "train/entropy" not in lines[0]  # not a number
    assert "train/loss" not in run.events(1)
    assert all("NaN" not in text for text in run.experiment.metrics_file.read_text().splitlines())


def test_status_json_says_how_the_run_stands(run, clock):
    run.statistics.arrays["env_frames"][...] = [[1000, 0], [1500, 0]]
    run.statistics.arrays["train_steps"][...] = [12, 0]
    run.statistics.add(episode(0, 4.0, true=8.0))
    run.statistics.add(training(0, version_diff_avg=2.5))
    clock.now += 50.0
    run.write()
    told = run.status()
    assert told["state"] == "training" and told["time"] == clock.time()
    assert (told["env_frames"], told["train_seconds"], told["budget_spent"]) == (2500, 50.0, 0.25)
    assert told["fps"] == {"10": 0.0, "60": 0.0, "300": 0.0} and told["seconds_left"] == 450.0
    assert told["policies"] == [
        {
            "env_frames": 2500,
            "train_steps": 12,
            "episodes": 1,
            "avg_reward": 4.0,
            "avg_true_reward": 8.0,
            "policy_lag": 2.5,
            "has_new_episodes": True,
        },
        {
            "env_frames": 0,
            "train_steps": 0,
            "episodes": 0,
            "avg_reward": None,
            "avg_true_reward": None,
            "policy_lag": None,
            "has_new_episodes": False,
        },
    ]


def test_closing_writes_a_last_point(run, clock):
    run.statistics.add(episode(1, 2.0))
    clock.now += 1.0
    run.close()
    assert [line.get("0_aux/avg_reward") for line in run.lines()] == [None, 2.0]
    assert run.events(1)["0_aux/avg_reward"] == [(0, 2.0)]


def moving(clock, budget, frames_per_s=100, seconds=50):
    """A run that has made so many frames in each second."""
    statistics = small_statistics(budget=budget)
    for _ in range(seconds):
        statistics.snapshot()
        clock.now += 1.0
        statistics.arrays["env_frames"][0, 0] += frames_per_s
    return statistics


def test_a_budget_is_spent_by_frames_or_seconds_whichever_comes_first(clock):
    snapshot = moving(clock, Budget(10_000, 1000.0)).snapshot()
    assert snapshot.budget_spent == 0.5 and snapshot.seconds_left == pytest.approx(50.0)
    assert Budget(10_000, 60.0).spent(5000, 50.0) == pytest.approx(50 / 60)
    assert Budget(10_000, 60.0).seconds_left(5000, 50.0, 100.0) == pytest.approx(10.0)
    assert Budget(5_000, 1000.0).spent(5000, 50.0) == 1.0
    assert Budget(5_000, 1000.0).reason(5000) == "reached train_for_env_steps=5000"
    assert Budget(10_000, 50.0).reason(5000) == "reached train_for_seconds=50"
    assert Budget(1_234_567, 50.0).reason(1_234_567) == "reached train_for_env_steps=1234567"


@pytest.mark.parametrize("budget", [Budget(0, 100.0), Budget(100, 0.0)])
def test_a_budget_of_nothing_is_spent_from_the_start(budget):
    assert budget.spent(0, 0.0) >= 1.0


def test_a_run_without_progress_has_no_estimate_of_its_remaining_time(clock):
    assert Budget(100, math.inf).seconds_left(0, 0.0, 0.0) == math.inf
    assert small_statistics(budget=Budget(100, math.inf)).snapshot().seconds_left is None


def test_the_line_on_the_terminal_is_short_and_complete(clock):
    statistics = moving(clock, Budget(1_000_000, 1e9), frames_per_s=12_345)
    assert "reward - (no episode has ended)  lag -" in status_line(statistics.snapshot())
    statistics.add(episode(0, 3.14159))
    statistics.add(training(0, version_diff_avg=1.26))
    line = status_line(statistics.snapshot())
    assert line == "fps (10/60/300 s) 12.35k/12.35k/12.35k  frames 617.25k  reward 3.14  lag 1.3 steps  left 0:00:31"


def test_a_return_of_the_start_before_is_not_told_as_one_of_this_start(clock):
    statistics = moving(clock, Budget(1_000_000, 1e9), frames_per_s=12_345)
    statistics.add(episode(0, 3.14159))
    snapshot = statistics.snapshot()
    old = snapshot._replace(policies=[snapshot.policies[0]._replace(has_new_episodes=False)])
    assert "  reward 3.14 (earlier)  " in status_line(old) and "  reward 3.14  " in status_line(snapshot)
    assert "  reward 3.14 (earlier)" in status_line(old, 60)
    both = snapshot._replace(policies=[*old.policies, *snapshot.policies])
    assert "  reward 3.14 (earlier) 3.14  " in status_line(both)


def test_a_line_that_has_too_little_room_leaves_out_whole_words(clock):
    statistics = moving(clock, Budget(1_000_000, 1e9), frames_per_s=12_345)
    statistics.add(episode(0, 3.14159))
    statistics.add(training(0, version_diff_avg=1.26))
    snapshot = statistics.snapshot()._replace(faults={"restarts": 2})
    whole = "fps 12.35k  frames 617.25k  reward 3.14  restarts 2  left 0:00:31  lag 1.3 steps"
    assert status_line(snapshot, 80) == whole
    assert status_line(snapshot, 71) == whole.removesuffix("  lag 1.3 steps")
    assert status_line(snapshot, 30) == "fps 12.35k  frames 617.25k"
    several = snapshot._replace(policies=[snapshot.policies[0]._replace(avg_reward=r) for r in (1.0, None, -2.0)])
    assert "reward -2.00 to 1.00  restarts" in status_line(several, 71)


def told_in_40_seconds(run, clock, caplog):
    with caplog.at_level("INFO"):
        for second in range(40):
            run.statistics.arrays["env_frames"][0, 0] += 100 * (second > 10)
            run.write()
            clock.now += 1.0
    return [record.getMessage() for record in caplog.records if "frames" in record.getMessage()]


def test_in_a_pipe_a_short_line_comes_every_ten_seconds_once_there_are_frames(run, clock, caplog):
    told = told_in_40_seconds(run, clock, caplog)
    assert len(told) == 3 and max(map(len, told)) <= 71


def test_in_a_terminal_a_line_comes_every_five_seconds(tmp_path, clock, caplog, monkeypatch):
    terminal = PseudoTerminal(200, 24)
    with os.fdopen(os.dup(terminal.descriptor), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "dumb")
        run = Run(tmp_path)
        told = told_in_40_seconds(run, clock, caplog)
        run.experiment.close()
    terminal.close()
    assert 5 <= len(told) <= 6 and told[-1].startswith("fps (10/60/300 s)")


def test_the_option_and_the_terminal_decide_what_is_shown(run, monkeypatch):
    def shown(stream, **options):
        monkeypatch.setattr(sys, "stderr", stream)
        return type(view(run.files._replace(options={"experiment": "e", "env": "v"} | options)))

    monkeypatch.setenv("TERM", "xterm")
    terminal = PseudoTerminal()
    with os.fdopen(os.dup(terminal.descriptor), "w", encoding="utf-8") as drawable:
        assert shown(drawable, view="auto") is shown(drawable, view="full") is TerminalView
        assert shown(drawable, view="auto", serial_mode=True) is TerminalLines
        assert shown(drawable, view="lines") is TerminalLines
        assert shown(drawable, view="off") is NoLines
        monkeypatch.setenv("TERM", "dumb")
        assert shown(drawable, view="full") is TerminalLines
    monkeypatch.setenv("TERM", "xterm")
    assert shown(io.StringIO(), view="auto") is shown(io.StringIO(), view="full") is TerminalLines
    terminal.close()


def test_status_json_is_read_as_it_was_written(run, clock):
    run.statistics.add(episode(0, 4.0))
    clock.now += 1.0
    finding = Finding("balanced", "no stage waits for another", {"busy": 0.9})
    told = run.statistics.snapshot()
    for snapshot in (told, told._replace(bottleneck=finding)):
        read = from_json(json.loads(json.dumps(as_json(snapshot))))
        assert read == snapshot._replace(points=(), timing=())


def add_point(run, clock, value):
    run.statistics.arrays["env_frames"][...] += [[100, 0], [0, 0]]
    run.statistics.add(episode(0, value))
    run.experiment.restore_missing()
    run.write_point()
    write_summary(run.files.summary, "a test", [None, None], run.statistics.snapshot())
    clock.now += 10.0


def rewards(run):
    return [value for _, value in run.events(0)["0_aux/avg_reward"]], [
        line["0_aux/avg_reward"] for line in run.lines() if line["policy"] == 0
    ]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records]


def test_files_that_cannot_be_written_are_told_once_a_minute_each_and_go_on_when_they_can(
    run, clock, caplog, monkeypatch
):
    add_point(run, clock, 1.0)
    real = os.write

    def full(descriptor, content):
        real(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "fsync", full)
        patch.setattr(status_module, "atomic_write_json", lambda *_, **__: full(os.open("/dev/null", os.O_WRONLY), b""))
        for _ in range(5):  # 50 s
            add_point(run, clock, 2.0)
        told = warnings_of(caplog)
        add_point(run, clock, 2.0)
        add_point(run, clock, 2.0)
    for kind in ("TensorBoard events", "metrics.jsonl", "status.json", "summary.json"):
        first, *more = [text for text in told if text.startswith(kind)]
        assert "could not be written ([Errno 28] No space left on device); training goes on without it" in first
        if kind == "summary.json":  # written once in a run
            continue
        assert not more and len([text for text in warnings_of(caplog) if text.startswith(kind)]) == 2
    add_point(run, clock, 5.0)
    run.close()
    by_events, by_lines = rewards(run)  # of the last three episodes
    assert by_events == by_lines == [1.0, 3.0, 3.0]
    assert run.status()["policies"][0]["episodes"] == 9
    assert len(list(run.experiment.summary_dir(0).iterdir())) == 1


def test_events_that_end_in_half_a_record_are_continued_in_another_file(run, clock, monkeypatch):
    add_point(run, clock, 1.0)
    real = os.write

    def torn(descriptor, content):
        real(descriptor, content[: len(content) // 2])
        raise OSError(errno.EIO, "Input/output error")

    def cannot(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", torn)
        patch.setattr(os, "ftruncate", cannot)
        run.write_point()
    clock.now += 10.0
    add_point(run, clock, 3.0)
    run.close()
    assert len(list(run.experiment.summary_dir(0).iterdir())) == 2
    assert rewards(run) == ([1.0, 2.0, 2.0], [1.0, 2.0, 2.0])


def test_files_that_vanish_with_their_folder_are_begun_anew(run, clock):
    add_point(run, clock, 1.0)
    shutil.rmtree(run.experiment.folder)
    add_point(run, clock, 3.0)
    run.close()
    assert rewards(run) == ([2.0, 2.0], [2.0, 2.0])
    assert run.status()["env_frames"] == 200
    assert run.experiment.config_file.exists()


def test_a_folder_in_the_place_of_each_file_ends_nothing(tmp_path, clock, caplog):
    run = Run(tmp_path)
    for path in (run.experiment.metrics_file, run.experiment.status_file, run.experiment.summary_file):
        path.mkdir()
    shutil.rmtree(run.experiment.folder / ".summary")
    (run.experiment.folder / ".summary").touch()
    add_point(run, clock, 1.0)
    run.close()
    kinds = {text.partition(" could")[0] for text in warnings_of(caplog)}
    assert kinds == {"TensorBoard events", "metrics.jsonl", "status.json", "summary.json"}
    run.experiment.close()


def test_points_come_more_and_more_seldom_until_they_come_as_often_as_asked_for(clock):
    statistics = small_statistics(every_s=20.0)
    statistics.add(episode(0))
    points = []
    for tick in range(8 * 600):
        statistics.add(episode(0))
        points += [tick / 8] if statistics.snapshot().points else []
        clock.now += 0.125
    gaps = [after - before for before, after in itertools.pairwise(points)]
    assert set(gaps[:20]) == {0.5} and max(gaps) == 20.0 and gaps[-5:] == [20.0] * 5
    assert sum(point <= 100.0 for point in points) == 66  # a curve, not a file
    assert all(later >= earlier for earlier, later in itertools.pairwise(gaps))


def test_tensorboard_files_begin_with_a_layout_and_the_options(run, clock):
    add_point(run, clock, 1.0)
    run.write_point()
    run.close()
    found = EventAccumulator(str(run.experiment.summary_dir(0)), size_guidance={"tensors": 0})
    found.Reload()
    [layout] = found.Tensors("custom_scalars__config__")
    told = layout.tensor_proto.string_val[0]
    assert told.index(b"0_aux/avg_reward$") < told.index(b"0_aux/avg_len$") < told.index(b"0_aux/_fps$")
    patterns = re.findall(rb"\^[a-z0-9_/]+\$", told)
    tags = ["0_aux/avg_reward", "0_aux/avg_reward_min", "eval/reward", "eval/reward_sem", "0_aux/avg_len_max"]
    shown = [tag for tag in tags if any(re.search(pattern, tag.encode()) for pattern in patterns)]
    assert shown == ["0_aux/avg_reward", "eval/reward"], "TensorBoard searches tags for these expressions"
    [options] = [found.Tensors(tag) for tag in found.Tags()["tensors"] if tag.startswith("options")]
    assert b"| learning_rate | " in options[0].tensor_proto.string_val[0]
    plugins = found.summary_metadata
    assert any("hparams" in tag for tag in plugins)


def test_no_time_is_left_to_tell_where_no_limit_was_set():
    run = RunConfig()
    assert Budget(run.train_for_env_steps, run.train_for_seconds).seconds_left(10, 1.0, 50_000.0) == math.inf
    assert Budget(run.train_for_env_steps, 50.0).seconds_left(10, 20.0, 50_000.0) == pytest.approx(30.0)
