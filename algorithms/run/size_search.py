"""The search for sizes: which numbers of workers, environments and splits are tried after each other.

It goes along one option at a time from the values that the run would have anyway. Nothing here runs anything: what a
candidate does is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

# What is chosen has to be this much better than where the search began: less is noise.
WORTHWHILE = 1.04
# The search goes on from a candidate that is this much better than what stands. Steps of two options that gain 3 % each
# may gain 10 % together.
STEP = 1.02
# A gain of less than this, measured once, may be luck.
BEYOND_LUCK = 1.25
# Processes for environments may pay where the cores work for less than this share of the time, and each environment
# makes fewer frames per second than this.
BUSY = 0.85
SLOW_FRAMES_PER_S = 400.0


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
    busy: float = 0.0  # share of the time of all cores that was used, 0 to 1

    @property
    def is_slow(self) -> bool:
        """Each environment makes so few frames that a process of its own may pay."""
        return self.frames_per_s < SLOW_FRAMES_PER_S * self.sizes.num_envs


class Limits(NamedTuple):
    """What bounds the search."""

    cores: int
    most_envs: int  # of all workers
    fixed: frozenset[str] = frozenset()  # options that stay as they are
    has_engine: bool = False  # each environment has a process of its own already


class Direction(NamedTuple):
    """One way to change sizes."""

    candidates: Callable[[Sizes, Limits], Iterator[Sizes]]
    has_summit: bool = False  # what follows a candidate that is no better is worse still
    is_tried_again: bool = False  # when another direction has changed what is best


def search(
    measure: Callable[[Sizes], Tried],
    first: Sizes,
    limits: Limits,
    has_time_for: Callable[[int], bool] = lambda number: True,
) -> list[Tried]:
    """Try sizes from `first` on, one option at a time; all that were tried, the best last.

    The best of many measurements that are not exact looks better than it is: unless its gain is too large for luck, it
    is measured once more beside the first, for which time is kept, and chosen when it is the better one over both.
    Where there is time for one measurement only, it is that of the best, and the worse of its two counts. A gain that
    is not worthwhile at the first measurement gets no second.

    Args:
        measure: runs a candidate.
        first: the values that the run would have anyway.
        limits: of the search.
        has_time_for: whether so many more candidates can be measured.
    """
    tried = {first: measure(first)}
    best = first

    def gains(factor: float) -> bool:
        return tried[best].frames_per_s > factor * tried[first].frames_per_s

    def is_doubtful() -> bool:
        return gains(WORTHWHILE) and not gains(BEYOND_LUCK)

    ended_with: dict[Direction, Sizes] = {}  # a direction -> the best when it had been tried

    def is_open(direction: Direction) -> bool:
        return direction not in ended_with or (direction.is_tried_again and ended_with[direction] != best)

    while direction := next(filter(is_open, _order(tried[best], tried[first])), None):
        for candidate in direction.candidates(best, limits):
            if candidate not in tried:
                if not has_time_for(1 + 2 * is_doubtful()):
                    break
                tried[candidate] = measure(candidate)
            if tried[candidate].frames_per_s > STEP * tried[best].frames_per_s:
                best = candidate
            elif direction.has_summit:
                break
        ended_with[direction] = best
    if gains(WORTHWHILE) and has_time_for(2):
        for sizes in (first, best):
            tried[sizes] = _mean(tried[sizes], measure(sizes))
    elif is_doubtful():
        if has_time_for(1):
            tried[best] = min(tried[best], measure(best), key=lambda found: found.frames_per_s)
        else:
            best = first
    if not gains(WORTHWHILE):
        best = first
    return [*(found for sizes, found in tried.items() if sizes != best), tried[best]]


def why_not_fastest(tried: list[Tried]) -> str | None:
    """Why the last of those tried, which was chosen, is not the fastest; None: it is."""
    chosen, fastest = tried[-1].frames_per_s, max(each.frames_per_s for each in tried)
    if fastest <= chosen:
        return None
    if fastest <= WORTHWHILE * chosen:
        return f"a gain of less than {100 * (WORTHWHILE - 1):.0f} % counts as noise"
    return "it was measured once, where luck may have helped"


def _mean(first: Tried, second: Tried) -> Tried:
    rate, busy = ((one + other) / 2 for one, other in zip(first[1:], second[1:], strict=True))
    return Tried(first.sizes, rate, busy)


def _order(best: Tried, first: Tried) -> list[Direction]:
    """Which options are tried after each other: what gains most comes first, since the time may end the search.

    What did not get as far as training in time is given less to start. Where the cores have enough to do by now, only
    less work per frame helps: more environments at a time, fewer hand-overs. Cores that wait, for sleeping environments
    or for other processes, want more processes, and splits that take turns.
    """
    if not first.frames_per_s:
        return [_FEWER_ENVS, _WORKERS, _SPLITS, _MORE_ENVS]
    if best.busy >= BUSY:
        return [_MORE_ENVS, _SPLITS, _FEWER_ENVS, _WORKERS]
    if best.sizes.env_backend == "subproc":  # a single split steps all of its processes at once
        return [_SPLITS, _MORE_ENVS, _FEWER_ENVS, _WORKERS]
    before = [_PROCESSES] if first.is_slow else []
    return [*before, _MORE_ENVS, _FEWER_ENVS, _WORKERS, _SPLITS]


def _more_envs(best: Sizes, limits: Limits) -> Iterator[Sizes]:
    number = best.num_envs_per_worker
    while "num_envs_per_worker" not in limits.fixed:
        number *= 4 if number <= 4 else 2
        if number * best.num_workers > limits.most_envs:
            return
        yield best._replace(num_envs_per_worker=number)


def _fewer_envs(best: Sizes, limits: Limits) -> Iterator[Sizes]:
    number = best.num_envs_per_worker // 2
    while "num_envs_per_worker" not in limits.fixed and number >= best.worker_num_splits:
        yield best._replace(num_envs_per_worker=number - number % best.worker_num_splits)
        number //= 2


def _other_workers(best: Sizes, limits: Limits) -> Iterator[Sizes]:
    if "num_workers" in limits.fixed:
        return
    cores = limits.cores
    for number in (2 * cores, cores, max(1, cores - 1), 4 * cores):
        envs = best.num_envs_per_worker
        if "num_envs_per_worker" not in limits.fixed:  # as many environments in all
            share = max(1, round(best.num_envs / number / best.worker_num_splits))
            envs = share * best.worker_num_splits
        candidate = best._replace(num_workers=number, num_envs_per_worker=envs)
        if candidate.num_envs <= max(limits.most_envs, best.num_envs):
            yield candidate


def _other_splits(best: Sizes, limits: Limits) -> Iterator[Sizes]:
    if "worker_num_splits" not in limits.fixed:
        splits = 1 if best.worker_num_splits > 1 else 2
        if best.num_envs_per_worker % splits == 0:
            yield best._replace(worker_num_splits=splits)


def _processes(best: Sizes, limits: Limits) -> Iterator[Sizes]:
    if "env_backend" not in limits.fixed and best.env_backend == "serial" and not limits.has_engine:
        yield best._replace(env_backend="subproc")


_MORE_ENVS = Direction(_more_envs, has_summit=True, is_tried_again=True)
_FEWER_ENVS = Direction(_fewer_envs, has_summit=True)
_WORKERS, _SPLITS, _PROCESSES = Direction(_other_workers), Direction(_other_splits), Direction(_processes)
