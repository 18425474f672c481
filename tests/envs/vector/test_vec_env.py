"""`VecEnv`: what comes back belongs to what was sent, whatever the backend, and nobody waits for the slowest."""

import functools
import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from appo.envs.api import EnvContext
from appo.envs.faults import Restarts
from appo.envs.vector.errors import (
    AlreadyStepping,
    ClosedEnvironmentError,
    EnvTimeout,
    EnvWorkerDied,
    EnvWorkerError,
    NotStepping,
)
from appo.envs.vector.make import make_vec_env, vec_env_of
from appo.envs.vector.serial import SerialVecEnv
from appo.envs.vector.step_batch import KIND_RESET, KIND_RESTARTED, KIND_STEP
from appo.utils.options import ConfigError
from appo.utils.processes import is_alive
from tests.envs.test_parallel_env_adapter import ScriptedParallel
from tests.envs.vector.vec_env_cases import Echo, descendants

ROOT = Path(__file__).resolve().parents[3]
# Every way to run environments: backend, and what else to say.
WAYS: dict[str, dict[str, Any]] = {
    "serial": {"backend": "serial"},
    "process each": {"backend": "subproc", "num_workers": 6, "start_method": "fork"},
    "mixed": {"backend": "subproc", "num_workers": 2, "start_method": "fork"},
    "one process": {"backend": "subproc", "num_workers": 1, "start_method": "forkserver"},
    "spawned": {"backend": "subproc", "num_workers": 4, "start_method": "spawn"},
}
FORKED: dict[str, Any] = {"backend": "subproc", "start_method": "fork"}


@pytest.fixture(scope="module", autouse=True)
def servers():
    """What multiprocessing and the guard start once, and keep open."""
    for method in ("fork", "forkserver", "spawn"):
        make_vec_env(Echo, 1, backend="subproc", start_method=method).close()


