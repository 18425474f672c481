"""The right sizes: how many workers, environments and splits make the most frames on this machine, by trying them.

Each candidate is a short run of the whole program, learning included, since actors, policy workers and learners share
the cores. The search goes along one option at a time from the values that the run would have anyway, so it never ends
below them; what the user has typed stays as it is.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from appo.algorithms.config import ResolvedConfig
from appo.algorithms.reporting.machine import busy_seconds
from appo.algorithms.run.trial import Period, result_file, started, words_of
from appo.algorithms.train_config import TrainConfig
from appo.utils.files import atomic_write_json
from appo.utils.logs import terminal
from appo.utils.processes import core_count, usable_cores

BUDGET_S = 60.0
PERIOD = Period(warm_up_s=1.0, measured_s=3.0, longest_start_s=20.0)
STOP_S = 3.0
# A candidate has to be this much better than what stands: less is noise.
WORTHWHILE = 1.04
# More trajectories at a time than this many iterations consume would only be older when they are learned from.
MOST_ITERATIONS_AT_A_TIME = 4
# Processes for environments may pay where the cores work for less than this share of the time, and each environment
# makes fewer frames per second than this.
BUSY = 0.85
SLOW_FRAMES_PER_S = 400.0
OPTIONS = ("num_workers", "num_envs_per_worker", "worker_num_splits", "env_backend")

log = logging.getLogger(__name__)


class Sizes(NamedTuple):
    """What is tuned."""

    num_workers: int
    num_envs_per_worker: int
    worker_num_splits: int
    env_backend: str = "serial"

    @property
    def words(self) -> list[str]:
        """As they are typed."""
        return [f"--{name}={value}" for name, value in self._asdict().items()]

    @property
    def num_envs(self) -> int:
        """Of all workers."""
        return self.num_workers * self.num_envs_per_worker


class Tried(NamedTuple):
    """One candidate, and what it did."""

    sizes: Sizes
    frames_per_s: float  # 0: it did not run
    busy: float = 1.0  # share of the time of all cores that was used, 0 to 1


class Limits(NamedTuple):
    """What bounds the search."""

    cores: int
    most_envs: int  # of all workers
    fixed: frozenset[str] = frozenset()  # options that stay as they are


Candidates = Callable[[Sizes, Limits, dict[Sizes, Tried]], Iterator[Sizes]]


def search(
    measure: Callable[[Sizes], Tried], first: Sizes, limits: Limits, has_time: Callable[[], bool] = lambda: True
) -> list[Tried]:
    """Try sizes from `first` on, one option at a time; all that were tried, the best last.

    Args:
        measure: runs a candidate.
        first: the values that the run would have anyway.
        limits: of the search.
        has_time: whether another candidate can be measured.
    """
    tried = {first: measure(first)}
    best = first
    for place in range(len(_order(first, tried))):
        candidates = _order(best, tried)[place]
        for candidate in candidates(best, limits, tried):
            if candidate not in tried:
                if not has_time():
                    break
                tried[candidate] = measure(candidate)
            if tried[candidate].frames_per_s > WORTHWHILE * tried[best].frames_per_s:
                best = candidate
            elif candidates in (_more_envs, _fewer_envs):
                break  # it goes up to a summit, and down from there
    return [*(found for sizes, found in tried.items() if sizes != best), tried[best]]


def _order(best: Sizes, tried: dict[Sizes, Tried]) -> list[Candidates]:
    """Which options are tried after each other: what gains most comes first, since the time may end the search.

    Where the cores had enough to do, only less work per frame helps: more environments at a time, fewer hand-overs.
    Cores that wait, for sleeping environments or for other processes, want more processes, and splits that take turns.
    """
    first, frames_per_s, busy = next(iter(tried.values()))
    if busy >= BUSY:
        return [_more_envs, _other_splits, _fewer_envs, _other_workers, _more_envs]
    is_slow = frames_per_s / max(1, first.num_envs) < SLOW_FRAMES_PER_S
    # A single split steps all of its processes at once.
    last = [_other_splits, _other_workers] if best.env_backend == "subproc" else [_other_workers, _other_splits]
    return [*([_processes] if is_slow else []), _more_envs, _fewer_envs, *last, _more_envs]


def _more_envs(best: Sizes, limits: Limits, tried: dict[Sizes, Tried]) -> Iterator[Sizes]:
    del tried
    number = best.num_envs_per_worker
    while "num_envs_per_worker" not in limits.fixed:
        step = 4 if number <= 4 else 2
        number *= step
        if number * best.num_workers > limits.most_envs:
            return
        yield best._replace(num_envs_per_worker=number)


def _fewer_envs(best: Sizes, limits: Limits, tried: dict[Sizes, Tried]) -> Iterator[Sizes]:
    number = best.num_envs_per_worker // 2
    while "num_envs_per_worker" not in limits.fixed and number >= best.worker_num_splits:
        candidate = best._replace(num_envs_per_worker=number - number % best.worker_num_splits)
        if candidate in tried:
            return
        yield candidate
        number //= 2


def _other_workers(best: Sizes, limits: Limits, tried: dict[Sizes, Tried]) -> Iterator[Sizes]:
    if "num_workers" in limits.fixed:
        return
    cores = limits.cores
    for number in (2 * cores, cores, max(1, cores - 1), 4 * cores):
        envs = best.num_envs_per_worker
        if "num_envs_per_worker" not in limits.fixed:  # as many environments in all
            share = max(1, round(best.num_envs / number / best.worker_num_splits))
            envs = share * best.worker_num_splits
        candidate = best._replace(num_workers=number, num_envs_per_worker=envs)
        if candidate not in tried and candidate.num_envs <= max(limits.most_envs, best.num_envs):
            yield candidate


def _other_splits(best: Sizes, limits: Limits, tried: dict[Sizes, Tried]) -> Iterator[Sizes]:
    del tried
    if "worker_num_splits" not in limits.fixed:
        splits = 1 if best.worker_num_splits > 1 else 2
        if best.num_envs_per_worker % splits == 0:
            yield best._replace(worker_num_splits=splits)


def _processes(best: Sizes, limits: Limits, tried: dict[Sizes, Tried]) -> Iterator[Sizes]:
    del tried
    if "env_backend" not in limits.fixed and best.env_backend == "serial":
        yield best._replace(env_backend="subproc")


def where_to_begin(config: TrainConfig, cores: int, fixed: Sequence[str] = ()) -> tuple[Sizes, Limits]:
    """The sizes that a run would have anyway, and what bounds the search from there; `fixed`: options that stay."""
    sampling = config.sampling
    first = Sizes(sampling.num_workers, sampling.num_envs_per_worker, sampling.worker_num_splits, sampling.env_backend)
    most = max(first.num_envs, MOST_ITERATIONS_AT_A_TIME * config.learning.trajectories_per_iteration)
    return first, Limits(cores, most, frozenset(fixed))


def tuned_words(argv: Sequence[str], resolved: ResolvedConfig, cores: int, is_stopped: Callable[[], bool]) -> list[str]:
    """Search for the sizes of a run, print the table, save it; what is to be typed in addition.

    Args:
        argv: the words of the command line, without the program.
        resolved: what they come to.
        cores: of this machine.
        is_stopped: looked at now and then; nothing is chosen when it holds.

    Raises:
        ConfigError: there is no place for what is found.
    """
    config, words = resolved.config, words_of(argv, resolved)
    result_file(config, "autotune")
    typed = [name for name in OPTIONS if name in resolved.typed]
    first, limits = where_to_begin(config, cores, typed)
    deadline = time.monotonic() + BUDGET_S
    longest = 0.0
    with tempfile.TemporaryDirectory(prefix="appo-autotune-", ignore_cleanup_errors=True) as folder:

        def measure(sizes: Sizes) -> Tried:
            nonlocal longest
            began = time.monotonic()
            found = measured(words, sizes, Path(folder), is_stopped)
            longest = max(longest, time.monotonic() - began)
            if not is_stopped():
                print(f"autotune: {' '.join(sizes.words)}: {found.frames_per_s:,.0f} frames per second", flush=True)
            return found

        def has_time() -> bool:
            return not is_stopped() and time.monotonic() + longest < deadline

        tried = search(measure, first, limits, has_time)
    best = tried[-1]
    if is_stopped():
        return []
    if not best.frames_per_s:
        print(
            f"autotune: no run came to train within {PERIOD.longest_start_s:g} s; the sizes stay as they are",
            flush=True,
        )
        return []
    show(tried, first, config.env.env)
    save(tried, first, config)
    return [word for word in best.sizes.words if word.partition("=")[0].removeprefix("--") not in typed]


def measured(argv: Sequence[str], sizes: Sizes, folder: Path, is_stopped: Callable[[], bool]) -> Tried:
    """Run the program for a moment with other sizes."""
    looks, cores = [], usable_cores()
    with started(argv, folder, PERIOD, STOP_S, but=OPTIONS, words=sizes.words) as trial:
        for look in trial.looks(PERIOD, is_stopped):
            looks.append((*look, time.monotonic(), busy_seconds(cores)))
    if len(looks) < 2 or looks[-1][0] - looks[0][0] < PERIOD.measured_s:
        return Tried(sizes, 0.0)
    told_s, frames, seconds, busy_s = (last - first for first, last in zip(looks[0], looks[-1], strict=True))
    return Tried(sizes, frames / told_s, min(1.0, busy_s / (core_count() * seconds)))


def show(tried: list[Tried], first: Sizes, env: str) -> None:
    """Print what was tried, the fastest first."""
    table = Table(*OPTIONS, "frames per second", "", title=f"autotune: {env}")
    for sizes, found, _ in sorted(tried, key=lambda each: -each.frames_per_s):
        notes = [note for note, holds in (("as it was", sizes == first), ("chosen", sizes == tried[-1].sizes)) if holds]
        table.add_row(*map(str, sizes), f"{found:,.0f}" if found else "did not run", ", ".join(notes))
    terminal().print(table)


def save(tried: list[Tried], first: Sizes, config: TrainConfig) -> None:
    """Write what was tried beside the experiments."""
    path = result_file(config, "autotune")
    content = {
        "env": config.env.env,
        "chosen": tried[-1].sizes._asdict(),
        "default": first._asdict(),
        "tried": [{**each.sizes._asdict(), "frames_per_s": each.frames_per_s, "busy": each.busy} for each in tried],
    }
    atomic_write_json(path, content, durable=False)
    print(f"autotune: saved as {path}", flush=True)
