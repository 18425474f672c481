"""What `make_vec_env` and a `VecEnv` refuse, and the one line that says why and what would work."""

import functools
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from appo.envs.registry import NoOptions
from appo.envs.vector.arguments import are_same
from appo.envs.vector.gymnasium_env import GymnasiumVectorEnv
from appo.envs.vector.make import make_vec_env
from appo.utils.options import ConfigError
from tests.envs.vector.vec_env_cases import Echo, descendants

FORKED: dict[str, Any] = {"backend": "subproc", "start_method": "fork"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert descendants() == []


def needs_two(size, speed, env_id):
    raise AssertionError(f"it is not called: {size}, {speed}, {env_id}")


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        (Echo, {"num_envs": 2, "step_timeout": 1.0}, r"step_timeout=1.0 is for backend='subproc'"),
        (Echo, {"num_envs": 2, "step_timeout": 1.0, "backend": "native"}, r"step_timeout=1.0 is for backend='subproc'"),
        ([], {}, "the list of factories is empty: one for each environment is needed"),
        ([Echo, Echo], {"num_envs": 3}, "2 factories for num_envs=3; nearest: num_envs=2"),
        (needs_two, {"num_envs": 2}, r"the factory requires size, speed; .*functools\.partial\(factory, size=\.\.\.\)"),
        ([Echo, needs_two], {}, "factory 1 of the list requires size, speed; it can ask for .*env_id"),
        (range, {"num_envs": 2}, "the factory does not tell its parameters"),
        ("Acrobot-v1", {"num_envs": 2, "backend": "native"}, "backend=native: Acrobot-v1 has no .*CartPole-v0"),
        (
            "CartPole-v1",
            {"num_envs": 2, "backend": "native", "options": NoOptions()},
            "backend='native' has none for CartPole-v1",
        ),
    ],
)
def test_what_make_vec_env_cannot_make_is_one_line_without_options_of_the_command_line(env, options, words):
    with pytest.raises(ConfigError, match=words) as refused:
        make_vec_env(env, **options)
    assert "\n" not in str(refused.value) and "--" not in str(refused.value)


def test_parameters_that_are_bound_are_not_required():
    make = functools.partial(make_echo, size=2, length=3)
    with make_vec_env([make, make]) as env:
        assert env.reset().obs["obs"].shape == (2, 7)


def make_echo(size, length, context):
    return Echo(context, length=length, size=size)


@pytest.mark.parametrize("backend", ["serial", "subproc"])
def test_calls_without_meaning_are_refused_and_nothing_is_lost(backend):
    where: dict[str, Any] = {"num_workers": 1, **FORKED} if backend == "subproc" else {}
    with make_vec_env(Echo, 2, **where) as env:
        env.reset(seed=3)
        env.send([5, 6])
        for min_envs in (0, -1, 1.5, "all"):
            with pytest.raises(ValueError, match=r"min_envs=\S+ has to be a whole number of at least 1"):
                env.recv(min_envs)  # type: ignore[arg-type]
        for seed in ("x", -1, 1.5, [1, -1], [1, "2"]):
            with pytest.raises(ValueError, match=r"seed=\S+: a seed has to be a whole number of at least 0"):
                env.reset(seed=seed)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="1 seeds for 2 environments"):
            env.reset(seed=[1])
        for timeout in (-1, float("nan"), "soon"):
            with pytest.raises(ValueError, match=r"timeout=\S+ has to be a time of at least 0"):
                env.close(timeout)  # type: ignore[arg-type]
        assert env.recv(2).rewards.tolist() == [5, 6]


def test_a_gymnasium_vector_refuses_the_same_seeds():
    with make_vec_env(Echo, 2) as env, pytest.raises(ValueError, match="seed=-1"):
        GymnasiumVectorEnv(env).reset(seed=-1)