@pytest.fixture
def make():
    """Make vector environments, and look that nothing is left of them."""
    made = []

    def begin(env, num_envs=None, **options):
        made.append(make_vec_env(env, num_envs, **options))
        return made[-1]

    before = open_descriptors()
    yield begin
    for env in made:
        env.close(2.0)
    gc.collect()
    assert descendants() == []
    assert open_descriptors() <= before


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("way", WAYS)
def test_every_result_belongs_to_the_action_that_was_sent(make, way):
    env = make(functools.partial(Echo, length=4), 6, **WAYS[way])
    env.async_reset(seed=3)
    rng = np.random.default_rng(0)
    sent: dict[int, int] = {}
    seen = dict.fromkeys(range(6), 0)
    while min(seen.values()) < 30:
        batch = env.recv()
        assert len(set(batch.env_ids.tolist())) == len(batch.env_ids) >= 1
        for place, index in enumerate(batch.env_ids.tolist()):
            told = batch.obs["obs"][place].tolist()
            assert told[0] == index
            steps = seen[index]
            seen[index] += 1
            if steps == 0:
                assert batch.kind[place] == KIND_RESET and told[2:] == [1, 0, -1]
                continue
            assert batch.kind[place] == KIND_STEP and batch.rewards[place] == sent[index]
            assert batch.terminated[place] == (steps % 4 == 0)
            assert batch.episode_id[place] == steps // 4
            if batch.terminated[place]:
                assert told[2:] == [1 + steps // 4, 0, -1], "the first observation of the next episode"
                assert batch.final_obs["obs"][place].tolist() == [index, 0, steps // 4, 4, sent[index]]
                assert batch.infos[place] == {"episode_extra_stats": {"steps": 4}}
            else:
                assert told[2:] == [1 + steps // 4, steps % 4, sent[index]]
        actions = rng.integers(1000, size=len(batch.env_ids))
        sent |= dict(zip(batch.env_ids.tolist(), actions.tolist(), strict=True))
        env.send(actions, batch.env_ids)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_environments_outlive_the_thread_that_made_them(method):
    """The parent that Linux tells a process of is a thread."""
    made = []

    def build():
        made.append(make_vec_env("CartPole-v1", 2, seed=1, backend="subproc", num_workers=2, start_method=method))
        made[0].reset()

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    with made[0] as env:
        time.sleep(0.2)
        assert len(env.step(np.zeros(2, np.int64)).rewards) == 2
        assert env.num_restarts == 0
    assert descendants() == []


def trajectories(env, is_synchronous, steps=120):
    """A digest per environment of all that is seen with actions that depend on its number and step alone."""
    digests = [hashlib.sha256() for _ in range(env.num_envs)]
    counts = [0] * env.num_envs
    rngs = [np.random.default_rng([7, index]) for index in range(env.num_envs)]
    env.async_reset(seed=11)
    while min(counts) < steps:
        batch = env.recv(env.num_envs if is_synchronous else None)
        ended = batch.terminated | batch.truncated
        going_on = []
        for place, index in enumerate(batch.env_ids.tolist()):
            counts[index] += 1
            told = [batch.obs["obs"][place], batch.rewards[place], batch.terminated[place], batch.truncated[place]]
            told += [batch.final_obs["obs"][place]] if ended[place] else []
            for part in told:
                digests[index].update(np.ascontiguousarray(part).tobytes())
            if counts[index] < steps:
                going_on.append(index)
        if going_on:
            env.send(np.array([rngs[index].integers(2) for index in going_on]), going_on)
    return [digest.hexdigest() for digest in digests]


def test_episodes_are_the_same_with_every_backend_and_timing():
    seen = {}
    for way, options in WAYS.items():
        for is_synchronous in (True, False):
            with make_vec_env("CartPole-v1", 6, **options) as env:
                seen[way, is_synchronous] = trajectories(env, is_synchronous)
    first = seen["serial", True]
    assert len(set(first)) == 6
    assert all(each == first for each in seen.values())


def test_truncated_episodes_have_their_last_observation_apart(make):
    env = make(functools.partial(Echo, length=3, truncates=True), 2, **FORKED)
    env.reset()
    for number in (1, 2):
        env.step([number, number])
    batch = env.step([3, 3])
    assert batch.truncated.all() and not batch.terminated.any()
    assert batch.final_obs["obs"][:, 2:].tolist() == [[1, 3, 3]] * 2
    assert batch.obs["obs"][:, 2:].tolist() == [[2, 0, -1]] * 2
    assert (env.step([4, 4]).obs["obs"][:, 3] == 1).all(), "no step is lost between two episodes"


def frames_per_second(sleeps, is_synchronous, seconds=1.0):
    """Steps per second of all environments together, each with a step time of its own."""
    factories = [functools.partial(Echo, sleep_s=sleep_s, length=10**9) for sleep_s in sleeps]
    with make_vec_env(factories, num_workers=len(sleeps), **FORKED) as env:
        env.reset()
        actions = np.zeros(len(sleeps), np.int64)
        steps, began = 0, time.monotonic()
        if is_synchronous:
            while time.monotonic() - began < seconds:
                env.step(actions)
                steps += len(sleeps)
            return steps / (time.monotonic() - began)
        env.send(actions)
        while time.monotonic() - began < seconds:
            batch = env.recv()
            steps += len(batch.env_ids)
            env.send(actions[batch.env_ids], batch.env_ids)
        return steps / (time.monotonic() - began)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("sleeps", "at_least"),
    [
        ([0.001] * 9 + [0.02], 4.0),
        ([0.01] * 9 + [0.1], 6.0),
        ([0.005] * 10, 0.85),
    ],
)
def test_nobody_waits_for_the_slowest(sleeps, at_least):
    assert frames_per_second(sleeps, False) >= at_least * frames_per_second(sleeps, True)


class Uneven(Echo):
    """Steps take a random time, exponential with a mean of 10 ms."""

    def step(self, action):
        self.sleep_s = float(self.np_random.exponential(0.01))
        return super().step(action)


@pytest.mark.alone
def test_steps_of_uneven_length_overlap():
    rates = []
    for is_synchronous in (False, True):
        with make_vec_env(functools.partial(Uneven, length=10**9), 10, num_workers=10, **FORKED) as env:
            env.reset(seed=1)
            steps, began = 0, time.monotonic()
            env.send(np.zeros(10, np.int64))
            while time.monotonic() - began < 1.0:
                batch = env.recv(10 if is_synchronous else None)
                steps += len(batch.env_ids)
                env.send(np.zeros(len(batch.env_ids), np.int64), batch.env_ids)
            rates.append(steps / (time.monotonic() - began))
    assert rates[0] >= 1.5 * rates[1]


@pytest.mark.parametrize("way", ["mixed", "process each"])
def test_a_fast_environment_does_not_starve_the_others(make, way):
    sleeps = [0.0, 0.002, 0.0, 0.002, 0.004, 0.0]
    factories = [functools.partial(Echo, sleep_s=sleep_s) for sleep_s in sleeps]
    env = make(factories, **WAYS[way])
    env.async_reset()
    counts, began = np.zeros(6), time.monotonic()
    while counts.min() < 20:
        assert time.monotonic() - began < 20, counts
        batch = env.recv()
        counts[batch.env_ids] += 1
        env.send(np.zeros(len(batch.env_ids), np.int64), batch.env_ids)


def test_a_reset_is_a_barrier(make):
    factories = [functools.partial(Echo, sleep_s=0.001 * index, length=10**6) for index in range(6)]
    env = make(factories, num_workers=3, **FORKED)
    env.reset()
    for number in range(2, 12):
        env.send(np.full(6, 5))
        batch = env.recv()
        env.send(np.full(len(batch.env_ids), 5), batch.env_ids)
        env.async_reset()
        seen: set[int] = set()
        while len(seen) < 6:
            batch = env.recv()
            assert (batch.kind == KIND_RESET).all()
            assert (batch.obs["obs"][:, 2:] == [number, 0, -1]).all(), "nothing from before it"
            seen |= set(batch.env_ids.tolist())


@pytest.mark.parametrize("way", ["serial", "mixed"])
def test_some_environments_are_reset_with_seeds_and_options(make, way):
    env = make(functools.partial(Echo, length=10), 6, **WAYS[way])
    env.reset()
    env.step(np.full(6, 9))
    env.reset_envs([1, 4], seeds=[5, 6], options={"start": 3})
    batch = env.recv(2)
    assert batch.env_ids.tolist() == [1, 4] and (batch.kind == KIND_RESET).all()
    assert env.get_attr("options", [0, 1, 4]) == [None, {"start": 3}, {"start": 3}]
    assert [rng.bit_generator.state for rng in env.get_attr("np_random", [1, 4])] == [
        np.random.default_rng(seed).bit_generator.state for seed in (5, 6)
    ]
    env.send([1, 2], [1, 4])
    assert env.recv(2).obs["obs"][:, 2:].tolist() == [[2, 1, 1], [2, 1, 2]]
    assert env.call("get_env_params", env_ids=[3])[0]["gravity"] == 1.0


@pytest.mark.parametrize("way", ["serial", "mixed"])
def test_a_step_with_rows_of_actions_is_the_step_with_the_same_actions(make, way):
    by_actions, by_rows = (make("Pendulum-v1", 4, **WAYS[way]) for _ in range(2))
    for env in (by_actions, by_rows):
        env.reset(seed=5)
    bound = by_actions.action_space.high  # rows are in policy units, where it is 1
    for step in range(5):
        rows = np.linspace(-1.0, 1.0, 4, dtype=np.float32)[:, None] * (step + 1) / 5
        batches = by_actions.step(rows * bound), by_rows.step_rows(rows)
        np.testing.assert_array_equal(*(batch.obs["obs"] for batch in batches))
        np.testing.assert_array_equal(*(batch.rewards for batch in batches))
    by_rows.send_rows(rows)
    with pytest.raises(AlreadyStepping, match="receive their results first"):
        by_rows.step_rows(rows)


@pytest.mark.parametrize("way", ["serial", "process each"])
def test_calls_out_of_order_are_refused(make, way):
    env = make(Echo, 6, **WAYS[way])
    with pytest.raises(NotStepping, match="call reset"):
        env.send(np.zeros(6, np.int64))
    with pytest.raises(NotStepping, match="send actions first"):
        env.recv()
    env.reset()
    env.send([1, 2], [0, 3])
    with pytest.raises(AlreadyStepping, match="environments 3 have not finished"):
        env.send([1, 1], [1, 3])
    env.recv(2)
    with pytest.raises(ValueError, match="3 actions for 2 environments"):
        env.send([1, 2, 3], [0, 1])
    with pytest.raises(ValueError, match="numbers from 0 to 5"):
        env.send([1], [6])
    with pytest.raises(ValueError, match="twice"):
        env.send([1, 1], [2, 2])
    with pytest.raises(ValueError, match="2 entries for 6"):
        env.set_attr("length", [1, 2])
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(env)
    env.close()
    assert env.closed
    for use in (env.recv, env.reset, lambda: env.send(np.zeros(6)), lambda: env.call("close")):
        with pytest.raises(ClosedEnvironmentError):
            use()


@pytest.mark.parametrize("way", ["serial", "mixed"])
def test_attributes_parameters_and_statistics(make, way):
    env = make(lambda ctx: gymnasium.wrappers.TimeLimit(Echo(ctx, length=3), 100), 6, **WAYS[way])
    env.reset()
    for _ in range(2):
        env.step(np.zeros(6, np.int64))
    assert [context.env_id for context in env.call("tell_context")] == list(range(6))
    env.set_attr("length", [3, 4, 5, 6, 7, 8])
    assert env.get_attr("length") == [3, 4, 5, 6, 7, 8]
    env.set_env_params({"gravity": 2.0})
    env.set_env_params([{"wind": float(index)} for index in range(6)])
    assert env.call("get_env_params")[4] == {"gravity": 2.0, "wind": 4.0}
    with pytest.raises(EnvWorkerError, match=r"no such parameter: snow; there are gravity, wind"):
        env.set_env_params({"snow": 1})
    stats = env.pop_stats()
    assert (stats["total"].how, stats["total"].value, stats["longest"].value) == ("sum", 12, 5)
    timing = env.pop_timing()
    assert timing["env_step"]["count"] == 12 and timing["env_reset"]["count"] == 6 and timing["env_step"]["total"] > 0
    assert env.pop_timing()["env_step"]["count"] == 0
    with pytest.raises(EnvWorkerError, match="AttributeError"):
        env.get_attr("nothing_of_this_name")


@pytest.mark.parametrize("way", ["serial", "process each", "mixed"])
@pytest.mark.parametrize("how", ["raise", "unpicklable"])
def test_an_exception_names_its_environment_and_shows_its_traceback(make, way, how):
    env = make([functools.partial(Echo, script={(0, 3): how} if index == 4 else {}) for index in range(6)], **WAYS[way])
    env.reset()
    for number in (1, 2):
        env.step(np.full(6, number))
    with pytest.raises(EnvWorkerError) as caught:
        env.step(np.full(6, 3))
    error = caught.value
    assert error.env_ids == [4] and error.exc_type == ("ValueError" if how == "raise" else "Unpicklable")
    assert "_misbehave" in error.remote_traceback and "environment 4" in str(error)
    if how == "raise":
        assert isinstance(error.__cause__, ValueError)
    assert env.recv(6).env_ids.tolist() == [0, 1, 2, 3, 5], "the others have stepped"
    env.reset_envs([4])
    assert env.recv().env_ids.tolist() == [4], "it can be used again"
    assert (env.step(np.full(6, 4)).obs["obs"][:4, 3] == 4).all()


@pytest.mark.parametrize("way", ["serial", "process each", "mixed"])
def test_what_others_did_is_not_lost_with_a_failure(make, way):
    scripts = {1: {(0, 2): "raise"}, 4: {(0, 2): "raise"}}
    env = make([functools.partial(Echo, script=scripts.get(index, {})) for index in range(6)], **WAYS[way])
    env.reset()
    env.step(np.full(6, 1))
    env.send(np.full(6, 7))
    failed, seen = [], []
    for _ in range(3):
        try:
            batch = env.recv(6)
        except EnvWorkerError as error:
            failed += error.env_ids
        else:
            seen += batch.env_ids.tolist()
            assert (batch.obs["obs"][:, 4] == 7).all()
    assert (failed, seen) == ([1, 4], [0, 2, 3, 5])


@pytest.mark.parametrize("way", ["serial", "mixed"])
def test_a_batch_stays_as_it_is_whatever_comes_after_it(make, way):
    env = make([functools.partial(Echo, length=2)] * 6, **WAYS[way])
    batches = [env.reset(), env.step(np.arange(6))]
    before = [[np.copy(each) for each in (batch.episode_id, batch.kind, batch.obs["obs"])] for batch in batches]
    env.reset_envs([0, 3])
    env.recv(2)
    env.step(np.arange(6))
    for batch, arrays in zip(batches, before, strict=True):
        for array, then in zip((batch.episode_id, batch.kind, batch.obs["obs"]), arrays, strict=True):
            assert np.array_equal(array, then)
    last = env.step(np.arange(6))
    last.obs["obs"][:], last.rewards[:] = 99, 99
    assert env.step(np.arange(6)).obs["obs"].max() < 10, "it is the caller's"
    shared = (last.env_ids, last.episode_id, last.kind, last.terminated, last.truncated, last.is_first, last.is_active)
    assert not any(array.flags.writeable for array in shared), "another batch may show it, too"


def test_what_still_steps_when_a_step_of_all_fails_is_waited_for(make):
    for_good = {(attempt, "make"): "raise" for attempt in range(1, 100)}
    scripts: list[dict[Any, str]] = [{(0, 2): "raise", **for_good}, {(0, 2): "pause"}]
    env = make(
        [functools.partial(Echo, script=script) for script in scripts],
        num_workers=2,
        restarts=Restarts("restart", 0),
        **FORKED,
    )
    env.reset()
    env.step(np.zeros(2))
    with pytest.raises(EnvWorkerError):
        env.step(np.full(2, 5))
    with pytest.raises(AlreadyStepping):
        env.send(np.array([6]), [1])
    batch = env.recv(1)
    assert batch.env_ids.tolist() == [1] and batch.obs["obs"][0, 4] == 5


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("raise", EnvWorkerError, r"environment 1 .* failed in make: ValueError: as told"),
        ("exit", EnvWorkerDied, "ended by itself with exit code 7"),
        ("crash", EnvWorkerDied, "was killed by SIGSEGV"),
        ("sleep", EnvTimeout, r"environments 1 did not finish being built within 2 s"),
    ],
)
def test_what_cannot_be_built_is_told(method, how, error, words):
    factories: list[Any] = [Echo, functools.partial(Echo, script={(0, "make"): how})]
    limit = 2.0 if how == "sleep" else 60.0
    with pytest.raises(error, match=words):
        make_vec_env(factories, backend="subproc", num_workers=2, start_method=method, reset_timeout=limit)
    assert descendants() == []


