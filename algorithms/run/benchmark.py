"""`--benchmark`: how many frames a run makes per second here, and where its time goes.

The whole program runs for a while in a folder that goes away. What it tells is printed, and kept in one file beside the
experiments.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.config import ResolvedConfig
from appo.algorithms.reporting.timing import TIMING_FILE, TimingNode, in_lines
from appo.algorithms.run.trial import Period, is_option, last_line, result_file, started, words_of
from appo.utils.files import atomic_write_json
from appo.utils.options import ConfigError

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


def measure(argv: Sequence[str], resolved: ResolvedConfig, is_stopped: Callable[[], bool]) -> int:
    """Run, print, save; the exit code.

    Args:
        argv: the words of the command line, without the program.
        resolved: what they come to.
        is_stopped: looked at now and then; then what was measured until then counts.

    Raises:
        ConfigError: there is nothing to measure in, or no place for what is found.
    """
    config = resolved.config
    path = result_file(config, "benchmark")
    is_typed = any(is_option(word, "train_for_seconds") for word in argv)
    if is_typed and config.run.train_for_seconds < 1.0:
        raise ConfigError(
            f"train_for_seconds={config.run.train_for_seconds:g} is too short to measure anything in; nearest: 1"
        )
    period = Period(WARM_UP_S, config.run.train_for_seconds if is_typed else MEASURED_S, LONGEST_START_S)
    looks, memory_mb = [], 0.0
    with tempfile.TemporaryDirectory(prefix="appo-benchmark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with started(words_of(argv, resolved), folder, period, STOP_S) as trial:
            for look in trial.looks(period, is_stopped, learns=not config.run.sampler_only):
                looks.append(look)
                memory_mb = max(memory_mb, _memory_mb(trial.process.pid))
        tree = _tree_of(trial.folder / TIMING_FILE)
        if len(looks) < 2 or looks[-1][0] == looks[0][0]:
            said = "it was stopped before" if is_stopped() else f"the run said last: {last_line(folder)}"
            print(f"benchmark: nothing was measured; {said}", flush=True)
            return EXIT_FAILED
    rates = rates_of(looks)
    windows = f" ({rates.lowest:,.0f} .. {rates.highest:,.0f} in windows of {WINDOW_S:g} s)"
    is_short = rates.seconds < min(WINDOW_S, period.measured_s) or is_stopped()
    print(
        f"benchmark: {config.env.env}: {rates.mean:,.0f} frames per second"
        f"{windows if rates.seconds >= 2 * WINDOW_S else ''} over {rates.seconds:.0f} s"
        f"{', stopped early' if is_short else ''}; "
        f"{memory_mb:,.0f} MB resident, where memory that processes share counts in each"
    )
    print("where the time went, the start and the warm-up included:")
    for line in in_lines(tree):
        print(line)
    content: dict[str, Any] = {"env": config.env.env, "options": list(argv), "frames_per_s": rates._asdict()}
    content |= {"stopped_early": is_short, "resident_mb": memory_mb, "processes": [kind.as_json() for kind in tree]}
    atomic_write_json(path, content, durable=False)
    print(f"benchmark: saved as {path}", flush=True)
    return 0


def _tree_of(path: Path) -> tuple[TimingNode, ...]:
    """Where the time has gone, as far as the run has told."""
    try:
        return tuple(TimingNode.from_json(kind) for kind in json.loads(path.read_text())["processes"])
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
