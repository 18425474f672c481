"""Goals that end a run, from snapshots that are known; and a user's class that hears of it."""

import sys
from typing import Any

import pytest

from appo.algorithms.config import resolve
from appo.algorithms.reporting.snapshot import Point, PolicySnapshot, RunSnapshot
from appo.algorithms.run.config import goal_of
from appo.algorithms.run.controllers.absent import LOOKS_BEFORE_WARNING
from appo.algorithms.run.controllers.callbacks import Callbacks, load_callback, make_callback
from appo.algorithms.run.controllers.stopping import Stopping
from appo.utils.options import ConfigError
from tests.reporting.reporting_cases import episode, restored, small_statistics


class Context:
    """What these controllers take of it; means are over three episodes."""

    def __init__(self, *words, policies=1):
        self.config = resolve(["--env=CartPole-v1", *words]).config
        self.folder = self.config.run.folder.absolute()
        self.statistics = small_statistics(3, policies=policies)
        self.callback = make_callback(self.config.run.callback)

    def options(self):
        return {"env": self.config.env.env}

    def play(self, *rewards, policy=0):
        for reward in rewards:
            self.statistics.add(episode(policy, reward))


def context(*words, policies=1) -> Any:
    return Context(*words, policies=policies)


def snapshot(frames=0, tags=(), state="training", policies=1):
    """With a point of each policy where there are tags."""
    points = tuple(Point(policy, frames, dict(each)) for policy, each in enumerate(tags))
    several = (PolicySnapshot(frames, 1, 0, None, None, None),) * policies
    return RunSnapshot(state, 0.0, frames, 1.0, {10: 1.0}, None, 0.5, {}, {}, several, points)


@pytest.mark.parametrize(
    ("goal", "value", "holds"),
    [
        ("reward>=475", 475.0, True),
        ("reward > 475", 475.0, False),
        ("reward<-1e2", -101.0, True),
        ("eval/reward <= 3", 3.1, False),
    ],
)
def test_goals_compare_as_they_are_written(goal, value, holds):
    found = goal_of(goal)
    assert found is not None and found.holds(value) == holds


@pytest.mark.parametrize(
    "text", ["reward", "reward=5", "return>=5", "reward>=high", "reward>=nan", ">=5", "reward>=inf"]
)
def test_what_is_no_goal_is_refused_before_the_start(text):
    with pytest.raises(ConfigError, match="is no goal; for example 'reward>=475'"):
        resolve(["--env=CartPole-v1", f"--stop_when={text}"])


def test_a_goal_is_reached_by_any_policy_and_only_with_all_episodes_of_a_mean():
    run = context("--stop_when=reward>=5", policies=2)
    stopping = Stopping(run)
    run.play(9.0, 9.0)
    run.play(1.0, 1.0, 1.0, policy=1)
    assert stopping.due(snapshot(policies=2)) == () and stopping.ended_by() == "", "two of three episodes"
    run.statistics.episodes[0].forget()  # as where a policy has copied another one
    run.play(9.0, 9.0)
    stopping.due(snapshot(policies=2))
    assert stopping.ended_by() == ""
    run.play(5.0, 6.0, 5.5, policy=1)
    stopping.due(snapshot(policies=2, state="starting"))
    assert stopping.ended_by() == ""
    stopping.due(snapshot(policies=2))
    assert stopping.ended_by() == "reached stop_when=reward>=5: reward of policy 1 is 5.5"
    run.play(0.0, 0.0, 0.0, policy=1)
    stopping.due(snapshot(policies=2))
    assert stopping.ended_by(), "it was reached"


def test_a_tag_is_a_goal_once_it_is_told():
    stopping = Stopping(context("--stop_when=eval/reward>=5", "--eval_every_sec=9"))
    stopping.due(snapshot(tags=[{"train/lr": 99.0}]))
    assert not stopping.ended_by()
    stopping.due(snapshot(tags=[{"eval/reward": 6.0}]))
    assert stopping.ended_by() == "reached stop_when=eval/reward>=5: eval/reward is 6"