@pytest.mark.parametrize(
    ("how", "words"), [("exit", "ended by itself with exit code 7"), ("crash", "was killed by SIGSEGV")]
)
def test_the_death_of_a_process_is_told(make, how, words):
    env = make([Echo, functools.partial(Echo, script={(0, 2): how}), Echo], num_workers=3, **FORKED)
    env.reset()
    env.step([1, 1, 1])
    env.send([2, 2, 2])
    with pytest.raises(EnvWorkerDied, match=words) as caught:
        env.recv(3)
    assert caught.value.env_ids == [1] and caught.value.exit_code in (7, -11)
    others = env.recv(2)
    assert others.env_ids.tolist() == [0, 2] and (others.obs["obs"][:, 3] == 2).all()
    with pytest.raises(EnvWorkerDied):
        env.send([3], [1])


def test_what_takes_too_long_is_told(make):
    env = make([Echo, functools.partial(Echo, script={(0, 2): "sleep"})], num_workers=2, step_timeout=0.5, **FORKED)
    env.reset()
    env.step([1, 1])
    env.send([2, 2])
    assert env.recv(1).env_ids.tolist() == [0]
    with pytest.raises(EnvTimeout, match=r"environments 1 did not finish their step or reset within 0\.05 s"):
        env.recv(1, timeout=0.05)
    with pytest.raises(EnvTimeout, match=r"environments 1 did not finish their step within 0.5 s"):
        env.recv(1)


