"""Which core a worker runs on and how many threads it computes with.

An actor whose environments are engines, processes that work in lock step with it, is pinned to one core and they with
it: a ViZDoom worker pinned together with its engine steps three times as fast as one left to the scheduler. All others
are left to the scheduler, which moves them to whatever core waits: on two cores, CartPole with pinned actors left a
sixth of the machine idle and made 34k frames per second against 42k.

Where such actors only play, and no learner moves from core to core, policy workers have cores of their own: whoever
computes for milliseconds on the core of an actor delays each of the hundreds of hand-overs between it and its engines.
On two cores doom_basic played 12.0k frames per second that way against 9.0k; with a learner it made 4.8k against 6.4k.

On two cores where something is learned on the CPU, actors with engines and policy workers keep to one core while the
learner, which computes with one thread, trains. Then nobody takes turns with the learner, whose data would be out of
the caches each time; and since the others share a core, they lose nothing by waiting for each other: every batch of
actions is for all of them. Where the learner always has a batch, as in float32, doom_basic made 4965 frames per second
that way, and 4013 with policy worker and actors on both cores (1.25, with 95 % confidence 1.17 to 1.34). Whenever the
learner sleeps, policy workers compute on its core: where it slept for 0.45 of the time, as in bf16, that made 1.17 of
the frames. Where it sleeps even so for half of the time, actors are what everyone waits for, and all spread over both.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from algorithms.memory.counters import Timer
from algorithms.memory.layout import SharedArrays
from utils.processes import move_this_thread, move_to_cores, usable_cores

LOOK_EVERY_S = 5.0
_BUSY, _STARVED = 0.1, 0.5  # share of its time that a learner waits for batches: below, above
_OF_LEARNERS = [timer for timer in Timer if timer.name.startswith("LEARNER")]


class Placement(NamedTuple):
    """Where one worker runs."""

    cores: tuple[int, ...]  # empty: anywhere
    threads: int
    niceness: int
    gpu: int | None = None  # the only one that an actor's simulator may see
    beside: tuple[int, ...] = ()  # where it runs while the learner needs the other cores; empty: as ever


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


def beside_learner(threads: int) -> tuple[int, ...]:
    """What a learner of so many threads leaves to all others, where that is known to be best; else nothing."""
    cores = usable_cores()
    return tuple(cores[1:]) if threads == 1 and len(cores) == 2 else ()


class Retreat:
    """Keeps a worker, and what it started, off the learner's core while the learner has enough to train on."""

    def __init__(self, arrays: SharedArrays, placement: Placement) -> None:
        """For a worker that runs on `placement.cores` now; does nothing where there is no place to retreat to."""
        self._timers = arrays["timers"]
        self._beside, self._anywhere = placement.beside, placement.cores or tuple(usable_cores())
        self._next_look = time.monotonic() + LOOK_EVERY_S if placement.beside else float("inf")
        self._before = self._spent()
        self.is_on = False

    def follow(self) -> None:
        """Retreat, or come back, if it is time."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        waited, total = self._spent()
        waiting, in_all = waited - self._before[0], total - self._before[1]
        if in_all == 0.0:  # it computes, and tells when it is done
            return
        self._before = waited, total
        if min(waiting, in_all) < 0.0:  # a successor counts from zero
            return
        if self.is_on != (wanted := waiting < (_STARVED if self.is_on else _BUSY) * in_all):
            self.is_on = wanted
            move_to_cores(self._beside if wanted else self._anywhere)

    def _spent(self) -> tuple[float, float]:
        """Seconds that learners have waited for batches, and that they have spent in all."""
        of_learners = self._timers[:, _OF_LEARNERS].sum(0)
        return float(of_learners[_OF_LEARNERS.index(Timer.LEARNER_WAIT_BATCH)]), float(of_learners.sum())


class PolicyRetreat(Retreat):
    """The same for a policy worker, which computes on the learner's core whenever the learner sleeps."""

    def __init__(self, arrays: SharedArrays, placement: Placement, policy: int) -> None:
        """For one that acts for `policy` in the thread that calls."""
        super().__init__(arrays, placement)
        self._awaits_batch = arrays["awaits_batch"][policy : policy + 1]
        self._learners = tuple(core for core in usable_cores() if core not in placement.beside)
        self._stands_in = False

    @property
    def shares_core(self) -> bool:
        """With all of the actors."""
        return self.is_on and not self._stands_in

    def follow(self) -> None:
        """To be called before each batch: takes the learner's core, or leaves it, in microseconds."""
        super().follow()
        stands_in = self.is_on and bool(self._awaits_batch[0])
        if self._stands_in != stands_in:
            self._stands_in = stands_in
            if self.is_on:
                move_this_thread(self._learners if stands_in else self._beside)
