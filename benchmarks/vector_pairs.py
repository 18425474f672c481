"""Ways to run the same environments, compared in pairs: by how much is one faster than the other?

    python -m benchmarks.vector_pairs --env=CartPole-v1 [--ways=serial,SyncVectorEnv,DummyVecEnv] [--num_envs=8]

All are made once and take turns of `--seconds`, in random order. Told is the median over the turns of the time of the
first way by that of each other, with the interval that holds it in 95 of 100 cases, by the order of the ratios alone.
A machine whose speed changes from one second to the next changes that of neighbouring turns alike, so that ratios tell
far smaller differences than two columns of `benchmarks.vector_envs` do. Ways without processes step the same objects:
of two sets of equal environments one is faster than the other by a percent or two, for where it lies in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from appo.envs.api import EnvContext, EnvFamily
from appo.envs.registry import ResolvedEnv
from appo.utils.options import ConfigError
from appo.utils.processes import limit_native_threads
from benchmarks.measuring import parser_of
from benchmarks.vector_envs import Way, chosen_ways, environment_of, ways

LEAST_TURNS = 6  # fewer have no such interval
_NORMAL_95 = 1.96


class Ratio(NamedTuple):
    """The time of one way by that of another."""

    way: str
    other: str
    median: float
    low: float
    high: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = _parser()
    args, family_words = parser.parse_known_args(argv)
    if args.turns < LEAST_TURNS or args.num_envs < 1 or not args.seconds > 0 or not args.policy_ms >= 0:
        parser.error(f"--turns is at least {LEAST_TURNS}, --num_envs at least 1, --seconds above 0")
    limit_native_threads()
    try:
        env, options = environment_of(args.env, family_words)
        with Shared(env.family) as shared:
            found = _of_all(env, options, args)
            if all(way.processes == 0 for way in found):
                found = _of_all(env._replace(family=shared.family), options, args)
            ratios = compare(found, args.seconds, args.turns)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for ratio in ratios:
        print(
            f"{args.env}, {args.num_envs} environments: time of {ratio.way} by that of {ratio.other}: "
            f"{ratio.median:.3f} ({ratio.low:.3f} .. {ratio.high:.3f}) in {args.turns} turns"
        )
    return 0


def _of_all(env: ResolvedEnv, options: Any, args: argparse.Namespace) -> list[Way]:
    """The chosen ways in their order, each of all environments."""
    names = [name.strip() for name in args.ways.split(",")]
    found = [way for way in chosen_ways(ways(env, options, args), args.ways) if way.envs == args.num_envs]
    if len(found) < 2:
        raise ConfigError(f"ways={args.ways} are fewer than two of {args.num_envs} environments")
    return sorted(found, key=lambda way: names.index(way.name))


class Shared:
    """Environments that several ways have, one for each number; they stay open until this is closed."""

    def __init__(self, family: EnvFamily) -> None:
        """None is built yet; `family` builds them."""
        self._make = family.make
        self._built: dict[int, Any] = {}
        self._closes: list[Callable[[], None]] = []
        self.family = family._replace(make=self._get)

    def _get(self, name: str, options: Any, context: EnvContext) -> Any:
        if context.env_id not in self._built:
            built = self._built[context.env_id] = self._make(name, options, context)
            self._closes.append(built.close)
            built.close = lambda: None
        return self._built[context.env_id]

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *error: object) -> None:
        for close in self._closes:
            close()


def compare(found: Sequence[Way], seconds: float, turns: int) -> list[Ratio]:
    """The time per step of the first way by that of each other.

    Args:
        found: two ways or more.
        seconds: of a turn of each.
        turns: of all.
    """
    times: dict[int, list[float]] = {place: [] for place in range(len(found))}
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(way.open()) for way in found]
        for run in runs:
            run(seconds)
        for _ in range(turns):
            for place in random.sample(range(len(found)), len(found)):
                steps, took = runs[place](seconds)
                times[place].append(took / steps)
    ratios = []
    for place in range(1, len(found)):
        by_turn = [own / others for own, others in zip(times[0], times[place], strict=True)]
        ratios.append(Ratio(found[0].name, found[place].name, statistics.median(by_turn), *interval(by_turn)))
    return ratios


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of what they are drawn from lies with a probability of 95 %, whatever their distribution.

    Counts of values below the median are binomial; from `LEAST_TURNS` on, their normal form is close enough.
    """
    ordered, number = sorted(values), len(values)
    place = max(0, math.floor((number - _NORMAL_95 * math.sqrt(number)) / 2))
    return ordered[place], ordered[number - 1 - place]


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.vector_pairs", __doc__)
    parser.add_argument("--env", required=True, help="as in train_appo.py, with options of its family")
    parser.add_argument(
        "--ways", default="serial,SyncVectorEnv,DummyVecEnv", help="the first is compared with the others"
    )
    parser.add_argument("--num_envs", type=int, default=8, help="of each way")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn of each way")
    parser.add_argument("--turns", type=int, default=60, help="how often each is measured")
    parser.add_argument("--policy_ms", type=float, default=0.0, help="time that each batch of actions takes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