@pytest.mark.parametrize("how", ["exit", "crash", "sleep", "raise", "nan"])
@pytest.mark.parametrize("workers", [6, 2])
def test_a_failed_environment_begins_anew_and_the_others_go_on(make, how, workers):
    """Two fail at once, in processes of their own or together with others."""
    script = {(0, 3): how}
    factories = [functools.partial(Echo, length=100, script=script if index in (1, 4) else {}) for index in range(6)]
    restarts = Restarts("restart", max_lifetime=3, rate=-1)
    env = make(factories, num_workers=workers, restarts=restarts, step_timeout=0.5, **FORKED)
    env.set_env_params({"wind": 3.0})
    env.reset()
    for number in (1, 2):
        env.step(np.full(6, number))
    batch = env.step(np.full(6, 3))
    in_place = how in ("raise", "nan")  # nothing but the environment itself is restarted
    lost = {1, 4} if workers == 6 or in_place else set(range(6))
    restarted = set(np.flatnonzero(batch.kind == KIND_RESTARTED).tolist())
    assert {1, 4} <= restarted <= lost
    assert (batch.rewards[sorted(restarted)] == 0).all() and not batch.terminated.any()
    for index in sorted(restarted):
        assert batch.obs["obs"][index, 3:].tolist() == [0, -1]
        assert how == "nan" or batch.obs["obs"][index, 1] in (1, 1000), "another attempt, with other seeds"
    after = env.step(np.full(6, 4))
    for index in range(6):
        if index not in lost:
            assert after.obs["obs"][index, 1:].tolist() == [0, 1, 4, 4], "untouched"
        elif index not in restarted:
            assert after.kind[index] == KIND_RESTARTED
    assert how == "nan" or env.call("get_env_params", env_ids=[1])[0]["wind"] == 3.0
    assert (env.step(np.full(6, 5)).kind == KIND_STEP).all()
    assert how in ("raise", "nan") or env.num_restarts == 2


