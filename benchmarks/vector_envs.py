"""One environment, many in one process, many processes, and mixtures: how many steps per second does each way make?

    python -m benchmarks.vector_envs --env=CartPole-v1 --out=cartpole.csv --plot=cartpole.png [--num_envs=16]
    python -m benchmarks.vector_envs --env=CartPole-v1 --ways='serial,SyncVectorEnv,DummyVecEnv' --turns=15

Rows: reset and step of a single environment; the serial backend for 1, 2, 4 ... environments, beside what a straight
line would say; every way to spread --num_envs environments over processes, stepped together (sync) and apart (async);
Gymnasium's vectors of the same environments, and stable-baselines3's and EnvPool's where they are installed. Actions
are drawn at random before the clock starts. --policy_ms lets each batch of actions take that long, as a policy would.
All ways take turns, so that a noisy machine treats them alike; what is told is the median of the turns.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import importlib.util
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector.utils import batch_space
from rich.console import Console
from rich.table import Table

from appo.algorithms.config import resolve as resolve_options
from appo.algorithms.familiar_words import translated
from appo.envs.action_layout import random_actions
from appo.envs.api import EnvContext
from appo.envs.option_wrappers import env_of
from appo.envs.registry import ResolvedEnv
from appo.envs.vector.gymnasium_env import GymnasiumVectorEnv
from appo.envs.vector.make import make_vec_env
from appo.utils.options import ConfigError
from appo.utils.processes import limit_native_threads
from benchmarks.measuring import parser_of

COLUMNS = ("way", "processes", "envs", "steps_per_s", "per_step_us", "expected_us", "note")
SINGLE_CALLS = 1000
OURS = ("serial", "subproc")  # how the names of our ways begin
EXIT_FAILED = 1
DRAWN = 64  # batches of actions: constant ones would end many episodes early


class Row(NamedTuple):
    """One way to run environments."""

    way: str
    processes: int  # 0: this one
    envs: int
    steps_per_s: float  # of all environments together
    per_step_us: float  # of a step of all of them
    expected_us: float | None = None  # if n environments took n times as long as one
    note: str = ""


class Way(NamedTuple):
    """How a row is measured: `open` gives a function that makes some steps and tells how many."""

    name: str
    processes: int
    envs: int
    open: Callable[[], contextlib.AbstractContextManager[Callable[[float], tuple[int, float]]]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write what was asked for."""
    parser = _parser()
    args, family_words = parser.parse_known_args(argv)
    if args.num_envs < 1 or args.turns < 1 or not args.seconds > 0 or not args.policy_ms >= 0:
        parser.error("--num_envs and --turns are at least 1, --seconds above 0, --policy_ms not negative")
    limit_native_threads()  # once, so that all ways are measured alike
    try:
        env, options = environment_of(args.env, family_words)
        single = measure_single(env, options)
        rows = [*single, *measure_ways(chosen_ways(ways(env, options, args), args.ways), args.seconds, args.turns)]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    step_us = next(row.per_step_us for row in single if row.way == "step")
    rows = [row._replace(expected_us=step_us * row.envs) if row.way == "serial" else row for row in rows]
    show(rows, args.env)
    if args.out:
        write_csv(rows, Path(args.out))
    if args.plot:
        plot(rows, args.env, Path(args.plot))
    ours = [row for row in rows if row.way.startswith(OURS)]
    measured = [row for row in ours if not math.isnan(row.steps_per_s)]
    if measured:
        best = max(measured, key=lambda row: row.steps_per_s)
        print(f"fastest of ours: {best.way} with {best.processes} processes, {best.steps_per_s:,.0f} steps/s")
    if len(measured) < len(ours):
        print("some of ours could not be measured, see their notes", file=sys.stderr)
        return EXIT_FAILED
    return 0


def environment_of(name: str, family_words: Sequence[str]) -> tuple[ResolvedEnv, Any]:
    """An environment by name, and the options of its family out of words of a command line.

    Raises:
        ConfigError: there is no such environment or option.
    """
    # Whatever experiment lies here is none of ours.
    words, _ = translated([f"--env={name}", *family_words, "--restart_behavior=restart"])
    config = resolve_options(words).config
    return env_of(config.env), config.family


