"""After a failure of `step` or `reset` of all: what the others did, and what the error advises."""

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from appo.envs.faults import Restarts
from appo.envs.vector.errors import EnvTimeout, EnvWorkerDied, EnvWorkerError, NotStepping
from appo.envs.vector.make import make_vec_env
from appo.envs.vector.step_batch import KIND_RESTARTED
from tests.envs.vector.vec_env_cases import Echo, descendants

FORKED: dict[str, Any] = {"backend": "subproc", "start_method": "fork"}
ADVICE = r"restarts=Restarts\('restart'\)"


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert descendants() == []


def only_in(context, numbers, **options):
    """An `Echo` whose script is that of some environments."""
    return Echo(context, **(options if context.env_id in numbers else {}))


def kill_process_of(env, number):
    pid = env.call("tell_process", env_ids=[number])[0][0]
    os.kill(pid, signal.SIGKILL)


def test_what_the_others_did_in_a_step_with_a_death_comes_with_recv():
    with make_vec_env(Echo, 6, num_workers=3, **FORKED) as env:
        env.reset()
        kill_process_of(env, 2)
        with pytest.raises(EnvWorkerDied) as caught:
            env.step(np.arange(6))
        assert caught.value.env_ids == [2, 3]
        with pytest.raises(EnvWorkerDied, match="environments 2, 3"):
            env.step(np.full(6, 9))  # refused, and what waits is not lost
        others = env.recv(6)
        assert others.env_ids.tolist() == [0, 1, 4, 5] and others.rewards.tolist() == [0, 1, 4, 5]
        env.send([7, 7, 7, 7], [0, 1, 4, 5])
        assert env.recv(4).obs["obs"][:, 3:].tolist() == [[2, 7]] * 4, "none of them took a step more or less"


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 3, **FORKED}])
def test_what_the_others_did_in_a_step_with_an_exception_comes_with_recv(where):
    make = functools.partial(only_in, numbers=[1], script={(0, 2): "raise"})
    with make_vec_env(make, 3, **where) as env:
        env.reset()
        env.step([1, 1, 1])
        with pytest.raises(EnvWorkerError, match="environment 1"):
            env.step([5, 6, 7])
        others = env.recv(3)
        assert others.env_ids.tolist() == [0, 2] and others.rewards.tolist() == [5, 7]
        env.reset_envs([1])
        assert env.recv(1).is_first.tolist() == [True]
        assert env.step([2, 3, 4]).rewards.tolist() == [2, 3, 4]


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 3, **FORKED}])
def test_results_that_are_not_received_are_thrown_away_by_the_next_step(where):
    make = functools.partial(only_in, numbers=[1], script={(0, 1): "raise"})
    with make_vec_env(make, 3, **where) as env:
        env.reset()
        with pytest.raises(EnvWorkerError):
            env.step([5, 6, 7])
        received = env.step([2, 3, 4])
        assert received.rewards.tolist() == [2, 3, 4] and received.obs["obs"][[0, 2], 3].tolist() == [2, 2]


def test_first_observations_of_the_others_come_after_a_reset_with_a_death():
    make = functools.partial(only_in, numbers=[0], script={(0, "reset"): "exit"})
    with make_vec_env(make, 2, num_workers=2, **FORKED) as env:
        with pytest.raises(EnvWorkerDied):
            env.reset()
        first = env.recv()
        assert first.env_ids.tolist() == [1] and first.is_first.all()


def test_an_error_of_a_lost_process_says_once_how_it_would_be_replaced():
    with make_vec_env(Echo, 2, num_workers=2, **FORKED) as env:
        env.reset()
        kill_process_of(env, 1)
        asks = (lambda: env.step([1, 1]), lambda: env.get_attr("length"), env.reset, lambda: env.reset_envs([1]))
        for ask in asks:
            with pytest.raises(EnvWorkerDied, match=rf"killed by SIGKILL.*; with {ADVICE}") as caught:
                ask()
            assert str(caught.value).count("Restarts") == 1


def test_an_error_of_a_late_step_says_how_its_process_would_be_replaced():
    make = functools.partial(only_in, numbers=[1], script={(0, 1): "sleep"})
    with make_vec_env(make, 2, num_workers=2, step_timeout=0.3, **FORKED) as env:
        env.reset()
        with pytest.raises(EnvTimeout, match=rf"environments 1 did not finish their step within 0.3 s; .*{ADVICE}"):
            env.step([4, 5])
        env.close(0.2)


def test_nothing_is_advised_where_environments_cannot_be_built():
    make = functools.partial(only_in, numbers=[1], script={(0, "make"): "exit"})
    with pytest.raises(EnvWorkerDied, match=r"exit code 7$"):
        make_vec_env(make, 2, num_workers=2, **FORKED)