@pytest.mark.parametrize(
    ("restarts", "deaths"),
    [
        (Restarts("restart", max_lifetime=2, rate=-1), 2),
        (Restarts("restart", max_lifetime=-1, rate=1, per_seconds=60), 1),
    ],
)
def test_a_process_is_restarted_as_often_as_its_quota_says(make, restarts, deaths):
    dies = {(1000 * attempt, 2): "exit" for attempt in range(20)}
    env = make([Echo, functools.partial(Echo, script=dies)], num_workers=2, restarts=restarts, **FORKED)
    env.reset()
    seen = 0
    with pytest.raises(EnvWorkerDied, match=r"exit code 7; no restart is left of Restarts\(max_lifetime="):
        for _ in range(20):
            seen += env.step([0, 0]).kind.tolist().count(KIND_RESTARTED)
    assert seen == env.num_restarts == deaths


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 2, **FORKED}])
@pytest.mark.parametrize(("limits", "survived"), [((2, -1), 2), ((-1, 1), 1), ((-1, -1), 9)])
def test_an_environment_that_raises_is_built_anew_as_often_as_the_quota_says(make, where, limits, survived):
    raises = {(attempt, 2): "raise" for attempt in range(20)}
    env = make([Echo, functools.partial(Echo, script=raises)], restarts=Restarts("restart", *limits), **where)
    env.reset()
    seen = 0
    try:
        for _ in range(18):
            seen += env.step([0, 0]).kind.tolist().count(KIND_RESTARTED)
    except EnvWorkerError as error:
        assert limits != (-1, -1)
        assert "environment 1 (worker" in str(error) and "no restart is left of Restarts(max_lifetime=" in str(error)
    assert seen == survived


def test_what_hangs_too_often_is_told_as_late(make):
    hangs = {(1000 * attempt, 2): "sleep" for attempt in range(5)}
    restarts = Restarts("restart", max_lifetime=1, rate=-1)
    env = make(functools.partial(Echo, script=hangs), 1, num_workers=1, step_timeout=0.3, restarts=restarts, **FORKED)
    env.reset()
    with pytest.raises(EnvTimeout, match=r"environments 0 did not finish their step within 0.3 s; no restart is left"):
        for _ in range(10):
            env.step([0])
    assert env.num_restarts == 1


AGAIN: Any = "again"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"restarts": "restart"}, "restarts='restart' has to be such as Restarts"),
        ({"restarts": Restarts(AGAIN)}, r"Restarts\(on='again'\) is unknown; there are raise, restart"),
        ({"restarts": Restarts("restart", -5)}, r"Restarts\(max_lifetime=-5\) is no number of restarts; -1: no limit"),
        ({"restarts": Restarts("restart", per_seconds=0)}, r"Restarts\(per_seconds=0\) has to be above 0"),
        ({"step_timeout": -1}, "step_timeout=-1 has to be a time above 0"),
        ({"seed": "x"}, "seed='x' has to be a whole number of at least 0, or None"),
        ({"seed": -3}, "seed=-3 has to be"),
        ({"num_envs": 2.5}, "num_envs=2.5: a whole number of at least 1 is needed"),
        ({"env": 3}, "3 is no environment: a name, a factory, or a list of factories is needed"),
        ({"env": [Echo, 3], "num_envs": None}, "3 in a list of environments is no factory"),
        (
            {"env": ["CartPole-v1"], "num_envs": None},
            "'CartPole-v1' in a list of environments is no factory",
        ),
        ({"step_timeout": "1"}, "step_timeout='1' has to be a time above 0"),
    ],
)
def test_arguments_that_can_have_no_meaning_are_refused(wrong, reason):
    with pytest.raises(ConfigError, match=reason):
        make_vec_env(**({"env": Echo, "num_envs": 2} | wrong))


