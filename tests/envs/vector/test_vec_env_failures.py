"""`VecEnv` after something went wrong: it is told at once, with the right error, and the others can be used."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.api import UnsupportedSpaceError
from appo.envs.faults import Restarts
from appo.envs.vector.channel import ChannelClosed, ChildChannel
from appo.envs.vector.errors import EnvTimeout, EnvWorkerDied, EnvWorkerError
from appo.envs.vector.gymnasium_env import GymnasiumVectorEnv
from appo.envs.vector.make import make_vec_env
from appo.envs.vector.shared_rows import FLAGS
from appo.envs.vector.step_batch import KIND_RESTARTED, ordinary_step, parts_of
from appo.utils.options import ConfigError
from tests.architecture.source_tree import ROOT
from tests.envs.vector.vec_env_cases import Echo, descendants

FORKED: dict[str, Any] = {"backend": "subproc", "start_method": "fork"}
SERIAL: dict[str, Any] = {"backend": "serial"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert descendants() == []


class Awkward(Exception):
    """Can be pickled, and not be put together again."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


class Answering(Echo):
    def awkward(self):
        return Awkward("not", "again")


def only_in(context, number, **options):
    """An `Echo` whose script is that of one environment."""
    return Echo(context, **(options if context.env_id == number else {}))


def test_a_question_to_a_process_that_has_ended_is_refused_at_once():
    script = {(0, 1): "exit"}
    with make_vec_env(functools.partial(only_in, number=1, script=script), 2, num_workers=2, **FORKED) as env:
        env.reset(seed=3)
        seeds = env.get_attr("np_random_seed")
        with pytest.raises(EnvWorkerDied):
            env.step(np.zeros(2, np.int64))
        began = time.monotonic()
        for ask in (env.pop_stats, lambda: env.call("tell_context"), lambda: env.set_env_params({"wind": 1.0})):
            with pytest.raises(EnvWorkerDied, match="process of environments 1"):
                ask()
        with pytest.raises(EnvWorkerDied):
            env.reset(seed=5)
        assert time.monotonic() - began < 2.0
        assert len(env.call("tell_context", env_ids=[0])) == 1
        env.reset_envs([0])
        assert env.recv().obs["obs"][0, 2] == 2
        assert env.get_attr("np_random_seed", env_ids=[0]) == seeds[:1], "the refused reset left no seed"


def test_a_step_after_a_death_says_what_died_and_not_that_results_wait():
    with make_vec_env(functools.partial(only_in, number=1, script={(0, 1): "exit"}), 3, num_workers=3, **FORKED) as env:
        env.reset()
        for _ in range(2):
            with pytest.raises(EnvWorkerDied, match="process of environments 1"):
                env.step(np.zeros(3, np.int64))
        env.send([1, 2], [0, 2])
        assert env.recv(2).rewards.tolist() == [1, 2]


def test_an_answer_that_cannot_be_read_is_one_error_and_the_environments_go_on():
    with make_vec_env(Answering, 2, num_workers=1, **FORKED) as env:
        env.reset()
        with pytest.raises(EnvWorkerError, match="Awkward"):
            env.call("awkward")
        assert len(env.call("tell_context")) == 2
        assert env.step([3, 4]).rewards.tolist() == [3, 4]
        report = env.close()
    assert (report.closed, report.killed, report.failures) == (1, 0, [])


@pytest.mark.parametrize("where", [SERIAL, {"num_workers": 1, **FORKED}])
def test_when_no_restart_is_left_the_error_is_the_same_each_time(where):
    make = functools.partial(only_in, number=1, script={(0, 2): "raise"})
    with make_vec_env(make, 3, restarts=Restarts("restart", 0), **where) as env:
        env.reset()
        env.step([1, 1, 1])
        env.send([2, 2, 2])
        for attempt in range(3):
            with pytest.raises(EnvWorkerError, match="as told, environment 1"):
                env.recv() if attempt == 0 else env.step([3, 3, 3])


def test_a_reset_that_cannot_be_recovered_raises_an_error_of_these_environments():
    env = make_vec_env(functools.partial(Echo, script={(0, "reset"): "raise"}), 1, restarts=Restarts("restart", 0))
    with env, pytest.raises(EnvWorkerError, match="as told, environment 0"):
        env.reset()