def measure_single(env: ResolvedEnv, options: Any) -> list[Row]:
    """Time resets and steps of one environment, as it is, with random actions."""
    built = env.family.make(env.name, options, EnvContext(seed=0, env_name=env.name))
    if not hasattr(built, "action_space") or hasattr(built, "num_envs") or hasattr(built, "possible_agents"):
        built.close()
        return _single_of_batch(env, options)
    built.action_space.seed(0)
    resets, steps = [], []
    built.reset(seed=0)
    for number in range(SINGLE_CALLS):
        action = built.action_space.sample()
        began = time.perf_counter()
        *_, terminated, truncated, _ = built.step(action)
        steps.append(time.perf_counter() - began)
        if terminated or truncated or number % 50 == 49:
            began = time.perf_counter()
            built.reset()
            resets.append(time.perf_counter() - began)
    built.close()
    return [_timed("reset", resets), _timed("step", steps)]


def _single_of_batch(env: ResolvedEnv, options: Any) -> list[Row]:
    """The same by way of the serial backend, for environments of several agents or vectorised ones."""
    with make_vec_env(env, 1, options=options, seed=0) as one:
        one.reset()
        times = []
        actions = np.zeros((one.num_agents, one._envs.rows.actions.shape[1]), np.float32)
        for _ in range(SINGLE_CALLS):
            began = time.perf_counter()
            one.send_rows(actions)
            one.recv()
            times.append(time.perf_counter() - began)
    return [_timed("step", times)]


def _timed(way: str, seconds: list[float]) -> Row:
    mean = statistics.mean(seconds)
    low, high = (np.quantile(seconds, share) * 1e6 for share in (0.5, 0.99))
    return Row(way, 0, 1, 1.0 / mean, mean * 1e6, note=f"p50 {low:.1f} us, p99 {high:.1f} us of {len(seconds)}")


def ways(env: ResolvedEnv, options: Any, args: argparse.Namespace) -> Iterator[Way]:
    """Every way that this environment and this machine have."""
    number = args.num_envs
    pause = args.policy_ms / 1000.0
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= number]
    for count in sorted({*counts, number}):
        yield Way("serial", 0, count, functools.partial(_ours, env, options, count, 0, pause, "sync"))
    for processes in [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= number]:
        for how in ("sync", "async"):
            opened = functools.partial(_ours, env, options, number, processes, pause, how)
            yield Way(f"subproc {how}", processes, number, opened)
    factory = functools.partial(_build, env, options)
    if _is_gymnasium_env(env, options):
        ours_as_gymnasium = functools.partial(_ours_as_gymnasium, env, options, number)
        yield Way("serial as VectorEnv", 0, number, functools.partial(_gymnasium, ours_as_gymnasium, 0, pause))
        yield Way(
            "subproc as VectorEnv", number, number, functools.partial(_gymnasium, ours_as_gymnasium, number, pause)
        )
        for name, processes in (("SyncVectorEnv", 0), ("AsyncVectorEnv", number)):
            build = functools.partial(_gymnasium_vector, name, factory, number)
            yield Way(name, processes, number, functools.partial(_gymnasium, build, processes, pause))
        if importlib.util.find_spec("stable_baselines3"):
            for name, processes in (("DummyVecEnv", 0), ("SubprocVecEnv", number)):
                yield Way(name, processes, number, functools.partial(_sb3, name, factory, number, pause))
    if importlib.util.find_spec("envpool"):
        yield Way("EnvPool", 0, number, functools.partial(_envpool, env.name, number, pause))  # it knows few


def chosen_ways(found: Iterator[Way], names: str) -> list[Way]:
    """The ways of these names.

    Raises:
        ConfigError: there is none of a name.
    """
    all_of_them, chosen = list(found), [name.strip() for name in names.split(",") if name.strip()]
    known = {way.name for way in all_of_them}
    if unknown := sorted(set(chosen) - known):
        raise ConfigError(f"ways={', '.join(unknown)}: there are {', '.join(sorted(known))}")
    return [way for way in all_of_them if not chosen or way.name in chosen]


