"""Which core a worker runs on and how many threads it computes with.

An actor whose environments are engines, processes that work in lock step with it, is pinned to one core and they with
it: a ViZDoom worker pinned together with its engine steps three times as fast as one left to the scheduler. All others
are left to the scheduler, which moves them to whatever core waits: on two cores, CartPole with pinned actors left a
sixth of the machine idle and made 34k frames per second against 42k.

Where such actors only play, and no learner moves from core to core, policy workers have cores of their own: whoever
computes for milliseconds on the core of an actor delays each of the hundreds of hand-overs between it and its engines.
On two cores doom_basic played 12.0k frames per second that way against 9.0k; with a learner it made 4.8k against 6.4k.
"""

from __future__ import annotations

from typing import NamedTuple

from utils.processes import usable_cores


class Placement(NamedTuple):
    """Where one worker runs."""

    cores: tuple[int, ...]  # empty: anywhere
    threads: int
    niceness: int
    gpu: int | None = None  # the only one that an actor's simulator may see


def place_actor(
    index: int, pinned: bool, niceness: int, gpus: tuple[int, ...] = (), taken: tuple[int, ...] = ()
) -> Placement:
    """One core per actor, in turn, none that is `taken`; one GPU for its environments where any are to be used."""
    cores = [core for core in usable_cores() if core not in taken]
    gpu = gpus[index % len(gpus)] if gpus else None
    return Placement((cores[index % len(cores)],) if pinned else (), threads=1, niceness=niceness, gpu=gpu)


def place_torch_worker(threads: int, sharing: int, niceness: int) -> Placement:
    """`threads` threads, or a fair share of the cores when that is 0; `sharing` workers compute at the same time."""
    chosen = threads or max(1, min(8, len(usable_cores()) // (2 * max(1, sharing))))
    return Placement((), chosen, niceness)


def apart(place: Placement, count: int) -> list[Placement]:
    """Cores of their own for `count` torch workers, one for each thread; none where that leaves none to others."""
    cores, each = usable_cores(), place.threads
    if count * each >= len(cores):
        return [place] * count
    return [place._replace(cores=tuple(cores[each * i : each * (i + 1)])) for i in range(count)]
