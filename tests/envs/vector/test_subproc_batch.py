"""`SubprocBatchEnv` beside `SerialVecEnv`: what it writes into an actor's rows is the same."""

import functools
import time

import numpy as np
import pytest

from appo.envs.adapters import step_arrays
from appo.envs.api import Decorrelation, EnvContext
from appo.envs.faults import FaultPolicy, Restarts
from appo.envs.registry import ResolvedEnv, factory_family, make_batch_env, resolve
from appo.envs.vector.env_process import ChildFaults
from appo.envs.vector.process_handle import ProcessSettings
from appo.envs.vector.subproc_batch import SubprocBatchEnv
from tests.envs.vector.vec_env_cases import Echo, descendants


def contexts(number, seed=3):
    return [EnvContext(env_id=index, num_envs=number, seed=seed) for index in range(number)]


@pytest.fixture
def make():
    """A serial batch, and one in processes."""
    made = []

    def begin(name, number, workers, **settings):
        env = resolve(name)
        serial = make_batch_env(env, None, contexts(number))
        subproc = SubprocBatchEnv(
            env, None, contexts(number), ProcessSettings(workers, "fork", **settings), serial.spec
        )
        made.extend([serial, subproc])
        return serial, subproc

    yield begin
    for each in made:
        each.close()
    assert descendants() == []


def same(one, other):
    pairs = [(one.observations[name], other.observations[name]) for name in one.observations]
    pairs += list(zip(one[1:-1], other[1:-1], strict=True))
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "workers"), [("CartPole-v1", 5), ("synthetic_truncation", 2), ("pettingzoo_classic_rps_v2", 3)]
)
def test_it_writes_what_the_serial_batch_writes(make, name, workers):
    batches = make(name, 5, workers)
    spec = batches[0].spec
    outs = [step_arrays(spec, 5) for _ in batches]
    for batch, out in zip(batches, outs, strict=True):
        batch.reset(out)
    rng = np.random.default_rng(0)
    for _ in range(150):
        assert same(*outs)
        actions = rng.integers(2, size=(5 * spec.agents_per_env, 1)).astype(np.float32)
        infos = [batch.step(actions, out) for batch, out in zip(batches, outs, strict=True)]
        assert infos[0] == infos[1]


def test_processes_are_moved_apart_and_cut(make):
    _, batch = make("CartPole-v1", 6, 3)
    out = step_arrays(batch.spec, 6)
    elapsed = batch.decorrelate(Decorrelation(np.random.default_rng(1), 60), out)
    assert len(set(elapsed.tolist())) > 3 and (out.is_first == 1).all()
    assert batch.cut(np.array([1, 4])) == [1, 4]
    batch.step(np.zeros((6, 1), np.float32), out)
    assert (out.truncated[[1, 4]] | out.terminated[[1, 4]]).all()


def echo(script, number):
    factory = functools.partial(Echo, length=1000, script=script)
    return ResolvedEnv(factory_family("echo", factory), "echo", "echo"), contexts(number)


def test_a_process_that_ends_costs_its_step_and_is_counted():
    counted: list[tuple[bool, str]] = []
    env, places = echo({(0, 3): "exit", (1000, 2): "raise"}, 2)
    spec = make_batch_env(env, None, places[:1]).spec
    settings = ProcessSettings(
        2,
        "fork",
        restarts=Restarts("restart", -1, -1),
        child_faults=ChildFaults(5, False),
        count=lambda is_bad_data, cause: counted.append((is_bad_data, cause)),
    )
    batch = SubprocBatchEnv(env, None, places, settings, spec)
    batch.set_training_progress(7)
    out = step_arrays(spec, 2)
    batch.reset(out)
    crashes = []
    for _ in range(8):
        batch.step(np.full((2, 1), 5, np.float32), out)
        crashes.append(out.crashed.tolist())
        lost = out.crashed == 1
        assert (out.is_first[lost] == 1).all() and (out.rewards[lost] == 0).all() and (out.frames[lost] == 0).all()
        assert (out.rewards[~lost] == 5).all()
    assert crashes == [[0, 0]] * 2 + [[1, 1]] + [[0, 0]] + [[1, 1]] + [[0, 0]] * 3
    deadline = time.monotonic() + 10.0
    while len(counted) < 4 and time.monotonic() < deadline:  # what was survived is told when it is convenient
        batch.step(np.full((2, 1), 5, np.float32), out)
    batch.close()
    assert [is_bad_data for is_bad_data, _ in counted] == [False] * 4
    causes = [cause for _, cause in counted]
    assert sum("ended by itself with exit code 7" in cause for cause in causes) == 2, causes
    assert sum("failed in step: ValueError: as told" in cause for cause in causes) == 2, causes
    assert descendants() == []


def test_failures_are_raised_where_nothing_is_to_be_restarted():
    env, places = echo({(0, 2): "raise"}, 2)
    spec = make_batch_env(env, None, places[:1], FaultPolicy(3)).spec
    batch = SubprocBatchEnv(env, None, places, ProcessSettings(1, "fork"), spec)
    out = step_arrays(spec, 2)
    batch.reset(out)
    batch.step(np.zeros((2, 1), np.float32), out)
    with pytest.raises(RuntimeError, match="as told"):
        batch.step(np.zeros((2, 1), np.float32), out)
    batch.close()


def test_bad_data_is_named_and_no_process_is_started_for_it_again():
    env, places = echo({(0, 2): "nan"}, 2)
    spec = make_batch_env(env, None, places[:1]).spec
    settings = ProcessSettings(1, "fork", restarts=Restarts("restart", -1, -1), child_faults=ChildFaults(5, False))
    batch = SubprocBatchEnv(env, None, places, settings, spec)
    out = step_arrays(spec, 2)
    batch.reset(out)
    batch.step(np.zeros((2, 1), np.float32), out)
    with pytest.raises(RuntimeError, match=r"should be finite, but is nan") as caught:
        batch.step(np.zeros((2, 1), np.float32), out)
    assert not caught.value.retryable  # type: ignore[attr-defined]
    batch.close()
    assert descendants() == []


def test_processes_that_are_not_moved_apart_take_the_same_number_of_steps(make):
    _, batch = make("CartPole-v1", 6, 3)
    elapsed = batch.decorrelate(
        Decorrelation(np.random.default_rng(4), 6, moves_apart=False), step_arrays(batch.spec, 6)
    )
    assert len(set(elapsed.tolist())) == 1