def measure_ways(found: list[Way], seconds: float, turns: int) -> list[Row]:
    """Measure all of them in turns."""
    rates: dict[int, list[float]] = {}
    notes: dict[int, str] = {}
    for _ in range(turns):
        for place in random.sample(range(len(found)), len(found)):  # what some leave behind falls on all alike
            if place in notes:
                continue
            way = found[place]
            try:
                with way.open() as run:
                    run(min(0.2, seconds))
                    steps, took = run(seconds)
            except Exception as error:  # which other ways should not suffer from; `main` tells of ours
                notes[place] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:70]
                continue
            rates.setdefault(place, []).append(steps / took)
    rows = []
    for place, way in enumerate(found):
        rate = statistics.median(rates[place]) if place in rates else float("nan")
        rows.append(Row(way.name, way.processes, way.envs, rate, way.envs / rate * 1e6, note=notes.get(place, "")))
    return rows


@contextlib.contextmanager
def _ours(env: ResolvedEnv, options: Any, number: int, processes: int, pause: float, how: str) -> Iterator[Any]:
    where: dict[str, Any] = {"backend": "subproc", "num_workers": processes} if processes else {"backend": "serial"}
    if processes:
        where["start_method"] = "fork"
    with make_vec_env(env, number, options=options, seed=0, copy=True, **where) as vec:
        agents = vec.num_agents
        vec.reset()
        if how == "sync":
            space = vec.action_space if agents == 1 else batch_space(vec.action_space, agents)
            actions = _drawn(space, number)
            yield functools.partial(_step_all, lambda: vec.step(next(actions)), number, pause)
            return
        rows = random_actions(vec.spec.actions, np.random.default_rng(0), DRAWN * number * agents)
        drawn = itertools.cycle(rows.reshape(DRAWN, number, agents, -1))

        def run(seconds: float) -> tuple[int, float]:
            steps, began = 0, time.perf_counter()
            vec.send_rows(next(drawn).reshape(number * agents, -1))
            while time.perf_counter() - began < seconds:
                batch = vec.recv()
                steps += len(batch.env_ids)
                _pause(pause)
                chosen = next(drawn)[batch.env_ids]
                vec.send_rows(chosen.reshape(-1, chosen.shape[-1]), batch.env_ids)
            took = time.perf_counter() - began
            while vec._envs.num_pending:
                vec.recv(vec.num_envs)
            return steps, took

        yield run


def _ours_as_gymnasium(env: ResolvedEnv, options: Any, number: int, processes: int) -> Any:
    where: dict[str, Any] = {"backend": "subproc", "num_workers": processes} if processes else {"backend": "serial"}
    if processes:
        where["start_method"] = "fork"
    return GymnasiumVectorEnv(make_vec_env(env, number, options=options, seed=0, **where))


def _gymnasium_vector(name: str, factory: Callable[[int], Any], number: int, processes: int) -> Any:
    import gymnasium

    del processes
    functions = [functools.partial(factory, index) for index in range(number)]
    # As ours and stable-baselines3's: the step that ends an episode gives the first observation of the next one. In the
    # default mode that takes a step more, in which nothing is simulated.
    return getattr(gymnasium.vector, name)(functions, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)


def _step_all(step: Callable[[], Any], number: int, pause: float, seconds: float) -> tuple[int, float]:
    """Step all environments together for so long; the steps of each, and the seconds that they took."""
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        _pause(pause)
        step()
        steps += number
    return steps, time.perf_counter() - began


def _drawn(space: Any, number: int) -> Iterator[Any]:
    """Actions for so many environments, `DRAWN` different ones again and again."""
    batched = batch_space(space, number)
    batched.seed(0)
    return itertools.cycle([batched.sample() for _ in range(DRAWN)])