@pytest.mark.parametrize("as_list", [True, False])
def test_a_factory_that_cannot_travel_is_named_with_the_ways_out(as_list):
    lock = threading.Lock()

    def make(context):
        with lock:
            return Echo(context)

    which = "factory 1 of the list" if as_list else "the factory"
    factories: Any = [Echo, make] if as_list else make
    with pytest.raises(ConfigError, match=which) as refused:
        make_vec_env(factories, 2, backend="subproc", num_workers=1)
    told = str(refused.value)
    assert "\n" not in told and "_thread.lock" in told
    assert "inside" in told and "backend='serial'" in told and "start_method='fork'" in told
    with make_vec_env(factories, 2, num_workers=1, **FORKED) as env:
        assert env.reset().obs["obs"][:, 0].tolist() == [0, 1]


class Shaped(Echo):
    """Environment 1 sees more, or can do more."""

    def __init__(self, context, kind):
        super().__init__(context)
        is_other = context.env_id == 1
        size = 3 + (is_other and kind == "observation")
        inner = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.observation_space = spaces.Dict({"same": spaces.Discrete(4), "other": inner})
        self.action_space = spaces.Discrete(2 + (is_other and kind == "action"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("observation", r"observation space 'other': Box\(.*\(4,\).*instead of Box\(.*\(3,\)"),
        ("action", r"action space: Discrete\(3\) instead of Discrete\(2\)$"),
    ],
)
def test_of_different_spaces_the_difference_alone_is_told(kind, words):
    with pytest.raises(ConfigError, match=words) as refused:
        make_vec_env(functools.partial(Shaped, kind=kind), 2, num_workers=2, **FORKED)
    told = str(refused.value)
    assert "environments 1 have other spaces" in told
    assert "same'" not in told and "EnvSpec" not in told and len(told) < 200 and "\n" not in told


@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5"])
def test_names_that_gymnasium_has_vectorised_are_made_by_the_native_backend(name):
    if name.startswith("ALE/"):
        pytest.importorskip("ale_py")
    with make_vec_env(name, 2, backend="native", seed=1) as env:
        first = env.reset().obs["obs"]
        assert len(first) == 2 and not env.steps_apart
        assert env.step([0, 1]).rewards.shape == (2,)


class Told(gymnasium.vector.SyncVectorEnv):
    def __init__(self, functions):
        super().__init__(functions)
        self.target = None


def test_arrays_are_one_value_for_all_where_they_are_equal():
    def make(vector_size):
        return Told([lambda: gymnasium.make("CartPole-v1")] * vector_size)

    with make_vec_env(make, 2, backend="native") as env:
        env.set_attr("target", [np.arange(3), np.arange(3)])
        assert [target.tolist() for target in env.get_attr("target")] == [[0, 1, 2]] * 2
        with pytest.raises(ValueError, match="takes one value for all"):
            env.set_attr("target", [np.arange(3), np.arange(4)])
        with pytest.raises(ValueError, match="takes one value for all"):
            env.set_attr("target", [np.arange(3), np.array([0, 1, 9])])


def test_what_cannot_be_compared_is_not_the_same():
    class Refuses:
        def __eq__(self, other):
            raise RuntimeError("compared")

    one = Refuses()
    assert are_same(one, one) and not are_same(one, Refuses())
    assert are_same({"a": [np.ones(2)]}, {"a": [np.ones(2)]}) and not are_same({"a": 1}, {"b": 1})
    assert not are_same((1, np.ones(2)), (1, np.zeros(2))) and not are_same([1], [1, 2])


@pytest.mark.parametrize("wrong", [[True, False], np.array([False, True]), [0.9], ["0"], [], [2], [-1]])
def test_numbers_of_environments_are_whole_numbers_and_no_mask(wrong):
    with make_vec_env(Echo, 2) as env:
        env.reset()
        with pytest.raises(ValueError, match=r"^env_ids should be numbers from 0 to 1, each once: ") as caught:
            env.reset_envs(wrong)
        assert ("numpy.flatnonzero" in str(caught.value)) == (np.asarray(wrong).dtype == np.bool_)


def test_a_gymnasium_vector_is_closed_within_the_time_that_was_given():
    make = functools.partial(Echo, script={(0, "close"): "sleep"})
    env = GymnasiumVectorEnv(make_vec_env(make, 1, num_workers=1, **FORKED))
    env.reset()
    began = time.monotonic()
    env.close(timeout=0)
    assert time.monotonic() - began < 5