def test_a_goal_that_cannot_be_reached_is_refused_or_told_of_once(caplog):
    with pytest.raises(ConfigError, match="needs evaluations beside training: --eval_every_sec=60"):
        resolve(["--env=CartPole-v1", "--stop_when=eval/reward>=5"])
    stopping = Stopping(context("--stop_when=train/entropi<1"))
    for _ in range(3 * LOOKS_BEFORE_WARNING):
        stopping.due(snapshot())
        stopping.due(snapshot(tags=[{"train/entropy": 0.5}]))
    told = "no point has had the tag of stop_when=train/entropi<1 so far; there are train/entropy; docs"
    assert caplog.text.count(told) == len(caplog.records) == 1


@pytest.mark.parametrize("tag", ["eval/reward", "eval/rewrd"])
def test_a_goal_of_evaluations_is_missed_only_where_an_evaluation_has_been_made(tag, caplog):
    stopping = Stopping(context(f"--stop_when={tag}>=5", "--eval_every_sec=60"))
    for _ in range(2 * LOOKS_BEFORE_WARNING):
        stopping.due(snapshot(tags=[{"train/reward": 9.0}]))
    assert not caplog.records, "no evaluation has been made"
    for _ in range(2):
        stopping.due(snapshot(tags=[{"train/reward": 9.0, "eval/reward": 1.0}]))
    if tag == "eval/reward":
        assert not caplog.records
    else:
        [record] = caplog.records
        told = "no point has had the tag of stop_when=eval/rewrd>=5 so far; there are eval/reward; docs"
        assert record.getMessage().startswith(told)


def test_a_run_that_gets_no_further_ends_also_when_it_is_resumed_in_between():
    run = context("--stop_after_no_progress=1000")
    stopping = Stopping(run)
    for frames, rewards in [
        (0, []),
        (5000, [-50.0] * 3),
        (5500, [-49.9] * 3),
        (5900, [-40.0] * 3),
        (6800, [-39.9] * 3),
    ]:
        run.play(*rewards)
        stopping.due(snapshot(frames))
        assert not stopping.ended_by()
    resumed = Stopping(run)
    resumed.note(restored(**stopping.state(0)))
    for each in (stopping, resumed):
        each.due(snapshot(6900))
        reason = "reached stop_after_no_progress=1000: the best mean return is -40, since 5900 frames"
        assert each.ended_by() == reason


