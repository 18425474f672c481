"""What random play earns: uniformly drawn allowed actions, as an untrained policy of no opinion would choose them."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from appo.envs.action_layout import random_actions
from appo.envs.adapters import step_arrays
from appo.envs.api import ACTION_MASK, EnvContext
from appo.envs.registry import make_batch_env
from benchmarks.learning.unseen.tasks import UNSEEN
from benchmarks.measuring import show

ENVS = 8
COLUMNS = ("task", "environment", "stored", "measured", "standard error", "episodes")
MOST_ERRORS = 4.0  # standard errors between the stored and the measured mean: more is no luck


class RandomScore(NamedTuple):
    """The mean return of random episodes."""

    mean: float
    standard_error: float
    episodes: int


def random_returns(env: str, episodes: int, seed: int = 1) -> list[float]:
    """Returns of random episodes, the same number from each of some environments, so that short ones count no more.

    Numbers without bounds are drawn from -1 to 1. An agent of several has episodes of its own.
    """
    per_row = -(-episodes // ENVS)
    contexts = [EnvContext(env_id=i, num_envs=ENVS, seed=seed + i) for i in range(ENVS)]
    with contextlib.closing(make_batch_env(env, None, contexts)) as batch:
        out, rng = step_arrays(batch.spec, batch.num_envs), np.random.default_rng(seed)
        returns = np.zeros(len(out.rewards))
        finished: list[list[float]] = [[] for _ in returns]
        batch.reset(out)
        while min(map(len, finished)) < per_row:
            mask = out.observations.get(ACTION_MASK)
            batch.step(random_actions(batch.spec.actions, rng, len(returns), mask), out)
            returns += out.rewards
            for row in np.flatnonzero(out.terminated | out.truncated):
                finished[row].append(float(returns[row]))
                returns[row] = 0.0
    return [value for row in finished for value in row[:per_row]]


def measure(env: str, episodes: int, seed: int = 1) -> RandomScore:
    """The mean of random episodes, and how exact it is."""
    returns = random_returns(env, episodes, seed)
    return RandomScore(statistics.mean(returns), statistics.stdev(returns) / len(returns) ** 0.5, len(returns))


def compare(names: Sequence[str], episodes: int, out: Path | None, tell: Callable[[str], None]) -> int:
    """Measure, print the table, write the JSON; 1 when a stored score is not what was measured."""
    scores: dict[str, RandomScore] = {}
    for name in names:
        scores[name] = measure(UNSEEN[name].env, episodes)
        tell(f"{name}: {scores[name]}")
    rows = [
        [name, UNSEEN[name].env, f"{UNSEEN[name].random:g}", f"{score.mean:.4g}", f"{score.standard_error:.2g}"]
        for name, score in scores.items()
    ]
    show(COLUMNS, [[*row, str(scores[row[0]].episodes)] for row in rows])
    if out is not None:
        out.write_text(json.dumps({name: score._asdict() for name, score in scores.items()}, indent=1) + "\n")
    return int(any(is_stale(UNSEEN[name].random, score) for name, score in scores.items()))


def is_stale(stored: float, measured: RandomScore) -> bool:
    """Whether a stored score is no longer what random play earns; rounding to two digits is allowed."""
    allowed = MOST_ERRORS * measured.standard_error + 0.05 * abs(stored)
    return abs(stored - measured.mean) > allowed