class Delicate(Echo):
    """After a restart it knows its parameter no more."""

    def set_env_params(self, params):
        if self.context.attempt:
            raise KeyError("wind")
        super().set_env_params(params)


def test_a_parameter_that_cannot_be_set_again_after_a_restart_is_told():
    make = functools.partial(Delicate, script={(0, 1): "exit"})
    with make_vec_env(make, 1, restarts=Restarts("restart", 3, -1), **FORKED) as env:
        env.reset()
        env.set_env_params({"wind": 2.0})
        with pytest.raises(EnvWorkerError, match="wind"):
            env.step([0])
            env.step([0])


class CountsCalls(gymnasium.vector.SyncVectorEnv):
    def __init__(self, functions):
        super().__init__(functions)
        self.calls, self.params = 0, {"level": 1}

    def advance_level(self):
        self.calls += 1
        return self.calls

    def set_env_params(self, params):
        self.params = params

    def get_env_params(self):
        return self.params


def test_a_native_environment_is_asked_once_and_told_again_after_it_was_built_anew():
    built = []

    def make(vector_size):
        built.append(CountsCalls([lambda: gymnasium.make("CartPole-v1")] * vector_size))
        return built[-1]

    with make_vec_env(make, 3, backend="native", restarts=Restarts("restart", -1, -1)) as env:
        env.reset()
        assert env.call("advance_level") == [1, 1, 1]
        env.set_env_params({"level": 2})
        with pytest.raises(ValueError, match="one VectorEnv"):
            env.set_env_params([{"level": 1}, {"level": 2}, {"level": 3}])
        broken: Any = built[-1].envs[1]
        broken.step = functools.partial(int, "no number")
        assert (env.step([0, 0, 0]).kind == KIND_RESTARTED).all()
        assert len(built) >= 2 and built[-1].params == {"level": 2}


def test_parameters_of_a_native_environment_that_cannot_be_set_again_are_told_as_such():
    class SetOnce(CountsCalls):
        def set_env_params(self, params):
            if len(built) > 1:
                raise ValueError("no such level")
            super().set_env_params(params)

    built: list[Any] = []

    def make(vector_size):
        built.append(SetOnce([lambda: gymnasium.make("CartPole-v1")] * vector_size))
        return built[-1]

    with make_vec_env(make, 2, backend="native", restarts=Restarts("restart", 1)) as env:
        env.reset()
        env.set_env_params({"level": 2})
        built[-1].envs[1].step = functools.partial(int, "no number")
        with pytest.raises(EnvWorkerError, match=r"failed in set_env_params.*no such level"):
            env.step([0, 0])


@pytest.mark.parametrize("on", ["raise", "restart"])
def test_each_environment_of_a_process_has_the_time_of_one(on):
    """Six together take longer than the limit of one."""
    make = functools.partial(Echo, sleep_s=0.25, reset_s=0.25)
    limits: dict[str, Any] = {"step_timeout": 0.9, "reset_timeout": 0.9}
    with make_vec_env(make, 6, num_workers=1, restarts=Restarts(on), **limits, **FORKED) as env:
        env.reset()
        assert env.step(np.arange(6)).rewards.tolist() == [0, 1, 2, 3, 4, 5]
        assert env.num_restarts == 0


def test_what_hangs_among_others_of_its_process_is_found_within_the_limit_of_one():
    make = functools.partial(only_in, number=4, script={(0, 1): "sleep"})
    with make_vec_env(make, 6, num_workers=1, step_timeout=0.5, **FORKED) as env:
        env.reset()
        began = time.monotonic()
        with pytest.raises(EnvTimeout) as caught:
            env.step(np.zeros(6, np.int64))
        assert time.monotonic() - began < 2.0 and 4 in caught.value.env_ids and 0 not in caught.value.env_ids


@pytest.mark.parametrize("begin", ["async_reset", "reset_envs"])
def test_a_reset_waits_for_what_it_throws_away_no_longer_than_for_itself(begin):
    make = functools.partial(only_in, number=1, script={(0, 1): "sleep"})
    with make_vec_env(make, 2, num_workers=2, reset_timeout=1.0, **FORKED) as env:
        env.reset()
        env.send(np.zeros(2, np.int64))
        began = time.monotonic()
        with pytest.raises(EnvTimeout, match=r"environments 1 did not finish the step before .*; step_timeout would"):
            env.async_reset() if begin == "async_reset" else env.reset_envs([1])
        assert 1.0 <= time.monotonic() - began < 3.0
        assert env.recv(1).env_ids.tolist() == [0], "what has finished is still there"
        env.close(0.1)


