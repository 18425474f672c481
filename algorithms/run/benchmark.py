"""`--benchmark`: how many frames a run makes per second here, and where its time goes.

The whole program runs for a while in a folder that goes away. What it tells is printed, and kept in one file beside the
experiments.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appo.algorithms.config import TrainConfig
from appo.algorithms.reporting.timing import TimingNode, in_lines
from appo.algorithms.run.trial import Trial, last_line, result_file, started
from appo.utils.files import atomic_write_json

WARM_UP_S, MEASURED_S, WINDOW_S = 10.0, 50.0, 5.0
LONGEST_START_S = 120.0
POLL_S = 0.2
EXIT_FAILED = 1


class Rates(NamedTuple):
    """Frames per second."""

    mean: float
    lowest: float  # of a window of `WINDOW_S`
    highest: float
    seconds: float  # that the mean covers


def measure(argv: Sequence[str], config: TrainConfig, is_stopped: Callable[[], bool]) -> int:
    """Run, print, save; the exit code.

    Args:
        argv: the words of the command line, without the program.
        config: what they come to.
        is_stopped: looked at now and then; then what was measured until then counts.
    """
    asked_s = config.run.train_for_seconds
    measured_s = asked_s if asked_s < 1e9 else MEASURED_S
    with tempfile.TemporaryDirectory(prefix="appo-benchmark-") as name:
        folder = Path(name)
        with started(argv, folder, LONGEST_START_S + WARM_UP_S + measured_s + 10.0) as trial:
            looks, memory_mb = _looks(trial, measured_s, config, is_stopped)
        if len(looks) < 2:
            if not is_stopped():
                print(f"benchmark: nothing was measured; the run said last: {last_line(folder)}", flush=True)
            return EXIT_FAILED
        timing = json.loads((trial.folder / "timing.json").read_text())["processes"]
    rates = rates_of(looks)
    windows = f"{rates.lowest:,.0f} .. {rates.highest:,.0f} in windows of {WINDOW_S:g} s"
    print(
        f"benchmark: {config.env.env}: {rates.mean:,.0f} frames per second ({windows}) over {rates.seconds:.0f} s; "
        f"{memory_mb:,.0f} MB in all processes"
    )
    for line in in_lines(tuple(TimingNode.from_json(kind) for kind in timing)):
        print(line)
    path = result_file(config, "benchmark")
    content: dict[str, Any] = {"env": config.env.env, "options": list(argv), "frames_per_s": rates._asdict()}
    atomic_write_json(path, content | {"memory_mb": memory_mb, "processes": timing}, durable=False)
    print(f"benchmark: saved as {path}", flush=True)
    return 0


def _looks(
    trial: Trial, measured_s: float, config: TrainConfig, is_stopped: Callable[[], bool]
) -> tuple[list[tuple[float, int]], float]:
    """[(time, frames)] from the end of the warm-up on, and the resident memory at its highest."""
    began, since = time.monotonic(), 0.0
    looks: list[tuple[float, int]] = []
    memory_mb = 0.0
    while trial.is_running and not is_stopped():
        time.sleep(POLL_S)
        told = trial.status()
        if told is None or not told["env_frames"] or not (config.run.sampler_only or trial.is_training(told)):
            if time.monotonic() - began > LONGEST_START_S:
                break
            continue
        now, frames = float(told["time"]), int(told["env_frames"])
        since = since or now
        if now - since < WARM_UP_S or (looks and now == looks[-1][0]):
            continue
        looks.append((now, frames))
        memory_mb = max(memory_mb, _memory_mb(trial.process.pid))
        if now - looks[0][0] >= measured_s:
            break
    return looks, memory_mb


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
