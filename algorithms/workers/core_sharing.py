"""What is particular to machines with few cores, where learner, policy workers and actors with engines share them.

Where such actors only play, and no learner moves from core to core, policy workers have cores of their own: what
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

from appo.algorithms.memory.counters import Timer
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.workers.jobs import RunPlan
from appo.algorithms.workers.placement import Placement, place_actor, place_torch_worker
from appo.algorithms.workers.roster import ACTOR, LEARNER, POLICY_WORKER, Roster, WorkerId
from appo.utils.processes import move_this_thread, move_to_cores, usable_cores

LOOK_EVERY_S = 5.0
_BUSY, _STARVED = 0.1, 0.5  # share of its time that a learner waits for batches: below, above
_OF_LEARNERS = [timer for timer in Timer if timer.name.startswith("LEARNER")]


def placements(plan: RunPlan, roster: Roster) -> dict[WorkerId, Placement]:
    """Where every worker of a run is to run."""
    workers, policies = plan.workers, plan.sampling.num_policies
    niceness, on_cpu = workers.default_niceness, plan.device == "cpu"
    servers = roster.of_kind(POLICY_WORKER)
    learner_place = place_torch_worker(workers.learner_threads, policies, niceness)
    server_places = [place_torch_worker(workers.policy_worker_threads, len(servers), niceness)] * len(servers)
    is_pinned = workers.set_workers_cpu_affinity and plan.env.family.has_engine
    if is_pinned and plan.sampler_only and on_cpu:
        server_places = dedicated_cores(server_places[0], len(servers))
    # Where learner and actors take turns, neither is in the other's way.
    shares_cores = is_pinned and on_cpu and policies == 1 and not plan.hold_blocks and not plan.sampler_only
    shared = shared_cores(learner_place.threads) if shares_cores else ()
    reserved = tuple(core for place in server_places for core in place.cores)
    placed = {worker: Placement((), 1, niceness) for worker in roster.ids}
    placed |= dict.fromkeys(roster.of_kind(LEARNER), learner_place)
    placed |= {s: place._replace(shared_cores=shared) for s, place in zip(servers, server_places, strict=True)}
    for actor in roster.of_kind(ACTOR):
        place = place_actor(actor.number, is_pinned, niceness, workers.actor_gpus, reserved)
        placed[actor] = place._replace(shared_cores=shared)
    return placed


def dedicated_cores(place: Placement, count: int) -> list[Placement]:
    """Cores of their own for `count` torch workers, one for each thread; none where that leaves none to others."""
    cores, each = usable_cores(), place.threads
    if count * each >= len(cores):
        return [place] * count
    return [place._replace(cores=tuple(cores[each * i : each * (i + 1)])) for i in range(count)]


def shared_cores(threads: int) -> tuple[int, ...]:
    """What a learner of so many threads leaves to all others, where that is known to be best; else nothing."""
    cores = usable_cores()
    return tuple(cores[1:]) if threads == 1 and len(cores) == 2 else ()


class CoreSharing:
    """Keeps a worker, and what it started, off the learner's core while the learner has enough to train on."""

    def __init__(self, arrays: SharedArrays, placement: Placement) -> None:
        """For a worker that runs on `placement.cores` now; does nothing where no cores are to be shared."""
        self._timers = arrays["timers"]
        self._shared_cores, self._anywhere = placement.shared_cores, placement.cores or tuple(usable_cores())
        self._next_look = time.monotonic() + LOOK_EVERY_S if placement.shared_cores else float("inf")
        self._before = self._spent()
        self.is_on = False

    def follow(self) -> None:
        """Move to the shared cores, or back, if it is time."""
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
            move_to_cores(self._shared_cores if wanted else self._anywhere)

    def _spent(self) -> tuple[float, float]:
        """Seconds that learners have waited for batches, and that they have spent in all."""
        of_learners = self._timers[:, _OF_LEARNERS].sum(0)
        return float(of_learners[_OF_LEARNERS.index(Timer.LEARNER_WAIT_BATCH)]), float(of_learners.sum())


class PolicyCoreSharing(CoreSharing):
    """The same for a policy worker, which computes on the learner's core whenever the learner sleeps."""

    def __init__(self, arrays: SharedArrays, placement: Placement, policy: int) -> None:
        """For one that acts for `policy` in the thread that calls."""
        super().__init__(arrays, placement)
        self._awaits_batch = arrays["awaits_batch"][policy : policy + 1]
        self._learners = tuple(core for core in usable_cores() if core not in placement.shared_cores)
        self._borrows_learner_core = False

    @property
    def shares_core(self) -> bool:
        """With all of the actors."""
        return self.is_on and not self._borrows_learner_core

    def follow(self) -> None:
        """To be called before each batch: takes the learner's core, or leaves it, in microseconds."""
        super().follow()
        borrows_learner_core = self.is_on and bool(self._awaits_batch[0])
        if self._borrows_learner_core != borrows_learner_core:
            self._borrows_learner_core = borrows_learner_core
            if self.is_on:
                move_this_thread(self._learners if borrows_learner_core else self._shared_cores)