@contextlib.contextmanager
def _gymnasium(build: Callable[[int], Any], processes: int, pause: float) -> Iterator[Any]:
    vec = build(processes)
    number = vec.num_envs
    try:
        actions = _drawn(vec.single_action_space, number)
        vec.reset(seed=0)
        yield functools.partial(_step_all, lambda: vec.step(next(actions)), number, pause)
    finally:
        vec.close()


@contextlib.contextmanager
def _sb3(name: str, factory: Callable[[int], Any], number: int, pause: float) -> Iterator[Any]:
    from stable_baselines3.common import vec_env

    functions = [functools.partial(factory, index) for index in range(number)]
    options = {"start_method": "fork"} if name == "SubprocVecEnv" else {}
    vec = getattr(vec_env, name)(functions, **options)
    try:
        actions = _drawn(vec.action_space, number)
        vec.reset()
        yield functools.partial(_step_all, lambda: vec.step(next(actions)), number, pause)
    finally:
        vec.close()


@contextlib.contextmanager
def _envpool(name: str, number: int, pause: float) -> Iterator[Any]:
    import envpool

    pool = envpool.make_gymnasium(name, num_envs=number)
    try:
        actions = _drawn(pool.action_space, number)
        pool.reset()
        yield functools.partial(_step_all, lambda: pool.step(next(actions)), number, pause)
    finally:
        pool.close()


def _build(env: ResolvedEnv, options: Any, index: int) -> Any:
    """A single environment for other systems: the one that our adapters get."""
    return env.family.make(env.name, options, EnvContext(env_id=index, seed=0, env_name=env.name))


def _is_gymnasium_env(env: ResolvedEnv, options: Any) -> bool:
    import gymnasium

    built = _build(env, options, 0)
    is_one = isinstance(built, gymnasium.Env)
    built.close()
    return is_one


def _pause(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


def show(rows: list[Row], name: str) -> None:
    """Print a table, and below it what there is to say of single rows."""
    table = Table("way", "processes", "envs", "steps/s", "us a step of all", "straight line", title=name)
    for row in rows:
        expected = "" if row.expected_us is None else f"{row.expected_us:,.1f}"
        rate = "-" if row.steps_per_s != row.steps_per_s else f"{row.steps_per_s:,.0f}"
        time_us = "-" if row.per_step_us != row.per_step_us else f"{row.per_step_us:,.1f}"
        table.add_row(row.way, str(row.processes), str(row.envs), rate, time_us, expected)
    Console().print(table)
    for row in rows:
        if row.note:
            print(f"{row.way}, {row.processes} processes, {row.envs} envs: {row.note}")


def write_csv(rows: list[Row], path: Path) -> None:
    """All rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def plot(rows: list[Row], name: str, path: Path) -> None:
    """Time of a step over environments of the serial backend, and steps per second of every way."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    serial = [row for row in rows if row.way == "serial"]
    left.plot([row.envs for row in serial], [row.per_step_us for row in serial], "o-", label="serial")
    left.plot([row.envs for row in serial], [row.expected_us or 0 for row in serial], "--", label="n times one")
    left.set(xlabel="environments", ylabel="us for a step of all", title=f"{name}: one process")
    left.legend()
    last = serial[-1:]
    others = [row for row in rows if row.way not in ("reset", "step", "serial") and row.steps_per_s == row.steps_per_s]
    shown = [*last, *others]
    labels = [f"{row.way} {row.processes}" if row.way.startswith("subproc ") else row.way for row in shown]
    right.barh(labels[::-1], [row.steps_per_s for row in shown][::-1])
    right.set(xlabel="steps per second", title=f"{last[0].envs if last else ''} environments; number: processes")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.vector_envs", __doc__)
    parser.add_argument("--env", required=True, help="as in train_appo.py, with options of its family")
    parser.add_argument("--num_envs", type=int, default=16, help="environments that are spread over processes")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=3, help="how often each is measured")
    parser.add_argument("--ways", default="", help="names of the ways to measure, separated by commas; empty: all")
    parser.add_argument("--policy_ms", type=float, default=0.0, help="time that each batch of actions takes")
    parser.add_argument("--out", default="", help="CSV file")
    parser.add_argument("--plot", default="", help="PNG file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
