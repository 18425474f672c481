"""The right sizes: how many workers, environments and splits make the most frames on this machine, by trying them.

Each candidate is a short run of the whole program, learning included, since actors, policy workers and learners share
the cores. The search goes along one option at a time from the values that the run would have anyway, so it never ends
below them; what the user has typed stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from appo.algorithms.config import ResolvedConfig
from appo.algorithms.reporting.machine import Machine, ProcessorTime
from appo.algorithms.run.size_search import Limits, Sizes, Tried, search, why_not_fastest
from appo.algorithms.run.trial import Period, result_file, started, temporary_folder, words_of
from appo.algorithms.train_config import TrainConfig
from appo.envs.registry import resolve
from appo.utils.files import atomic_write_json
from appo.utils.logs import terminal
from appo.utils.processes import core_count, usable_cores
from appo.utils.signals import StopSignals

BUDGET_S = 60.0
PERIOD = Period(warm_up_s=1.0, measured_s=3.0, longest_start_s=20.0)
# More trajectories at a time than this many iterations consume would only be older when they are learned from.
MOST_ITERATIONS_AT_A_TIME = 4
OPTIONS = Sizes._fields
HEADS = ("workers", "environments each", "splits", "backend")


class Budget:
    """Time for candidates, each of which may take as long as the longest so far."""

    def __init__(self, seconds: float) -> None:
        """So many, from now on."""
        self._began, self._seconds = time.monotonic(), seconds
        self._longest_s = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds that are over."""
        return time.monotonic() - self._began

    def has_time_for(self, number: int) -> bool:
        """So many more candidates fit."""
        return self.spent_s + number * self._longest_s < self._seconds

    def measured(
        self, argv: Sequence[str], sizes: Sizes, folder: Path, is_stopped: Callable[[], bool], *, learns: bool
    ) -> Tried:
        """`measured`; one that does not begin is given up when the time is over."""
        left_s = self._seconds - self.spent_s - PERIOD.warm_up_s - PERIOD.measured_s
        began = time.monotonic()
        period = PERIOD._replace(longest_start_s=min(PERIOD.longest_start_s, left_s))
        found = measured(argv, sizes, folder, is_stopped, learns=learns, period=period)
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        return found


def where_to_begin(config: TrainConfig, cores: int, fixed: Sequence[str] = ()) -> tuple[Sizes, Limits]:
    """The sizes that a run would have anyway, and what bounds the search from there; `fixed`: options that stay."""
    sampling = config.sampling
    first = Sizes(sampling.num_workers, sampling.num_envs_per_worker, sampling.worker_num_splits, sampling.env_backend)
    most = max(first.num_envs, MOST_ITERATIONS_AT_A_TIME * config.learning.trajectories_per_iteration)
    return first, Limits(cores, most, frozenset(fixed), resolve(config.env.env).family.has_engine)


def tuned_words(argv: Sequence[str], resolved: ResolvedConfig, cores: int, stop: StopSignals) -> list[str]:
    """Search for the sizes of a run, print the table, save it; what is to be typed in addition.

    Args:
        argv: the words of the command line, without the program.
        resolved: what they come to.
        cores: of this machine.
        stop: after a signal, nothing is chosen.

    Raises:
        ConfigError: there is no place for what is found.
    """
    config, words = resolved.config, words_of(argv, resolved)
    result_file(config, "autotune")
    typed = [name for name in OPTIONS if name in resolved.typed]
    first, limits = where_to_begin(config, cores, typed)
    budget, learns = Budget(BUDGET_S), not config.run.sampler_only

    def is_stopped() -> bool:
        return stop.received is not None

    with temporary_folder("autotune", stop) as folder:

        def measure(sizes: Sizes) -> Tried:
            found = budget.measured(words, sizes, folder, is_stopped, learns=learns)
            if not is_stopped():
                print(f"autotune: {' '.join(sizes.words)}: {found.frames_per_s:,.0f} frames per second", flush=True)
            return found

        tried = search(measure, first, limits, lambda number: not is_stopped() and budget.has_time_for(number))
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


def measured(
    argv: Sequence[str],
    sizes: Sizes,
    folder: Path,
    is_stopped: Callable[[], bool],
    *,
    learns: bool = True,
    period: Period = PERIOD,
) -> Tried:
    """Run the program for a moment with other sizes.

    Args:
        argv: the words of the command line, without the program.
        sizes: in place of its own.
        folder: for its experiment.
        is_stopped: looked at now and then; ends it.
        learns: it is measured from when it has learned something, not from its first frame.
        period: in which it is looked at.
    """
    looks, times = [], []
    with started(argv, folder, period, 0.0, but=OPTIONS, words=sizes.words) as trial:
        machine = Machine(trial.process.pid)
        for look in trial.looks(period, is_stopped, learns=learns):
            looks.append(look)
            times.append(machine.look())
    if len(looks) < 2 or looks[-1][0] - looks[0][0] < period.measured_s:
        return Tried(sizes, 0.0)
    told_s, frames = (last - first for first, last in zip(looks[0], looks[-1], strict=True))
    return Tried(sizes, frames / told_s, _busy(times[0], times[-1]))


def _busy(first: ProcessorTime, last: ProcessorTime) -> float:
    """Share of its cores' time that a run has used, or that was not there for it, 0 to 1.

    A container's quota is less than its cores are; on shared cores others leave less than the quota.
    """
    seconds = last.clock_s - first.clock_s
    of_quota = (last.run_s - first.run_s) / (core_count() * seconds)
    of_cores = (last.busy_s - first.busy_s) / (len(usable_cores()) * seconds)
    return min(1.0, max(of_quota, of_cores))


def show(tried: list[Tried], first: Sizes, env: str) -> None:
    """Print what was tried, the fastest first."""
    table = Table(*HEADS, "frames per second", "", title=f"autotune: {env}")
    for sizes, found, _ in sorted(tried, key=lambda each: -each.frames_per_s):
        notes = [note for note, holds in (("as it was", sizes == first), ("chosen", sizes == tried[-1].sizes)) if holds]
        table.add_row(*map(str, sizes), f"{found:,.0f}" if found else "did not run", ", ".join(notes))
    terminal().print(table)
    if reason := why_not_fastest(tried):
        print(f"autotune: the fastest was not chosen: {reason}", flush=True)


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
