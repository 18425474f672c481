"""What is particular to machines with few cores, where learner, policy workers and actors with engines share them.

Where such actors only play, and no learner moves from core to core, policy workers have cores of their own: what
computes for milliseconds on the core of an actor delays each of the hundreds of hand-overs between it and its engines.
On two cores doom_basic played 1.20 (with 95 % confidence 1.17 to 1.24) times as many frames that way; with a learner it
made 4.8k against 6.4k frames per second.

On two cores where something is learned on the CPU, actors with engines and policy workers keep to one core while the
learner, which computes with one thread, trains. Then no process takes turns with the learner, whose data would be out
of the caches each time; and since the others share a core, they lose nothing by waiting for each other: every batch of
actions is for all of them. Where the learner always has a batch, as in float32, doom_basic made 1.18 (1.13 to 1.23)
times the frames. In bf16 the learner is faster, so that the actors on their one core let it starve (0.97): then all
spread over both cores again, and it is long before that is tried once more.

Processes that share a core take turns, which costs more than it brings: where several policies compute on the CPU,
there are no more policy workers than cores, each for several policies.
"""

from __future__ import annotations

import math
import time

from appo.algorithms.memory.counters import PART_OF, Timer
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.workers.jobs import RunPlan
from appo.algorithms.workers.placement import Placement, place_actor, place_learner, place_policy_worker
from appo.algorithms.workers.roster import ACTOR, LEARNER, POLICY_WORKER, Roster, WorkerId
from appo.utils.processes import core_count, move_to_cores, usable_cores

LOOK_EVERY_S = 5.0
_BUSY, _STARVED = 0.1, 0.25  # share of its time that a learner waits for batches: below, above
TRY_AGAIN_S = 600.0
_OF_LEARNERS = [timer for timer in Timer if timer.name.startswith("LEARNER") and timer not in PART_OF]


def policies_per_worker(num_policies: int, workers_per_policy: int, device: str) -> int:
    """Policies per policy worker, so that those which compute on the CPU do not outnumber its cores."""
    cores = max(1, core_count() // workers_per_policy)
    return math.ceil(num_policies / cores) if device == "cpu" else 1


def placements(plan: RunPlan, roster: Roster) -> dict[WorkerId, Placement]:
    """Where every worker of a run is to run."""
    workers, policies = plan.workers, plan.sampling.num_policies
    niceness, on_cpu = workers.default_niceness, plan.device == "cpu"
    servers = roster.of_kind(POLICY_WORKER)
    learner_place = place_learner(workers.learner_threads, policies, niceness, plan.device)
    server_place = place_policy_worker(workers.policy_worker_threads, niceness)
    server_places = [server_place] * len(servers)
    is_pinned = workers.set_workers_cpu_affinity and plan.env.family.has_engine
    if servers and is_pinned and plan.sampler_only and on_cpu:
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
    if count * each >= core_count():
        return [place] * count
    return [place._replace(cores=tuple(cores[each * i : each * (i + 1)])) for i in range(count)]


def shared_cores(threads: int) -> tuple[int, ...]:
    """What a learner of so many threads leaves to all others, where that is known to be best; else nothing."""
    cores = usable_cores()
    return tuple(cores[1:]) if threads == 1 and len(cores) == core_count() == 2 else ()


class CoreSharing:
    """Keeps a worker, and what it started, off the learner's core while the learner has enough to train on."""

    def __init__(self, arrays: SharedArrays, placement: Placement) -> None:
        """For a worker that runs on `placement.cores` now; does nothing where no cores are to be shared."""
        self._timers = arrays["timers"]
        self._shared_cores, self._anywhere = placement.shared_cores, placement.cores or tuple(usable_cores())
        self._next_look = time.monotonic() + LOOK_EVERY_S if placement.shared_cores else float("inf")
        self._before = self._spent()
        self.is_on = False
        self._not_before = 0.0

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
        if self.is_on and waiting >= _STARVED * in_all:
            self.is_on, self._not_before = False, time.monotonic() + TRY_AGAIN_S
            move_to_cores(self._anywhere)
        elif not self.is_on and waiting < _BUSY * in_all and time.monotonic() >= self._not_before:
            self.is_on = True
            move_to_cores(self._shared_cores)

    def _spent(self) -> tuple[float, float]:
        """Seconds that learners have waited for batches, and that they have spent in all."""
        of_learners = self._timers[:, _OF_LEARNERS].sum(0)
        return float(of_learners[_OF_LEARNERS.index(Timer.LEARNER_WAIT_BATCH)]), float(of_learners.sum())