CALLBACK = """
class Hears:
    heard = []
    def on_start(self, options, folder):
        self.heard.append((options["env"], folder.name))
    def on_point(self, policy, env_frames, tags):
        self.heard.append((policy, env_frames, tags))
        return "seen enough" if env_frames >= 200 else None
    def on_end(self):
        self.heard.append("end")

class Measures:
    def scalars(self, policy):
        return {"policy": policy, "pi": 3.14, "nan": float("nan")}

class Talks:
    def scalars(self, policy):
        return ["pi"]

class Raises:
    def on_point(self, policy, env_frames, tags):
        raise ValueError("as told")

class Exits(Raises):
    def on_point(self, policy, env_frames, tags):
        raise SystemExit("as told")

class Counts:
    def on_point(self, policy, env_frames, tags):
        import numpy
        return numpy.ones(3)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_callback_file.py").write_text(CALLBACK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_callback_file", None)


@pytest.mark.usefixtures("own")
def test_a_callback_hears_of_start_points_and_end_and_may_end_the_run():
    callbacks = Callbacks(context("--callback=my_callback_file:Hears", "--experiment=mine"))
    callbacks.due(snapshot(100, [{"a": 1.0}]))
    assert callbacks.ended_by() == ""
    callbacks.due(snapshot(200, [{"a": 2.0}]))
    assert callbacks.ended_by() == "callback: seen enough"
    callbacks.end(snapshot(300, [{"a": 3.0}]))
    heard = load_callback("my_callback_file:Hears").heard
    assert heard == [("CartPole-v1", "mine"), (0, 100, {"a": 1.0}), (0, 200, {"a": 2.0}), (0, 300, {"a": 3.0}), "end"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("how", ["Raises", "Exits"])
def test_a_callback_that_raises_is_told_of_once_and_the_run_goes_on(how, caplog):
    callbacks = Callbacks(context(f"--callback=my_callback_file:{how}"))
    for _ in range(3):
        callbacks.due(snapshot(1, [{"a": 1.0}]))
    assert caplog.text.count("the callback raised in on_point and is called no more") == 1 and "as told" in caplog.text
    assert callbacks.ended_by() == ""


@pytest.mark.usefixtures("own")
def test_the_numbers_of_a_callback_are_of_each_policy_and_finite():
    callbacks = Callbacks(context("--callback=my_callback_file:Measures"))
    assert callbacks.scalars(1) == {"custom/policy": 1.0, "custom/pi": 3.14}


@pytest.mark.usefixtures("own")
def test_a_callback_whose_numbers_are_none_is_told_of_once(caplog):
    callbacks = Callbacks(context("--callback=my_callback_file:Talks"))
    assert callbacks.scalars(0) == callbacks.scalars(0) == {}
    assert caplog.text.count("returns no dict of numbers") == 1


@pytest.mark.usefixtures("own")
def test_only_a_text_ends_the_run():
    callbacks = Callbacks(context("--callback=my_callback_file:Counts"))
    callbacks.due(snapshot(1, [{"a": 1.0}]))
    assert callbacks.ended_by() == ""


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_callback_file", "a module and a class are needed"),
        ("my_callback_file.py:Hears", "without .py, for example --callback=my_callback_file:Hears$"),
        ("my_callback_file:Nobody", "my_callback_file has no Nobody; it has Counts, Exits, Hears, Measures, Raises$"),
        ("my_callback_file:Hear", r"has no Hear; did you mean my_callback_file:Hears\?"),
        ("nowhere_to_be_found:X", "No module named"),
    ],
)
def test_a_callback_that_is_not_there_is_refused(name, reason):
    with pytest.raises(ConfigError, match=reason):
        load_callback(name)


def test_a_callback_that_would_hear_nothing_is_refused(tmp_path, monkeypatch):
    (tmp_path / "deaf_callback.py").write_text("class Deaf:\n    def on_points(self, *given): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    told = "would hear nothing: it has no method of on_start, scalars, on_point, on_end; did you mean on_point"
    with pytest.raises(ConfigError, match=told):
        load_callback("deaf_callback:Deaf")


UNFIT = """
class Raises:
    def __init__(self):
        raise ValueError("no key")  # line 4
    def on_end(self): pass

class Needs:
    def __init__(self, key): pass
    def on_end(self): pass

class Short:
    def on_point(self, policy, tags): pass

class Misspelt:
    def on_end(self): pass
    def on_points(self, policy, env_frames, tags): pass

class NoMethod:
    on_end = 5

class RaisesLater:
    def on_end(self): pass
    @property
    def scalars(self):
        raise RuntimeError("no table")

class Fits:
    on_end = None  # a subclass switches off what its base does
    def on_point(self, *given): pass
    def on_start(self, options, folder, more=1): pass

def makes_nothing():
    return None

def makes():
    return Fits()
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Raises", r"'unfit_callback:Raises' cannot be made: ValueError: no key \(unfit_callback.py, line 4\)$"),
        ("Needs", "cannot be made: TypeError: .*missing 1 required positional argument: 'key'"),
        ("Short", r"on_point\(policy, tags\) cannot be called as on_point\(policy, env_frames, tags\): too many"),
        ("Misspelt", "nothing calls on_points; there are on_start, scalars, on_point, on_end$"),
        ("NoMethod", "on_end is no method"),
        ("RaisesLater", "cannot be made: RuntimeError: no table"),
        ("makes_nothing", "would hear nothing"),
        ("Fits", ""),
        ("makes", ""),
    ],
)
def test_a_callback_that_cannot_be_made_or_called_is_refused_before_the_start(tmp_path, monkeypatch, name, reason):
    (tmp_path / "unfit_callback.py").write_text(UNFIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "unfit_callback", raising=False)
    if not reason:
        assert type(make_callback(f"unfit_callback:{name}")).__name__ == "Fits"
        return
    with pytest.raises(ConfigError, match=reason):
        make_callback(f"unfit_callback:{name}")
