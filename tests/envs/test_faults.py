"""Environments that fail during training: rebuilt in place, their rows marked, the others untouched."""

import gc
import logging
import weakref
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.adapters import step_arrays
from appo.envs.api import BadEnvDataError, Decorrelation, DifferentSpecError, EnvContext, EnvError, MisfitError
from appo.envs.faults import FaultPolicy, ValueCheck
from appo.envs.registry import make_batch_env
from appo.envs.synthetic_options import SyntheticOptions
from appo.envs.vector.native import VectorEnvAdapter
from appo.envs.vector.serial import SerialVecEnv
from appo.envs.vector.shared_rows import map_rows


class Counting(gymnasium.Env):
    """Observes [attempt, time]; does what `plan` says of (attempt, time): raise it, or show it instead."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)
    action_mask_in_info = False
    length = 1000

    def __init__(self, plan, attempt=0):
        self.plan, self.attempt, self.time, self.resets, self.is_closed = plan, attempt, 0, 0, False
        self.weights, self.frames, self.num_closed = {"kill": 1.0}, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.resets = 0, self.resets + 1
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        info = {"true_reward": 3.0} if self.time == 2 else {}
        return self._observe(), self.plan.get("reward", 1.0), self.time >= self.length, False, info

    def _observe(self):
        planned = self.plan.get((self.attempt, self.time))
        if isinstance(planned, BaseException):
            raise planned
        return np.array([self.attempt, self.time], np.float64) if planned is None else planned

    def get_reward_shaping(self):
        return self.weights

    def set_reward_shaping(self, weights):
        self.weights = weights

    def set_training_progress(self, env_frames):
        self.frames = env_frames

    def close(self):
        self.is_closed = True
        self.num_closed += 1


class Batch:
    """Three environments, the middle one with a plan; what happened to them."""

    def __init__(self, plan, **rules):
        self.counted: list[bool] = []
        self.built: list[tuple[int, int]] = []
        self.repairs = 0

        @contextmanager
        def repairing():
            self.repairs += 1
            yield

        self.contexts = [EnvContext(env_id=10 + i, seed=7, worker_index=2, env_name="counting") for i in range(3)]
        rules = {"max_rebuilds": 10} | rules
        self.keeper = keeper = FaultPolicy(
            **rules, count=lambda is_bad_data, _: self.counted.append(is_bad_data), repairing=repairing
        )
        self.plan = plan
        self.all_envs: list[Counting] = []  # those that failed or were refused among them
        self.envs = [self.build(context) for context in self.contexts]
        self.vec = SerialVecEnv(self.envs, self.contexts, keeper, self.build)
        self.out = step_arrays(self.vec.spec, 3)
        self.built.clear()

    def build(self, context):
        self.built.append((context.env_id, context.attempt))
        planned = self.plan.get(("build", context.attempt)) if context.env_id == 11 else None
        if planned is not None:
            raise planned
        self.all_envs.append(Counting(self.plan if context.env_id == 11 else {}, context.attempt))
        return self.all_envs[-1]

    def reset(self):
        self.vec.reset(self.out)
        return self

    def step(self, times=1):
        infos = {}
        for _ in range(times):
            for array in (*self.out.observations.values(), *self.out[1:-1]):
                array.fill(99)
            infos = self.vec.step(np.zeros((3, 1), np.float32), self.out)
        return infos

    def row(self, name, row=1):
        source = self.out.observations if name == "obs" else self.out._asdict()
        return source[name][row].tolist()


CRASH = RuntimeError("the wheel came off")
NAN = np.array([0.0, np.nan])
STATE = ("rewards", "terminated", "truncated", "frames", "is_first", "is_last", "active", "crashed")


def test_an_environment_that_raises_is_built_anew_and_the_others_go_on():
    batch = Batch({(0, 3): CRASH}).reset()
    batch.vec.set_training_progress(50)
    batch.vec.shape_rewards(1, [{"kill": 2.0}])
    batch.step(2)
    infos = batch.step()
    assert [batch.row("obs", row) for row in range(3)] == [[0, 3], [1, 0], [0, 3]]
    assert {name: batch.row(name) for name in STATE} == {
        "rewards": 0, "terminated": 0, "truncated": 0, "frames": 0,
        "is_first": 1, "is_last": 0, "active": 1, "crashed": 1,
    }  # fmt: skip
    assert [batch.row(name, 0) for name in STATE] == [1, 0, 0, 1, 0, 0, 1, 0] and not infos
    assert batch.built == [(11, 1)] and batch.counted == [False] and batch.repairs == 1
    old, new = batch.envs[1], batch.vec.envs[1]
    assert old.is_closed and new is not old and not batch.envs[0].is_closed
    assert (new.frames, new.weights) == (50, {"kill": 2.0}), "it knows what its predecessor was told"
    assert batch.step(2) == {row: {"true_reward": 3.0} for row in [1]}
    assert batch.row("obs") == [1, 2] and batch.row("crashed") == 0 and batch.row("rewards") == 1


def test_seeds_of_an_environment_built_anew_are_others():
    batch = Batch({(0, 1): CRASH}).reset()
    before = batch.envs[1].np_random.integers(1 << 40)
    batch.step()
    assert batch.vec.envs[1].np_random.integers(1 << 40) != before


def test_a_reset_that_raises_loses_nothing_of_the_step_before_it(monkeypatch):
    monkeypatch.setattr(Counting, "length", 3)
    batch = Batch({}).reset()
    batch.step(2)
    batch.plan[(0, 0)] = CRASH
    batch.step()
    assert [batch.row(name) for name in STATE] == [1, 1, 0, 1, 1, 0, 1, 0]
    assert batch.row("obs") == [1, 0] and batch.row("obs", 0) == [0, 0] and batch.counted == [False]


@pytest.mark.parametrize("begin", ["reset", "decorrelate"])
def test_an_environment_recovers_from_a_crash_at_the_start(begin):
    batch = Batch({(0, 0): CRASH, (1, 0): CRASH, (2, 5): CRASH})
    if begin == "reset":
        batch.reset()
    else:
        batch.vec.decorrelate(Decorrelation(np.random.default_rng(2), 50), batch.out)
    assert batch.built[:2] == [(11, 1), (11, 2)] and batch.row("is_first") == 1 and batch.row("is_last") == 0
    attempt, moment = batch.row("obs")
    assert (attempt, moment) == (2, 0) if begin == "reset" else attempt == 3 and moment > 0


def test_a_build_that_fails_is_tried_again():
    batch = Batch({(0, 1): CRASH, ("build", 1): OSError("no display"), ("build", 2): OSError("no display")}).reset()
    batch.step()
    assert batch.built == [(11, 1), (11, 2), (11, 3)] and batch.row("obs") == [3, 0] and batch.row("crashed") == 1
    assert batch.counted == [False] * 3 and batch.repairs == 1


def test_failing_without_a_sound_step_in_between_is_given_up_with_the_cause():
    batch = Batch({(attempt, 1): CRASH for attempt in range(9)}, max_rebuilds=3).reset()
    batch.step(3)
    message = r"environment 11 of counting \(worker 2, place 1 .* in step 4 times in a row, .*: RuntimeError: the wheel"
    with pytest.raises(EnvError, match=message) as caught:
        batch.step()
    assert caught.value.__cause__ is CRASH and caught.value.in_a_row == 4 and not hasattr(caught.value, "retryable")
    assert len(batch.counted) == 3


def test_failing_for_ever_with_sound_steps_in_between_is_survived():
    batch = Batch({(attempt, 2): CRASH for attempt in range(200)}, max_rebuilds=1).reset()
    batch.step(200)
    assert len(batch.counted) == 100 and batch.row("obs") == [100, 0]


def test_a_sound_step_before_a_failing_reset_is_a_sound_step(monkeypatch):
    monkeypatch.setattr(Counting, "length", 1)
    monkeypatch.setattr(Counting, "_observe", _fails_in_its_second_reset)
    batch = Batch({"fails": True}, max_rebuilds=1).reset()
    batch.step(5)
    assert len(batch.counted) == 5 and batch.row("rewards") == 1


def _fails_in_its_second_reset(self):
    if self.plan and self.resets == 2:
        raise CRASH
    return np.array([self.attempt, self.time], np.float64)


def test_each_environment_that_is_built_or_reset_is_a_sign_of_life():
    beats = []
    contexts = [EnvContext(env_id=i, seed=1) for i in range(4)]

    def beat():
        beats.append(1)
        return True

    batch = make_batch_env("synthetic_masked_info", None, contexts, FaultPolicy(10, beat=beat))
    assert len(beats) >= 8, "4 are built, and 4 reset to look for masks"
    batch.reset(step_arrays(batch.spec, 4))
    assert len(beats) >= 12


class Curious(Counting):
    """Raises when it is told of so many frames."""

    def set_training_progress(self, env_frames):
        if env_frames >= self.plan.get("too_many", 1e9) + self.attempt * self.plan.get("more", 0):
            raise CRASH
        super().set_training_progress(env_frames)


def curious(monkeypatch, **plan):
    monkeypatch.setattr("tests.envs.test_faults.Counting", Curious)
    return Batch(plan, max_rebuilds=3).reset()


def test_an_environment_that_raises_when_it_is_told_of_progress_has_failed_like_one_that_raises_in_a_step(monkeypatch):
    batch = curious(monkeypatch, too_many=100, more=50)
    batch.step()
    batch.vec.set_training_progress(120)
    assert not batch.counted, "what it showed last is being acted on: its next step will tell"
    assert 1 not in batch.step()
    assert [batch.row("obs", row) for row in range(3)] == [[0, 2], [1, 0], [0, 2]] and batch.counted == [False]
    assert [batch.row(name) for name in STATE] == [0, 0, 0, 0, 1, 0, 1, 1]
    assert [env.frames for env in batch.vec.envs] == [120] * 3
    batch.step()
    assert batch.row("obs") == [1, 1] and len(batch.counted) == 1


def test_an_environment_that_always_raises_when_it_is_told_of_progress_is_given_up(monkeypatch):
    batch = curious(monkeypatch, too_many=100)
    batch.vec.set_training_progress(120)
    batch.step(3)
    message = "environment 11 .* failed in set_training_progress 4 times in a row, .*the wheel came off"
    with pytest.raises(EnvError, match=message):
        batch.step()


def test_no_rebuilds_means_that_the_first_failure_ends_it():
    with pytest.raises(EnvError, match="failed in step: RuntimeError"):
        Batch({(0, 1): CRASH}, max_rebuilds=0).reset().step()


def test_an_environment_that_calls_sys_exit_has_failed():
    batch = Batch({(0, 1): SystemExit(3)}).reset()
    batch.step()
    assert batch.row("obs") == [1, 0]


def test_an_environment_with_other_spaces_cannot_take_the_place(monkeypatch):
    batch = Batch({(0, 1): CRASH}, max_rebuilds=2).reset()
    monkeypatch.setattr(Counting, "action_space", spaces.Discrete(4))
    message = r"environment 11 of counting .* in make: its spaces .*same spaces"
    with pytest.raises(DifferentSpecError, match=message) as caught:
        batch.step()
    assert not caught.value.retryable and batch.built == [(11, 1)], "another try would build the same"


def other_actions(env):
    env.action_space = spaces.Discrete(4)


def other_observations(env):
    env.observation_space = spaces.Box(-1, 1, (3,))


def fails_its_early_reset(env):
    env.action_mask_in_info = None


@pytest.mark.parametrize(("refuse", "times"), [(other_actions, 1), (other_observations, 1), (fails_its_early_reset, 3)])
def test_an_environment_that_is_built_and_refused_is_closed_and_so_is_the_one_before_it(monkeypatch, refuse, times):
    init = Counting.__init__

    def changed(env, plan, attempt=0):
        init(env, plan, attempt)
        if attempt:
            refuse(env)

    monkeypatch.setattr(Counting, "__init__", changed)
    batch = Batch({(0, 1): CRASH} | {(attempt, 0): CRASH for attempt in range(1, 9)}, max_rebuilds=3).reset()
    with pytest.raises(EnvError, match=r"failed in (make|reset)"):
        batch.step()
    refused = [env for env in batch.all_envs if env.attempt]
    assert len(refused) == times and [env.num_closed for env in refused] == [1] * times
    assert [env.num_closed for env in batch.envs] == [0, 1, 0]
    batch.vec.close()
    assert [env.num_closed for env in batch.all_envs] == [1] * (3 + times)


def test_an_environment_that_failed_is_closed_once_however_often_its_place_is_built_anew():
    broken = RuntimeError("no engine is left")
    batch = Batch({(0, 1): CRASH, ("build", 1): broken, ("build", 2): broken}).reset()
    batch.step()
    assert batch.row("obs") == [3, 0] and batch.envs[1].num_closed == 1
    batch.vec.close()
    assert [env.num_closed for env in batch.all_envs] == [1] * 4


def test_an_environment_that_was_replaced_is_freed_at_once(monkeypatch):
    def observe(env):
        if env.plan and env.time and not env.attempt:
            raise RuntimeError("one that nobody keeps")
        return np.array([env.attempt, env.time], np.float64)

    monkeypatch.setattr(Counting, "_observe", observe)
    batch = Batch({"breaks": True}).reset()
    gone = weakref.ref(batch.envs[1])
    batch.envs.clear()
    batch.all_envs.clear()
    gc.collect()
    gc.disable()
    try:
        batch.step()
        assert batch.row("obs") == [1, 0] and gone() is None
    finally:
        gc.enable()


def test_parameters_that_cannot_be_set_again_are_told_as_such(monkeypatch):
    def set_params(env, params):
        if env.attempt:
            raise ValueError("no such gravity")

    monkeypatch.setattr(Counting, "get_env_params", lambda env: {"gravity": 1.0}, raising=False)
    monkeypatch.setattr(Counting, "set_env_params", set_params, raising=False)
    batch = Batch({(0, 1): CRASH}, max_rebuilds=2).reset()
    batch.vec.set_env_params(1, {"gravity": 2.0})
    with pytest.raises(EnvError, match=r"failed in set_env_params 3 times in a row.*no such gravity"):
        batch.step()


def test_a_step_with_bad_data_was_not_ordinary():
    batch = Batch({(0, 3): NAN}).reset()
    rows = map_rows(None, batch.vec.spec, num_envs=3, num_processes=1, keeps_final=False)
    batch.vec.be_only_writer(rows.steps, rows.flags)
    actions = np.zeros((3, 1), np.float32)
    batch.vec.step(actions, rows.steps)
    assert batch.vec.ended == [], "otherwise this test would prove nothing"
    batch.vec.step(actions, rows.steps)
    with pytest.raises(BadEnvDataError):
        batch.vec.step(actions, rows.steps)
    assert batch.vec.ended is None


def test_only_the_arrays_that_it_alone_writes_are_taken_to_hold_what_was_written():
    batch = Batch({}).reset()
    rows, actions = map_rows(None, batch.vec.spec, num_envs=3, num_processes=1, keeps_final=False), np.zeros((3, 1))
    batch.vec.be_only_writer(rows.steps, rows.flags)
    batch.vec.step(actions, rows.steps)
    assert batch.vec.ended == []
    others = step_arrays(batch.vec.spec, 3)
    batch.vec.reset(others)
    batch.vec.step(actions, others)
    assert not others.is_first.any() and others.active.all() and (others.frames == 1).all()
    assert batch.vec.ended is None, "of the last step, which went elsewhere, nothing is known"


BAD = [
    (NAN, "'obs' should be finite, but is nan in 1 of 2 numbers"),
    (np.array([np.inf, 0.0]), "'obs' should be finite, but is inf"),
    (np.zeros(3), r"'obs' should be of shape \(2,\), as its space says, but is of shape \(3,\) and dtype float64"),
    (np.zeros(1), r"'obs' should be of shape \(2,\), as its space says, but is of shape \(1,\)"),
    (np.float64(0), r"'obs' should be of shape \(2,\), as its space says, but is of shape \(\)"),
    (np.zeros(2, np.complex64), "'obs' should be float64, .* but is complex64"),
    (["a", "b"], "'obs' should be float64, .* but is <U1"),
    ([[1.0], [1.0, 2.0]], "'obs' should be an array"),
]


@pytest.mark.parametrize("moment", [0, 2])
@pytest.mark.parametrize("value, message", BAD)
def test_bad_data_end_the_run_and_are_named(value, message, moment):
    batch = Batch({(0, moment): value})
    phase = "step" if moment else "reset"
    with pytest.raises(BadEnvDataError, match=rf"environment 11 of counting .* failed in {phase}: {message}") as caught:
        batch.reset().step(2)
    assert not caught.value.retryable and "\n" not in str(caught.value) and not batch.counted


@pytest.mark.parametrize("value, message", BAD)
def test_bad_data_that_are_dropped_cost_the_step_and_reset_the_environment(value, message):
    batch = Batch({(0, 2): value}, drops_bad_data=True).reset()
    batch.step(2)
    assert batch.row("obs") == [0, 0] and batch.row("obs", 0) == [0, 2] and batch.counted == [True]
    assert [batch.row(name) for name in STATE] == [0, 0, 0, 0, 1, 0, 1, 1]
    assert batch.envs[1].resets == 2 and not batch.built, "it is reset, not built anew"


@pytest.mark.parametrize("level", [1, 5, 2**31 - 1])
@pytest.mark.parametrize("drops", [False, True])
def test_a_category_that_does_not_exist_is_bad_data(level, drops, monkeypatch):
    monkeypatch.setattr(Counting, "observation_space", spaces.Discrete(3, start=2))
    monkeypatch.setattr(Counting, "_observe", lambda env: env.plan.get((env.attempt, env.time), 4))
    batch = Batch({(0, 2): level}, drops_bad_data=drops).reset()
    if not drops:
        with pytest.raises(BadEnvDataError, match=f"'obs' should be one of 3 categories, but is number {level - 2}, "):
            batch.step(2)
        return
    batch.step(2)
    assert batch.row("obs") == [2] and batch.row("crashed") == 1 and batch.row("crashed", 0) == 0
    assert batch.envs[1].resets == 2 and batch.counted == [True]


def test_a_last_category_that_does_not_exist_is_bad_data_where_something_follows_from_it(monkeypatch):
    monkeypatch.setattr(Counting, "observation_space", spaces.Discrete(3))
    monkeypatch.setattr(Counting, "_observe", lambda env: env.plan.get((env.attempt, env.time), 1))
    step = Counting.step
    monkeypatch.setattr(Counting, "step", lambda env, action: (*step(env, action)[:2], False, env.time >= 2, {}))
    batch = Batch({(0, 2): 7}).reset()
    finals = {name: array.copy() for name, array in batch.out.observations.items()}
    batch.out = batch.out._replace(final_observations=finals)
    with pytest.raises(BadEnvDataError, match="'obs' should be one of 3 categories, but is number 7, counted from 0"):
        batch.vec.step(np.zeros((3, 1), np.float32), batch.out)
        batch.vec.step(np.zeros((3, 1), np.float32), batch.out)


class Talking(Counting):
    """Says in its second step, or of its second reset, what `plan` has."""

    action_mask_in_info = True

    def reset(self, **keywords):
        observation, info = super().reset(**keywords)
        return observation, info | (self.plan.get("reset", {}) if self.resets == 2 else {})

    def step(self, action):
        *results, info = super().step(action)
        said = self.plan.get("step", {}) if self.time == 2 and self.resets == 1 else {}
        return *results, {**info, **said} if isinstance(said, dict) else said


BAD_INFOS = [
    ({"num_frames": -88_000_000}, "'num_frames' should be a whole number of frames, .* but is -88000000"),
    ({"num_frames": 1.5}, "'num_frames' should be a whole number of frames, .* but is 1.5"),
    ({"num_frames": 2**40}, "'num_frames' should be a whole number"),
    ({"num_frames": None}, "'num_frames' should be a whole number of frames, .* but is NoneType None"),
    ({"true_reward": "high"}, "'true_reward' should be a finite number, in the info, but is str 'high'"),
    ({"true_reward": np.nan}, "'true_reward' should be a finite number, in the info, but is nan"),
    ({"episode_extra_stats": [1]}, r"'episode_extra_stats' should be a dict of numbers, .* but is list \[1\]"),
    ({"episode_extra_stats": {"a": "b"}}, "'episode_extra_stats' should be a dict of numbers"),
    ({"is_active": "no"}, "'is_active' should be True or False, but is str 'no'"),
    ({"action_mask": [1, 0]}, "'action_mask' should be one entry for each of 3 choices"),
    ({"action_mask": ["a", "b", "c"]}, "'action_mask' should be one entry for each of 3 choices"),
    ({"action_mask": [[1], [1, 2], 3]}, "'action_mask' should be one entry for each of 3 choices"),
    ({"action_mask": [0, 0, 0]}, "'action_mask' should be 1 for at least one choice, but is 0 for all"),
    ("an info", "'info' should be a dict, but is str 'an info'"),
]


def talking(moment, said, **rules):
    """A batch whose middle environment says something in its second step, or of its second reset."""
    batch = Batch({}, **rules)
    batch.envs = [Talking({moment: said} if i == 1 else {}) for i in range(3)]
    batch.vec = SerialVecEnv(batch.envs, batch.contexts, batch.keeper, batch.build)
    batch.out = step_arrays(batch.vec.spec, 3)
    return batch


@pytest.mark.parametrize("said, message", BAD_INFOS)
def test_a_bad_info_later_on_ends_the_run_and_is_named(said, message):
    batch = talking("step", said).reset()
    batch.step()
    with pytest.raises(BadEnvDataError, match=rf"environment 11 of counting .* failed in step: {message}") as caught:
        batch.step()
    assert not caught.value.retryable and "\n" not in str(caught.value) and not batch.counted


@pytest.mark.parametrize("said, message", BAD_INFOS)
def test_an_episode_with_a_bad_info_is_dropped_and_counted_where_that_is_asked_for(said, message):
    batch = talking("step", said, drops_bad_data=True).reset()
    batch.step()
    assert 1 not in batch.step() and batch.counted == [True]
    assert [batch.row(name) for name in STATE] == [0, 0, 0, 0, 1, 0, 1, 1]
    assert batch.row("obs") == [0, 0] and batch.row("obs", 0) == [0, 2] and batch.envs[1].resets == 2


@pytest.mark.parametrize(
    "said", [{"is_active": 2}, {"action_mask": [1]}, {"action_mask": [0, 0, 0]}], ids=["active", "width", "nothing"]
)
def test_a_bad_info_of_a_later_reset_is_bad_data_too(said, monkeypatch):
    monkeypatch.setattr(Counting, "length", 3)
    batch = talking("reset", said).reset()
    with pytest.raises(BadEnvDataError, match=r"environment 11 of counting .* failed in reset: '"):
        batch.step(3)
    batch = talking("reset", said, drops_bad_data=True).reset()
    batch.step(3)
    assert batch.row("terminated") == 1 and batch.row("rewards") == 1, "the step before the reset stands"
    assert batch.counted == [True] and batch.envs[1].resets == 3


def test_an_agent_that_does_not_act_needs_no_choice():
    batch = talking("step", {"is_active": False, "action_mask": [0, 0, 0]}).reset()
    batch.step(3)
    assert not batch.counted


@pytest.mark.parametrize("reward", [np.nan, -np.inf])
def test_a_reward_that_is_not_finite_is_bad_data(reward):
    with pytest.raises(BadEnvDataError, match="'reward' should be finite"):
        Batch({"reward": reward}).reset().step()
    batch = Batch({"reward": reward}, drops_bad_data=True).reset()
    batch.step()
    assert batch.row("rewards") == 0 and batch.row("crashed") == 1 and batch.row("rewards", 2) == 1


def test_nothing_but_bad_data_is_given_up_even_when_they_are_dropped():
    batch = Batch({"reward": np.nan}, drops_bad_data=True, max_rebuilds=5).reset()
    with pytest.raises(EnvError, match="6 times in a row") as caught:
        batch.step(9)
    assert not isinstance(caught.value, BadEnvDataError)


def test_numbers_whose_squares_overflow_are_not_bad():
    batch = Batch({(0, 1): np.array([1e30, -1e30])}).reset()
    batch.step()
    assert batch.row("obs") == [np.float32(1e30), np.float32(-1e30)] and not batch.counted


def test_lists_and_other_castable_dtypes_are_fine():
    batch = Batch({(0, 1): [5, 6], (0, 2): np.array([7, 8]), (0, 3): np.array([9, 9], np.float32)}).reset()
    seen = []
    for _ in range(4):
        batch.step()
        seen.append(batch.row("obs"))
    assert seen == [[5, 6], [7, 8], [9, 9], [0, 4]] and not batch.counted


@pytest.mark.parametrize("broken", [{}, 5, None, {"other": 1}])
def test_a_missing_key_is_bad_data(broken):
    class Keys(Counting):
        observation_space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(3)})})

        def _observe(self):
            return {"a": {"b": 1}} if self.time == 0 else {"a": broken}

    batch = SerialVecEnv([Keys({})], [EnvContext()])
    out = step_arrays(batch.spec, 1)
    batch.reset(out)
    with pytest.raises(BadEnvDataError, match="'a/b' should be in every observation, but is missing"):
        batch.step(np.zeros((1, 1), np.float32), out)


def test_all_agents_of_an_environment_lose_the_step():
    options = SyntheticOptions(synthetic_num_agents=2)
    batch = make_batch_env(
        "synthetic_multi", options, [EnvContext(env_id=i, seed=1) for i in range(2)], FaultPolicy(10)
    )
    out = step_arrays(batch.spec, 2)
    batch.reset(out)
    assert isinstance(batch, SerialVecEnv)
    batch.envs[1].step = lambda actions: 1 / 0
    batch.step(np.zeros((4, 1), np.float32), out)
    assert out.crashed.tolist() == [0, 0, 1, 1] == out.is_first.tolist() and out.frames.tolist() == [1, 1, 0, 0]
    batch.step(np.zeros((4, 1), np.float32), out)
    assert not out.crashed.any() and not out.is_first.any() and out.frames.tolist() == [1] * 4


def test_failures_are_logged_once_a_second_with_their_number(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("appo.envs.faults.time.monotonic", lambda: now[0])
    batch = Batch({(attempt, 1): CRASH for attempt in range(30)}, max_rebuilds=99).reset()
    with caplog.at_level(logging.WARNING):
        batch.step(10)
        now[0] = 1.5
        batch.step()
    first, second = [record.getMessage() for record in caplog.records]
    assert "the wheel came off; it is built anew (1 failures so far" in first
    assert "(11 failures so far in this process, 9 of them since the last such line)" in second


def test_the_text_of_a_failure_is_cut_in_the_log(caplog):
    batch = Batch({(0, 1): RuntimeError(f"begin {'x' * 2_000_000} end")}).reset()
    with caplog.at_level(logging.WARNING):
        batch.step()
    [record] = caplog.records
    assert "begin x" in record.getMessage() and "x end; it is built anew" in record.getMessage()
    assert len(record.getMessage()) < 20_000


def test_errors_travel_between_processes():
    import pickle

    error = BadEnvDataError(3, "step", "text", EnvContext(env_id=8, env_name="x"), 2)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and not again.retryable and again.context.env_id == 8
    assert str(pickle.loads(pickle.dumps(MisfitError("k", "a", "b")))) == "'k' should be a, but is b"


@pytest.mark.parametrize("drops_bad_data", [False, True])
def test_a_natively_vectorised_environment_fails_and_begins_anew_as_a_whole(drops_bad_data):
    from appo.envs.families.classic import ClassicOptions

    contexts = [EnvContext(env_id=i, seed=1) for i in range(4)]
    keeper = FaultPolicy(10, drops_bad_data=drops_bad_data)
    batch = make_batch_env("CartPole-v1", ClassicOptions(classic_vectorized=True), contexts, keeper)
    out = step_arrays(batch.spec, 4)
    batch.reset(out)
    assert isinstance(batch, VectorEnvAdapter)
    batch.env.unwrapped.state[:, 2] = np.nan
    batch.env.unwrapped.state[:, [0, 1, 3]] = 0.0
    actions = np.zeros((4, 1), np.float32)
    if not drops_bad_data:
        with pytest.raises(BadEnvDataError, match=r"environment 2 .*'obs' should be finite"):
            batch.step(actions, out)
        return
    batch.step(actions, out)
    assert out.crashed.all() and out.is_first.all() and np.isfinite(out.observations["obs"]).all()
    batch.step(actions, out)
    assert not out.crashed.any() and not out.is_first.any() and (out.rewards == 1).all()


def test_the_check_of_values_looks_at_floats_of_every_key_and_nothing_else():
    batch = make_batch_env("synthetic_dict", None, [EnvContext(env_id=i) for i in range(2)])
    out = step_arrays(batch.spec, 2)
    check = ValueCheck(batch.spec, 2)
    assert check.passes(out) and not check.bad_rows(out)
    floats = [name for name, array in out.observations.items() if array.dtype.kind == "f"]
    assert 0 < len(floats) < len(out.observations)
    for name in floats:
        out.observations[name][1] = np.nan
        assert not check.passes(out) and check.bad_rows(out) == [1]
        out.observations[name][1] = 0