def test_a_process_that_never_begins_is_not_restarted_for_ever(make):
    script = dict[Any, str]({(0, 2): "exit"}) | {(1000 * attempt, "make"): "raise" for attempt in range(1, 50)}
    restarts = Restarts("restart", max_lifetime=-1, rate=-1)
    env = make([Echo, functools.partial(Echo, script=script)], num_workers=2, restarts=restarts, **FORKED)
    env.reset()
    env.step([0, 0])
    with pytest.raises(EnvWorkerError, match="failed in make: ValueError: as told"):
        env.step([0, 0])


ENDINGS = ["idle", "busy", "unread", "sleep", "deaf", "stop", "killed", "close raises", "engine", "twice", "error"]


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        *[(method, ending) for method in ("fork", "forkserver") for ending in ENDINGS],
        *[("spawn", ending) for ending in ("busy", "deaf", "killed")],  # such a process takes two seconds to start
    ],
)
def test_close_leaves_nothing_and_never_hangs(method, ending):
    script: dict[Any, str] = {}
    before = open_descriptors()
    if ending in ("sleep", "deaf", "stop", "engine"):
        script = {(0, 2): ending}
    if ending == "close raises":
        script = {(0, "close"): "raise"}
    env = make_vec_env(
        functools.partial(Echo, script=script, sleep_s=0.02 if ending == "busy" else 0.0),
        4,
        backend="subproc",
        num_workers=2,
        start_method=method,
    )
    env.reset()
    env.step(np.zeros(4, np.int64))
    if ending == "engine":
        env.step(np.zeros(4, np.int64))
    if ending in ("busy", "unread", "sleep", "deaf", "stop", "error"):
        env.send(np.zeros(4, np.int64))
        time.sleep(0.3 if ending != "busy" else 0.0)
    if ending == "killed":
        os.kill(env.call("tell_process")[0][0], signal.SIGKILL)
    began = time.monotonic()
    if ending == "error":
        with pytest.raises(ZeroDivisionError), env:
            _ = 1 / 0
        report = env.close()
    else:
        report = env.close(1.0)
    assert time.monotonic() - began <= 3.0
    assert env.close(1.0) == report, "a second time"
    assert descendants() == []
    assert open_descriptors() <= before, "files, and shared memory, which is one of them"
    if ending == "close raises":
        assert len(report.failures) == 2 and "as told" in report.failures[0]
    if ending in ("deaf", "stop"):
        assert report.killed == 2
    if ending in ("idle", "busy", "unread"):
        assert report.closed == 2 and not report.failures


