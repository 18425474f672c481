"""`--benchmark`: how many frames a run makes per second here, and where its time goes.

The whole program runs for a while in a folder that goes away. What it tells is printed, and kept in one file beside the
experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.config import ResolvedConfig
from appo.algorithms.reporting.timing import TIMING_FILE, TimingNode, in_lines, read_tree
from appo.algorithms.run.config import CONFIG_FILE
from appo.algorithms.run.trial import Period, last_line, result_file, started, temporary_folder, words_of
from appo.algorithms.train_config import TrainConfig
from appo.utils.files import atomic_write_json
from appo.utils.options import ConfigError
from appo.utils.signals import StopSignals

WARM_UP_S, MEASURED_S, WINDOW_S = 10.0, 50.0, 5.0
LONGEST_START_S = 120.0
STOP_S = 15.0  # for the last checkpoint, and for the last point
EXIT_FAILED = 1


class Rates(NamedTuple):
    """Frames per second."""

    mean: float
    lowest: float  # of a window of `WINDOW_S`
    highest: float
    seconds: float  # that the mean covers


class Measured(NamedTuple):
    """What a run showed while it was looked at."""

    rates: Rates
    resident_mb: float  # at most; memory that processes share counts in each
    tree: tuple[TimingNode, ...]  # where the time went, from the start on
    stopped_early: bool  # the user ended it before all was measured


def measure(argv: Sequence[str], resolved: ResolvedConfig, stop: StopSignals) -> int:
    """Run, print, save; the exit code. A run that ends by itself before all is measured has failed: nothing is saved.

    Args:
        argv: the words of the command line, without the program.
        resolved: what they come to.
        stop: after a signal, what was measured until then counts.

    Raises:
        ConfigError: there is nothing to measure in, or no place for what is found.
    """
    config = resolved.config
    path = result_file(config, _kind_of(config))
    period = period_of(resolved)
    looks, memory_mb = [], 0.0

    def is_stopped() -> bool:
        return stop.received is not None

    with temporary_folder("benchmark", stop) as folder:
        with started(words_of(argv, resolved), folder, period, STOP_S) as trial:
            for look in trial.looks(period, is_stopped, learns=not config.run.sampler_only):
                looks.append(look)
                memory_mb = max(memory_mb, _memory_mb(trial.process.pid))
        seconds = looks[-1][0] - looks[0][0] if looks else 0.0
        is_short = seconds < period.measured_s
        if not seconds or (is_short and not is_stopped()):
            ended = f"the run ended after {seconds:.0f} of {period.measured_s:g} s"
            said = "it was stopped before" if is_stopped() else f"the run said last: {last_line(folder)}"
            print(f"benchmark: {ended if seconds else 'nothing was measured'}; {said}", flush=True)
            return EXIT_FAILED
        tree = _tree_of(trial.folder / TIMING_FILE)
    found = Measured(rates_of(looks), memory_mb, tree, stopped_early=is_short)
    _tell(found, config.env.env)
    content: dict[str, Any] = {"env": config.env.env, "options": list(argv), "frames_per_s": found.rates._asdict()}
    content |= {"stopped_early": found.stopped_early, "resident_mb": found.resident_mb}
    content["processes"] = [kind.as_json() for kind in found.tree]
    atomic_write_json(path, content, durable=False)
    print(f"benchmark: saved as {path}", flush=True)
    return 0


def _kind_of(config: TrainConfig) -> str:
    """What names the file: figures without learning, or with random actions, take the place of no others."""
    if config.sampling.policy == "random":
        return "benchmark_random"
    return "benchmark_sampler" if config.run.sampler_only else "benchmark"


def period_of(resolved: ResolvedConfig) -> Period:
    """When the run is looked at: for as long as is typed now, or said by --preset or --config, which count as typed.

    Raises:
        ConfigError: that is too short.
    """
    name, typed_s = "train_for_seconds", resolved.config.run.train_for_seconds
    is_typed = name in resolved.typed and (not resolved.resumed or resolved.origins[name] != CONFIG_FILE)
    if is_typed and typed_s < 1.0:
        raise ConfigError(f"{name}={typed_s:g} is too short to measure anything in; nearest: 1")
    return Period(WARM_UP_S, typed_s if is_typed else MEASURED_S, LONGEST_START_S)


def _tell(found: Measured, env: str) -> None:
    rates = found.rates
    windows = f" ({rates.lowest:,.0f} .. {rates.highest:,.0f} in windows of {WINDOW_S:g} s)"
    print(
        f"benchmark: {env}: {rates.mean:,.0f} frames per second"
        f"{windows if rates.seconds >= 2 * WINDOW_S else ''} over {rates.seconds:.0f} s"
        f"{', stopped early' if found.stopped_early else ''}; "
        f"{found.resident_mb:,.0f} MB resident, where memory that processes share counts in each"
    )
    print("where the time went, the start and the warm-up included:")
    for line in in_lines(found.tree):
        print(line)


def _tree_of(path: Path) -> tuple[TimingNode, ...]:
    """Where the time has gone, as far as the run has told."""
    try:
        return read_tree(path)
    except OSError:
        return ()  # it comes with the first point


def rates_of(looks: Sequence[tuple[float, int]]) -> Rates:
    """The rates that two or more looks at (time, frames) give."""
    (first_s, first), (last_s, last) = looks[0], looks[-1]
    mean = (last - first) / (last_s - first_s)
    windows, begin = [], looks[0]
    for look in looks[1:]:
        if look[0] - begin[0] >= WINDOW_S:
            windows.append((look[1] - begin[1]) / (look[0] - begin[0]))
            begin = look
    return Rates(mean, min(windows, default=mean), max(windows, default=mean), last_s - first_s)


def _memory_mb(pid: int) -> float:
    """Of a process and all below it; pages that several of them share count for each."""
    try:
        family = [psutil.Process(pid)]
        family += family[0].children(recursive=True)
    except psutil.NoSuchProcess:
        return 0.0
    total = 0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # it has ended since it was listed
    return total / 1e6