def test_a_question_that_a_death_left_unanswered_names_every_environment_of_the_process():
    with make_vec_env(Echo, 4, num_workers=2, restarts=Restarts("restart", -1, -1), **FORKED) as env:
        env.reset()
        env.set_attr("colour", "red")
        env.set_env_params({"wind": 2.0})
        kill_process_of(env, 2)
        with pytest.raises(EnvWorkerDied, match=r"environments 2, 3 .*it is restarted: ask again") as caught:
            env.get_attr("colour")
        assert caught.value.env_ids == [2, 3]
        assert [params["wind"] for params in env.call("get_env_params")] == [2.0] * 4
        with pytest.raises(EnvWorkerError, match="colour"):
            env.get_attr("colour", env_ids=[2])
        assert env.get_attr("colour", env_ids=[0, 1]) == ["red", "red"]
        assert env.step([1, 1, 1, 1]).kind.tolist() == [0, 0, KIND_RESTARTED, KIND_RESTARTED]


def test_final_observations_are_those_of_rows_whose_episode_ended_and_infos_go_by_row():
    make = functools.partial(only_in, numbers=[3], length=2)
    with make_vec_env(make, 4, num_workers=2, **FORKED) as env:
        env.reset()
        assert env.step([1, 1, 1, 1]).final_obs == {}
        env.send([8, 9], [2, 3])
        batch = env.recv(2)
        ended = batch.terminated | batch.truncated
        assert batch.env_ids[ended].tolist() == [3]
        assert batch.final_obs["obs"][ended].tolist() == [[3, 0, 1, 2, 9]]
        assert batch.infos == {1: {"episode_extra_stats": {"steps": 2}}}, "row 1, which is environment 3"


class BeginsOnce(Echo):
    """Its second reset raises, the third does not."""

    def reset(self, *, seed=None, options=None):
        if self.resets == 1:
            self.resets += 1
            raise ValueError("there is no second time")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 2, **FORKED}])
def test_what_a_lost_result_told_is_lost_with_it(where):
    make: Any = [functools.partial(Echo, length=9), functools.partial(BeginsOnce, length=2)]
    with make_vec_env(make, **where) as env:
        env.reset()
        env.step([1, 1])
        with pytest.raises(EnvWorkerError, match="no second time"):
            env.step([2, 2])  # ends an episode, whose statistics were told
        env.reset_envs([1])
        assert env.recv(2).infos == {}
        assert env.step([3, 3]).infos == {}


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 2, **FORKED}])
def test_episodes_that_begin_in_results_that_nobody_sees_are_counted(where):
    make: Any = [functools.partial(Echo, length=1), functools.partial(Echo, script={(0, 1): "raise"})]
    with make_vec_env(make, **where) as env:
        env.reset()
        with pytest.raises(EnvWorkerError):
            env.step([1, 1])
        assert env.step([2, 2]).episode_id.tolist() == [2, 0]
    with make_vec_env([functools.partial(Echo, length=9), BeginsOnce], **where) as env:
        env.reset()
        with pytest.raises(EnvWorkerError):
            env.reset()
        assert env.step([1, 1]).episode_id[0] == 1


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 3, **FORKED}])
def test_environments_that_were_never_reset_are_named(where):
    with make_vec_env(Echo, 3, **where) as env:
        env.reset_envs([1])
        env.recv(1)
        env.send([5], [1])
        assert env.recv(1).rewards.tolist() == [5]
        with pytest.raises(NotStepping, match=r"^environments 0, 2 were never reset: call reset"):
            env.step([5, 5, 5])
        with pytest.raises(NotStepping, match=r"^environments 2 were never reset"):
            env.send([5, 5], [1, 2])
        env.reset_envs([0, 2])
        env.recv(3)
        assert env.step([5, 6, 7]).episode_id.tolist() == [0, 0, 0]


class EndsBadly(Echo):
    """The last observation of every episode is not finite."""

    def step(self, action):
        observation, *others = super().step(action)
        if others[1] or others[2]:
            observation[0] = np.nan
        return observation, *others


@pytest.mark.parametrize("where", [{"backend": "serial"}, {"num_workers": 2, **FORKED}])
def test_last_observations_are_looked_at_where_the_episode_was_truncated(where):
    ends_at_2 = functools.partial(EndsBadly, length=2, truncates=True)
    make: Any = [functools.partial(Echo, length=3, truncates=True), ends_at_2]
    with make_vec_env(make, restarts=Restarts("restart", -1, -1), **where) as env:
        env.reset()
        env.step([1, 1])
        batch = env.step([2, 2])
        assert batch.kind.tolist() == [0, KIND_RESTARTED] and not batch.truncated.any() and batch.infos == {}
        assert env.step([3, 3]).truncated.tolist() == [True, False]
    with make_vec_env(make, **where) as env:
        env.reset()
        env.step([1, 1])
        with pytest.raises(EnvWorkerError, match=r"failed in step.*'obs' should be finite, but is nan in 1 of 5"):
            env.step([2, 2])
    with make_vec_env(functools.partial(EndsBadly, length=1), 1, **where | {"num_workers": None}) as env:
        env.reset()
        assert env.step([1]).terminated.all(), "nothing follows from that observation"
