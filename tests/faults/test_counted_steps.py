"""Environments that count their own frames."""

import numpy as np
import pytest

from appo.envs.adapters import step_arrays
from appo.envs.api import EnvContext
from appo.envs.registry import make_batch_env
from benchmarks.faults.counted_steps import COUNTS, ENV, booked, options_for

NAME = "benchmarks.faults.counted_steps:make_env"


@pytest.fixture
def books(tmp_path, monkeypatch):
    monkeypatch.setenv(ENV, "CartPole-v1")
    monkeypatch.setenv(COUNTS, str(tmp_path))
    return tmp_path


def step(times, env_ids):
    env = make_batch_env(NAME, None, [EnvContext(env_id=i, seed=i) for i in env_ids])
    out = step_arrays(env.spec, len(env_ids))
    env.reset(out)
    for _ in range(times):
        env.step(np.zeros((len(env_ids), 1), np.int64), out)
    env.close()


def test_every_step_is_booked_and_a_successor_goes_on_in_the_same_book(books):
    step(7, [0, 1, 2])
    assert booked(books) == 21
    step(2, [1])
    assert booked(books) == 23
    assert sorted(path.name for path in books.iterdir()) == ["0", "1", "2"]


def test_behind_the_books_it_trains_with_the_options_of_its_own_name():
    options = options_for("CartPole-v1")
    assert {"--encoder=mlp", "--use_rnn=False", "--mlp_layers=64,64"} <= set(options)
