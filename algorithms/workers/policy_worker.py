"""The policy worker: computes actions in batches for one policy, or for several, each with a network of its own."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from appo.algorithms.memory.counters import Timer
from appo.algorithms.memory.request_table import JointRequests, PolicyRequests
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.workers.core_sharing import CoreSharing
from appo.algorithms.workers.jobs import PolicyJob
from appo.algorithms.workers.policy_core import PolicyCore, StateReplay
from appo.algorithms.workers.worker import LONGEST_SLEEP_S, Worker
from appo.utils.doorbells import Doorbell
from appo.utils.processes import keep_freed_memory

# How long the first request may wait for others to join its batch. Longer than it takes all splits of an awake actor to
# ask; far shorter than a forward pass of a pixel network. Each wait without a bell is rounded up to a whole millisecond
# by poll.
BATCH_TIMEOUT_S = 0.0005
# The same where actors and policy worker share a core, so that an actor cannot step while the policy worker computes:
# longer than it takes all of them to ask.
BATCH_TIMEOUT_ON_SHARED_CORE_S = 0.02
# For so long no batch waits again for splits that did not come: their actor is away, or an environment is slow.
ABSENT_FOR_S = 1.0


class PolicyWorker(Worker):
    """Answers requests for actions; computes no gradient and steps no environment.

    Reads:   asked counters and observations (actors), published weights, timers (learner)
    Writes:  actions, log-probabilities, values, recurrent states into blocks; answered counters
    """

    job: PolicyJob

    def setup(self) -> None:
        """Build the network. Its weights come from the learner, later."""
        torch.set_num_threads(self.start.placement.threads)
        keep_freed_memory()
        job, sizes = self.job, self.arrays.sizes
        self._cores: list[tuple[PolicyCore, StateReplay]] = []
        for policy, seed in job.seeds.items():
            model = build_actor_critic(job.model, job.spec, job.device)
            # A successor draws other actions than its predecessor drew.
            seed += self.start.generation
            inference = PolicyInference(model, sizes.actors * sizes.splits * sizes.rows, job.device, seed)
            requests = PolicyRequests(self.arrays, policy, job.index, job.num_workers)
            weights = self.start.memory.open_weights(policy)
            core = PolicyCore(self.arrays, requests, weights, inference, self.counters, policy)
            self._cores.append((core, StateReplay(core, sizes)))
        self._requests: WaitingRequests = requests
        if len(job.seeds) > 1:
            policies = range(min(job.seeds), max(job.seeds) + 1)
            self._requests = JointRequests(self.arrays, policies, job.index, job.num_workers)
        self._has_answered = True
        self._core_sharing = CoreSharing(self.arrays, self.start.placement)
        self._batcher = DynamicBatcher(self._requests)

    def step(self) -> None:
        """Answer everything that waits, in one batch for each policy."""
        self._wait_for_requests()
        actors: set[int] = set()
        for core, replay in self._cores:
            slabs = core.requests.open()
            if not len(slabs) or not core.adopt_newest():
                continue
            if self.start.generation > 0:
                replay.before(slabs)
            core.answer(slabs)
            actors.update(slabs.actor.tolist())
        for actor in actors:
            self.bells.actors[actor].ring()
        self._has_answered = bool(actors)

    def _wait_for_requests(self) -> None:
        requests = self._requests
        # What the last round left open waits for a policy's first weights; their learner rings.
        if not requests.count() or not self._has_answered:
            self.bells.own.wait(LONGEST_SLEEP_S)
        self._core_sharing.follow()
        self._batcher.shares_core = self._core_sharing.is_on
        wait_for_batch(requests, self._batcher, self.bells.own)
        self.counters.lap(Timer.POLICY_WAIT)


class WaitingRequests(Protocol):
    """The requests that one worker serves."""

    @property
    def num_splits(self) -> int:
        """Splits that can have a request open at one time."""

    def count(self) -> int:
        """Requests open now."""

    def count_without_block(self) -> int:
        """Splits that have filled all of their blocks."""


def wait_for_batch(requests: WaitingRequests, batcher: DynamicBatcher, bell: Doorbell) -> None:
    """Wait until as many requests are open as a batch should have, or until its time is over; not if none is open."""
    deadline = time.monotonic() + batcher.batch_timeout_s
    while 0 < (waiting := requests.count()) < batcher.size():
        if (left_s := deadline - time.monotonic()) <= 0:
            batcher.timed_out(waiting)
            break
        bell.wait(left_s)


class DynamicBatcher:
    """How many requests the first one waits for, and how long."""

    def __init__(self, requests: WaitingRequests) -> None:
        """Those of one worker."""
        self.shares_core = False  # with all of the actors
        self._requests = requests
        self._absent, self._absent_until = 0, 0.0

    @property
    def batch_timeout_s(self) -> float:
        """How long to wait at most."""
        return BATCH_TIMEOUT_ON_SHARED_CORE_S if self.shares_core else BATCH_TIMEOUT_S

    def size(self) -> int:
        """Requests to wait for."""
        if not self.shares_core:
            # Half of the splits step while the other half waits: more than that cannot ask at one time.
            return max(1, self._requests.num_splits // 2)
        absent = self._absent if time.monotonic() < self._absent_until else 0
        return max(1, self._can_come() - absent)

    def timed_out(self, waiting: int) -> None:
        """No more than these came."""
        if self.shares_core:  # elsewhere the others step, and are expected the next time
            self._absent = max(0, self._can_come() - waiting)
            self._absent_until = time.monotonic() + ABSENT_FOR_S

    def _can_come(self) -> int:
        return self._requests.num_splits - self._requests.count_without_block()
