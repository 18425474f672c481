"""Does --autotune find what a whole grid of sizes would?

    python -m benchmarks.speed.autotune_grid --env=CartPole-v1 [--rounds=5] [--seconds=60] [--out=FILE] [options]

First the search, in the time that it has in a run; then every point of a grid of workers, environments, splits and,
where steps are slow, backends. Each point is a short run of the whole program. What the search chose, the best point of
the grid, and the sizes without either are then measured again in turns and for longer, since the best of many noisy
numbers is too good: three seconds of doom_basic differ by 12 % (standard deviation), ten seconds by 7 %. Exit code 1:
what was chosen makes less than 0.9 of the best point, or less than 0.96 of the sizes without it.
Nothing else may run meanwhile.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from appo.algorithms.config import ResolvedConfig, fitted, resolve
from appo.algorithms.run.autotune import BUDGET_S, HEADS, PERIOD, Budget, measured, where_to_begin
from appo.algorithms.run.session import profile_environment
from appo.algorithms.run.size_search import Limits, Sizes, Tried, search
from appo.algorithms.run.trial import Period
from appo.utils.options import ConfigError
from appo.utils.processes import core_count
from appo.utils.signals import StopSignals
from benchmarks.measuring import MeasurementError, parser_of

ENOUGH_OF_BEST, ENOUGH_OF_FIRST = 0.9, 0.96
LONGER = PERIOD._replace(measured_s=10.0)
EXIT_OK, EXIT_MISSED, EXIT_REFUSED = 0, 1, 2


class Found(NamedTuple):
    """What was compared, as frames per second, each the median of some rounds."""

    first: Sizes
    chosen: Sizes
    best: Sizes
    rates: dict[Sizes, float]
    search_s: float
    points: int

    @property
    def of_best(self) -> float:
        """Share of the best point's frames."""
        return self.rates[self.chosen] / max(self.rates[self.best], 1.0)

    @property
    def of_first(self) -> float:
        """Frames beside those without a search."""
        return self.rates[self.chosen] / max(self.rates[self.first], 1.0)


def grid(first: Sizes, limits: Limits, tried: Sequence[Tried]) -> list[Sizes]:
    """Every size that is tried beside the search; with processes where an environment was slow in any of its tries."""
    cores = limits.cores
    is_slow = any(each.is_slow for each in tried)
    return [
        Sizes(workers, envs, splits, backend)
        for workers in sorted({1, cores, 2 * cores})
        for envs in (2, 4, 8, 16, 32, 64)
        for splits in (1, 2)
        for backend in (("serial", "subproc") if is_slow else (first.env_backend,))
        if workers * envs <= limits.most_envs and (backend == "serial" or workers * envs <= 64)
    ]


def compare(
    argv: Sequence[str],
    resolved: ResolvedConfig,
    rounds: int,
    seconds: float,
    is_stopped: Callable[[], bool],
) -> Found:
    """Search, walk the grid, and measure what matters again.

    Raises:
        MeasurementError: it was stopped.
    """
    config = resolved.config
    first, limits = where_to_begin(config, core_count(), [name for name in Sizes._fields if name in resolved.typed])
    budget, learns = Budget(seconds), not config.run.sampler_only
    with tempfile.TemporaryDirectory() as folder:

        def measure(sizes: Sizes, within: Budget | None = None, period: Period = PERIOD) -> Tried:
            run = functools.partial(measured, period=period) if within is None else within.measured
            found = run(argv, sizes, Path(folder), is_stopped, learns=learns)
            if is_stopped():
                raise MeasurementError("stopped")
            print(f"{' '.join(sizes.words)}: {found.frames_per_s:,.0f} ({found.busy:.2f} busy)", flush=True)
            return found

        tried = search(lambda sizes: measure(sizes, budget), first, limits, budget.has_time_for)
        search_s, chosen = budget.spent_s, tried[-1].sizes
        known = {each.sizes: each.frames_per_s for each in tried}
        points = grid(first, limits, tried)
        rates = {sizes: known[sizes] if sizes in known else measure(sizes).frames_per_s for sizes in points}
        best = max(rates, key=lambda sizes: rates[sizes])
        again: dict[Sizes, list[float]] = {sizes: [] for sizes in (first, chosen, best)}
        for _ in range(rounds):
            for sizes, of_size in again.items():
                of_size.append(measure(sizes, period=LONGER).frames_per_s)
    medians = {sizes: statistics.median(of_size) for sizes, of_size in again.items()}
    return Found(first, chosen, best, medians, search_s, len(points))


def show(found: Found, env: str) -> None:
    """Print what was compared."""
    title = f"{env}: the search took {found.search_s:.0f} s, the grid has {found.points} points"
    table = Table("", *HEADS, "frames per second", title=title)
    for name, sizes in (("without", found.first), ("chosen", found.chosen), ("best of the grid", found.best)):
        table.add_row(name, *map(str, sizes), f"{found.rates[sizes]:,.0f}")
    Console().print(table)
    print(f"chosen: {found.of_best:.2f} of the best, {found.of_first:.2f} of the sizes without")


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; the exit code."""
    parser = parser_of("benchmarks.speed.autotune_grid", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often the three are measured again")
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="that the search may take")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    chosen, words = parser.parse_known_args(argv)
    signals = StopSignals()
    try:
        # Whatever experiment lies here is none of ours.
        resolved = resolve([*words, "--restart_behavior=restart"])
        if resolved.needs_fitting:
            resolved = fitted(resolved, *profile_environment(resolved, signals))
        found = compare(words, resolved, chosen.rounds, chosen.seconds, lambda: signals.received is not None)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    except MeasurementError as error:
        print(error, file=sys.stderr)
        return signals.exit_code
    finally:
        signals.restore()
    show(found, resolved.config.env.env)
    if chosen.out:
        named = {"first": found.first, "chosen": found.chosen, "best": found.best}
        content = {name: {**sizes._asdict(), "frames_per_s": found.rates[sizes]} for name, sizes in named.items()}
        chosen.out.write_text(json.dumps(content | {"search_s": found.search_s, "points": found.points}, indent=1))
    is_enough = found.of_best >= ENOUGH_OF_BEST and found.of_first >= ENOUGH_OF_FIRST
    return EXIT_OK if is_enough else EXIT_MISSED


if __name__ == "__main__":
    sys.exit(main())