def test_a_reset_gives_each_step_of_a_process_that_it_throws_away_its_time():
    """Together they take longer than the limit of one."""
    with make_vec_env(functools.partial(Echo, sleep_s=0.6), 3, num_workers=1, reset_timeout=1.0, **FORKED) as env:
        env.reset()
        env.send(np.zeros(3, np.int64))
        env.async_reset()
        assert env.recv(3).is_first.all()


def test_what_others_have_finished_is_given_once_it_was_told_that_one_hangs():
    make = functools.partial(only_in, number=1, script={(0, 1): "sleep"})
    with make_vec_env(make, 2, num_workers=2, step_timeout=0.5, **FORKED) as env:
        env.reset()
        env.send(np.zeros(2, np.int64))
        for _ in range(3):
            with pytest.raises(EnvTimeout, match="environments 1 did"):
                env.recv(2)
            time.sleep(0.15)  # so that the clock is looked at again
            assert env.recv(1).env_ids.tolist() == [0]
            env.send(np.zeros(1, np.int64), [0])
        env.close(0.1)


@pytest.mark.parametrize("code", [1, 7])
def test_what_ends_while_it_is_built_anew_is_told_why_it_is_given_up(code):
    make = functools.partial(EndsWhenBuiltAnew, code)
    where: dict[str, Any] = {"backend": "subproc", "num_workers": 1, "start_method": "forkserver"}
    with make_vec_env(make, 1, restarts=Restarts("restart", 2, -1), **where) as env:
        env.reset()
        with pytest.raises(EnvWorkerDied) as caught:
            for _ in range(3):
                env.step(np.zeros(1, np.int64))
        assert "__main__" not in str(caught.value) and "; " in str(caught.value)


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from appo.envs.vector.make import make_vec_env\n"
        "make_vec_env('CartPole-v1', 2, backend='subproc', num_workers=1, start_method='spawn')\n"
    )
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": search}, capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("appo.envs.vector.errors.EnvWorkerDied: ") and "`if __name__ == '__main__':`" in last


class EndsWhenBuiltAnew(Echo):
    def __init__(self, code, context):
        super().__init__(context)
        if context.attempt:
            os._exit(code)

    def step(self, action):
        os._exit(3)


def start_of(env_id):
    return gymnasium.spaces.Discrete(3, start=1 if env_id == 0 else 0)


class Slow(Echo):
    """The first environment is the last to be there; its actions begin at 1."""

    def __init__(self, context):
        super().__init__(context)
        self.action_space = start_of(context.env_id)
        time.sleep(0.5 if context.env_id == 0 else 0.0)


@pytest.mark.parametrize(
    ("where", "error"), [(SERIAL, EnvWorkerError), ({"num_workers": 3, **FORKED}, ConfigError)], ids=["serial", "each"]
)
def test_spaces_are_compared_with_those_of_the_first_environment(where, error):
    with pytest.raises(error, match=r"environments? 1"):
        make_vec_env(Slow, 3, **where)


class Unsupported(Echo):
    def __init__(self, context):
        super().__init__(context)
        self.action_space = spaces.Text(3)


@pytest.mark.parametrize("where", [SERIAL, {"num_workers": 2, **FORKED}])
def test_what_has_no_layout_is_told_as_such_and_not_tried_again(where):
    began = time.monotonic()
    with pytest.raises(UnsupportedSpaceError, match="Text"):
        make_vec_env(Unsupported, 2, restarts=Restarts("restart", -1, -1), **where)
    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize("where", [SERIAL, {"num_workers": 2, **FORKED}])
def test_a_refused_reset_leaves_what_is_under_way(where):
    with make_vec_env(Echo, 2, **where) as env:
        env.reset()
        env.send([5, 6])
        for refused in (lambda: env.async_reset(seed=[1]), lambda: env.reset_envs([0], seeds=[1, 2])):
            with pytest.raises(ValueError, match="seeds"):
                refused()
        assert env.recv(2).rewards.tolist() == [5, 6]