PROGRAM = """
    import functools, os, signal, sys, time
    import numpy as np
    from appo.envs.vector.make import make_vec_env
    from tests.envs.vector.vec_env_cases import Echo
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a script starts in the background
    if __name__ == "__main__":
        env = make_vec_env(functools.partial(Echo, sleep_s=0.01, script={(0, 3): "engine"}), 4,
                           backend="subproc", num_workers=2, start_method=sys.argv[1])
        env.reset()
        for _ in range(5):
            env.step(np.zeros(4, np.int64))
        print(*{pid for pid, *_ in env.call("tell_process")}, *env.get_attr("engine_pid"), flush=True)
        env.send(np.zeros(4, np.int64))
        if sys.argv[2] == "exit":
            sys.exit(0)
        while True:
            env.recv(4)
            env.send(np.zeros(4, np.int64))
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("method", "ending"),
    [("fork", "SIGKILL"), ("forkserver", "SIGKILL"), ("spawn", "SIGKILL"), ("fork", "exit"), ("forkserver", "SIGINT")],
)
def test_processes_end_with_their_parent_however_it_ends(tmp_path, method, ending):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    child = subprocess.Popen(
        [sys.executable, str(program), method, ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": search},
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, child.stderr.read() if child.stderr else ""
    pids = {int(word) for word in line.split()}
    assert len(pids) == 2 + 4, "processes, and engines that they have started"
    if ending != "exit":
        child.send_signal(getattr(signal, ending))
    child.wait(10)
    deadline = time.monotonic() + 2.0
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, pids))
    child.communicate()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_factories_of_all_kinds_travel(make, method):
    length = 7

    class Local(Echo):
        pass

    def closure(context):
        return Local(context, length=length)

    factories = [lambda ctx: Echo(ctx, length=7), closure, functools.partial(Echo, length=7), Local]
    env = make(factories, backend="subproc", num_workers=2, start_method=method)
    assert [context.worker_index for context in env.call("tell_context")] == [0, 0, 1, 1]
    assert [context.vector_index for context in env.call("tell_context")] == [0, 1, 0, 1]
    assert [each.env_id for each in env.call("tell_context")] == [0, 1, 2, 3]
    assert env.get_attr("length") == [7, 7, 7, 5]
    titles = {title for _, title, _ in env.call("tell_process")}
    assert titles == {"factory:0-1", "factory:2-3"}


class TwoSizes(Echo):
    """Environment 2 has another observation space."""

    def __init__(self, context: EnvContext) -> None:
        super().__init__(context, size=3 if context.env_id == 2 else 0)


@pytest.mark.parametrize(("workers", "error"), [(1, EnvWorkerError), (4, ConfigError)])
def test_environments_with_different_spaces_are_refused(workers, error):
    with pytest.raises(error, match="spaces"):
        make_vec_env(TwoSizes, 4, num_workers=workers, **FORKED)
    assert descendants() == []


def test_large_observations_arrive_whole_while_environments_go_on(make):
    env = make(functools.partial(Echo, size=2_000_000, length=10**6), 3, num_workers=3, **FORKED)
    env.reset()
    kept = [env.step(np.full(3, number)).obs["obs"] for number in range(1, 6)]
    for number, observations in enumerate(kept, 1):
        assert (observations[:, 5:] == number).all(), "what was kept is not written to again"
    assert len(env.get_attr("np_random")) == 3
    env.set_attr("blob", b"x" * 8_000_000)
    assert all(len(blob) == 8_000_000 for blob in env.get_attr("blob"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": 0}, "whole number of at least 1"),
        ({"num_envs": 2, "num_workers": 3}, "3 processes for 2 environments; nearest: 2"),
        ({"num_envs": 2, "backend": "serial", "num_workers": 1}, "is for backend='subproc'"),
        ({"num_envs": 2, "backend": "threads"}, "there are serial, subproc, native"),
        ({"num_envs": 2, "batch_size": 3}, "nearest: 2"),
        ({"num_envs": 2, "start_method": "clone"}, "there are fork"),
        ({"num_envs": 2, "backend": "native"}, "needs a factory that returns a VectorEnv"),
    ],
)
def test_what_cannot_be_made_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        chosen: dict[str, Any] = {"backend": "subproc"} | options
        make_vec_env(Echo, **chosen)


def test_a_native_vector_environment_is_one_of_the_backends(make):
    def factory(vector_size):
        return gymnasium.make_vec("CartPole-v1", vector_size, vectorization_mode="vector_entry_point")

    env = make(factory, 4, backend="native", seed=3)
    batch = env.reset()
    assert batch.obs["obs"].shape == (4, 4)
    ended = np.zeros(4, np.bool_)
    for _ in range(100):
        before, batch = ended, env.step(np.ones(4, np.int64))
        assert (batch.kind[before] == KIND_RESET).all() and (batch.kind[~before] == KIND_STEP).all()
        ended = batch.terminated | batch.truncated
        assert not ended.any() or (np.abs(batch.final_obs["obs"][ended][:, 2]) > 0.2).all(), "the pole has fallen"
    assert batch.episode_id.min() > 3
    with pytest.raises(ValueError, match="steps as a whole"):
        env.send([1], [2])


class Talkative(Echo):
    """Tells more than counts, some of which cannot travel."""

    def step(self, action):
        *step, info = super().step(action)
        return *step, info | {"why": lambda: 0, "true_reward": 2.0}


def test_infos_hold_what_counts_whatever_the_backend(make):
    for where in ({"backend": "serial"}, {"num_workers": 2, **FORKED}):
        env = make(functools.partial(Talkative, length=2), 2, **where)
        env.reset()
        batch = env.step([0, 0])
        assert batch.infos == {0: {"true_reward": 2.0}, 1: {"true_reward": 2.0}}
        assert batch.final_obs == {} and not batch.is_first.any(), "an info alone ends no episode"
        told = {"true_reward": 2.0, "episode_extra_stats": {"steps": 2}}
        assert env.step([0, 0]).infos == {0: told, 1: told}


def native_cartpole(vector_size):
    return gymnasium.make_vec("CartPole-v1", vector_size, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize("where", [{"backend": "native"}, {"num_workers": 1, **FORKED}])
def test_a_reset_of_a_native_environment_shows_nothing_of_the_step_before(make, where):
    env = make(native_cartpole, 3, seed=1, **where)
    env.reset()
    while not (batch := env.step(np.ones(3, np.int64))).terminated.any():
        pass
    batch = env.reset()
    assert (batch.kind == KIND_RESET).all() and not batch.terminated.any()
    assert not batch.rewards.any() and not batch.frames.any()


def test_a_dead_environment_raises_each_time_and_the_others_can_be_used(make):
    env = make([Echo, functools.partial(Echo, script={(0, 2): "exit"})], num_workers=2, **FORKED)
    env.reset()
    env.step([0, 0])
    with pytest.raises(EnvWorkerDied):
        env.step([0, 0])
    for _ in range(3):
        with pytest.raises(EnvWorkerDied):
            env.reset()
    env.reset_envs([0])
    assert env.recv().env_ids.tolist() == [0]


@pytest.mark.parametrize("on", ["raise", "restart"])
def test_what_hangs_is_noticed_while_others_are_busy(make, on):
    factories = [
        functools.partial(Echo, length=10**6, script={(0, 5): "sleep"} if index == 1 else {}) for index in range(3)
    ]
    env = make(factories, num_workers=3, step_timeout=0.4, restarts=Restarts(on, -1, -1), **FORKED)
    env.reset()
    env.send(np.zeros(3, np.int64))
    began, kinds = time.monotonic(), set()

    def go_on():
        batch = env.recv()
        kinds.update(batch.kind.tolist())
        time.sleep(0.002)  # a policy slower than the environments: somebody is always ready
        env.send(np.zeros(len(batch.env_ids), np.int64), batch.env_ids)

    if on == "raise":
        with pytest.raises(EnvTimeout, match="environments 1 did not finish their step"):
            while time.monotonic() - began < 10:
                go_on()
    else:
        while KIND_RESTARTED not in kinds:
            assert time.monotonic() - began < 10
            go_on()


def test_a_slow_reset_after_a_restart_has_time_of_its_own(make):
    script = {(0, 2): "exit"}
    factory = functools.partial(Echo, script=script, reset_s=0.6)
    env = make(factory, 1, num_workers=1, reset_timeout=1.0, restarts=Restarts("restart", 1, -1), **FORKED)
    env.reset()
    env.step([0])
    assert env.step([0]).kind.tolist() == [KIND_RESTARTED] and env.num_restarts == 1


def test_the_seed_and_options_of_a_reset_outlive_the_process(make):
    script = {(0, "reset"): "exit"}
    env = make(functools.partial(Echo, script=script), 1, num_workers=1, restarts=Restarts("restart", 1, -1), **FORKED)
    env.reset(seed=[7], options={"start": 3})
    assert env.get_attr("options") == [{"start": 3}]
    [rng] = env.get_attr("np_random")
    assert rng.bit_generator.state == np.random.default_rng(7).bit_generator.state


def test_infos_of_environments_that_wait_are_kept_while_others_are_reset(make):
    for where in ({"backend": "serial"}, {"num_workers": 1, **FORKED}):
        env = make(functools.partial(Echo, length=1), 3, **where)
        env.reset()
        env.send(np.zeros(3, np.int64))
        env.reset_envs([1])
        seen: dict[int, Any] = {}
        while len(seen) < 3:
            batch = env.recv(1)
            seen |= {int(index): batch.infos.get(place) for place, index in enumerate(batch.env_ids)}
        assert seen[1] is None and seen[0] == seen[2] == {"episode_extra_stats": {"steps": 1}}


def test_an_agent_that_comes_late_begins_no_episode_of_its_environment():
    """Agent c arrives at the second step, and all end at the third."""
    everybody = {"a": "T", "b": "T", "c": "T"}
    env = ScriptedParallel({}, {"c": "+"}, everybody, absent=("c",))
    with vec_env_of(SerialVecEnv([env], [EnvContext()])) as vec:
        assert vec.reset().episode_id.tolist() == [0]
        steps = [vec.step(np.zeros((1, 3), np.int64)) for _ in range(4)]
    assert [batch.kind.tolist() for batch in steps] == [[KIND_STEP]] * 4
    assert [batch.episode_id.tolist() for batch in steps] == [[0], [0], [1], [1]]
    assert steps[1].is_first.tolist() == [[False, False, True]]


def test_agents_that_end_before_the_others_are_inactive_from_then_on():
    """Agent a is truncated at the first step, b gone at the second without an observation, c goes on."""
    env = ScriptedParallel({"a": "C"}, {"b": "gone"}, {}, {"c": "T"})
    with vec_env_of(SerialVecEnv([env], [EnvContext()])) as vec:
        vec.reset()
        first, second, third, _ = (vec.step(np.zeros((1, 3), np.int64)) for _ in range(4))
    assert first.truncated.tolist() == [[True, False, False]] and first.is_active.tolist() == [[False, True, True]]
    assert first.final_obs["obs"][0, 0].tolist() == [101] and first.obs["obs"][0].tolist() == [[0], [111], [121]]
    assert second.terminated.tolist() == [[False, True, False]] and second.is_active.tolist() == [[False, False, True]]
    assert second.final_obs["obs"][0, 1].tolist() == [0], "it showed nothing at its end"
    assert third.is_active.tolist() == [[False, False, True]] and third.obs["obs"][0].tolist() == [[0], [0], [123]]


@pytest.mark.parametrize("where", [{"backend": "native"}, {"num_workers": 1, **FORKED}])
@pytest.mark.parametrize("each", [True, False])
def test_a_native_environment_is_reset_with_seeds_and_options(make, where, each):
    """Gymnasium's own vectors give each environment its seed; one that its authors vectorised has a single one."""

    def build(vector_size: int) -> Any:
        return gymnasium.make_vec(
            "CartPole-v1", vector_size, vectorization_mode="sync" if each else "vector_entry_point"
        )

    env = make(build, 2, **where)
    first, other = (env.reset(seed=seed).obs["obs"] for seed in (4, 5))
    assert (env.reset(seed=4).obs["obs"] == first).all() and (other != first).any()
    assert (env.reset(seed=[7, 8]).obs["obs"] == env.reset(seed=[7, 8]).obs["obs"]).all()
    low = env.reset(options={"low": 0.5, "high": 0.6}).obs["obs"]
    assert (low >= 0.5).all()


def test_an_environment_that_is_forgotten_ends_its_processes():
    env = make_vec_env(Echo, 2, num_workers=2, **FORKED)
    env.reset()
    assert len(descendants()) == 2
    del env
    gc.collect()
    assert descendants() == []


@pytest.mark.parametrize("where", [{}, {"backend": "subproc", "num_workers": 2, "start_method": "fork"}])
@pytest.mark.parametrize(("name", "actions"), [("CartPole-v1", (3,)), ("pettingzoo_classic_rps_v2", (3, 2))])
def test_what_all_showed_last_is_there_after_some_were_asked(name, actions, where):
    with make_vec_env(name, 3, seed=1, **where) as env:
        env.reset()
        shown = env.step(np.zeros(actions, np.int64)).obs["obs"].copy()
        batch = env.reset_and_receive([1])
        shown[1] = batch.obs["obs"][0]
        latest = env.latest_obs()["obs"]
        np.testing.assert_array_equal(latest, shown)
        latest.fill(0)
        np.testing.assert_array_equal(env.latest_obs()["obs"], shown)