@pytest.mark.parametrize("backend", ["serial", "native"])
def test_a_look_without_waiting_finds_what_this_process_can_do(backend):
    name = "CartPole-v1"
    env = make_vec_env(name, 2) if backend == "serial" else make_vec_env(sync, 2, backend="native")
    with env:
        env.reset()
        env.send([0, 1])
        assert len(env.recv(timeout=0.0).rewards) == 2


def sync(vector_size):
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * vector_size)


def test_seeds_of_numpy_are_seeds():
    with make_vec_env("CartPole-v1", 2) as env:
        adapter = GymnasiumVectorEnv(env)
        seeds: list[Any] = [5, np.int64(5)]
        first, second = (adapter.reset(seed=seed)[0] for seed in seeds)
        assert np.array_equal(first, second)


@pytest.mark.parametrize("where", [SERIAL, {"num_workers": 2, **FORKED}])
def test_rows_of_actions_are_one_for_each_environment(where):
    with make_vec_env(Echo, 3, **where) as env:
        env.reset()
        for send in (env.step_rows, env.send_rows):
            with pytest.raises(ValueError, match="actions"):
                send(np.ones((1, 1), np.float32))
        with pytest.raises(ValueError, match="2 actions for 3 environments"):
            env.step([1, 2])
        assert env.step([1, 2, 3]).rewards.tolist() == [1, 2, 3]


def test_a_process_that_cannot_be_started_again_is_told(monkeypatch):
    with make_vec_env(
        functools.partial(only_in, number=0, script={(0, 1): "exit"}),
        2,
        num_workers=2,
        restarts=Restarts("restart", -1, -1),
        **FORKED,
    ) as env:
        env.reset()
        before = len(list(Path("/proc/self/fd").iterdir()))

        def refuse(process):
            raise BlockingIOError(11, "no more processes")

        monkeypatch.setattr("appo.envs.vector.process_handle.start_process", refuse)
        env.send([0, 0])
        with pytest.raises(EnvWorkerDied, match=r"could not be started again.*no more processes"):
            while True:
                env.recv(2, timeout=5.0)
        assert len(list(Path("/proc/self/fd").iterdir())) < before
        assert env.recv().env_ids.tolist() == [1]
        env.send([4], [1])
        assert env.recv().rewards.tolist() == [4]


def test_processes_stay_while_their_parent_is_the_first_process_of_a_container(monkeypatch):
    """There, `getppid` is 1 all the time."""
    monkeypatch.setattr("appo.envs.vector.env_process.LOOK_EVERY_MS", 20)
    monkeypatch.setattr("os.getppid", lambda: 1)
    monkeypatch.setattr("appo.envs.vector.env_process.processes.die_with_parent", lambda pid: None)
    with make_vec_env(Echo, 1, num_workers=1, **FORKED) as env:
        env.reset()
        time.sleep(0.3)
        assert env.step([1]).rewards.tolist() == [1] and env.num_restarts == 0


def test_nothing_follows_half_a_message():
    """What ends a process, as SIGTERM does, may come while it waits for room."""
    near, far = socket.socketpair()
    channel = ChildChannel(near)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            channel.send(bytes(10_000_000))
        with pytest.raises(ChannelClosed):
            channel.send("the end")
    finally:
        signal.signal(signal.SIGALRM, before)
        near.close()
        far.close()


@pytest.mark.parametrize("agents", [1, 2])
def test_the_parts_of_a_step_are_what_its_flags_say(agents):
    rng = np.random.default_rng(agents)
    ordinary = ordinary_step(3, agents)
    shape = ordinary.is_end.shape
    for chance in (0.0, 0.1, 0.5):
        for _ in range(200):
            flags = (rng.random((len(FLAGS), 3 * agents)) < chance).astype(np.uint8)
            flags[FLAGS.index("active")] ^= 1
            if rng.random() < 0.5:
                flags[FLAGS.index("is_first")] = flags[FLAGS.index("terminated")]
            if rng.random() < 0.3:
                flags[[FLAGS.index(name) for name in ("truncated", "crashed", "is_last")]] = 0
            parts, ends = parts_of(flags.tobytes(), ordinary)
            expected = [row.astype(bool).reshape(shape) for row in flags]
            assert all(np.array_equal(part, row) for part, row in zip(parts, expected, strict=True))
            terminated, truncated = (expected[FLAGS.index(name)] for name in ("terminated", "truncated"))
            assert np.array_equal(ends, terminated | truncated)
