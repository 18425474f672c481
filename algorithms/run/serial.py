"""Everything in one process, in turns: for debugging, for tests, for refactoring with bit-identical results.

The cores are those of the worker processes; only the caller differs. One round answers every open request,
steps every split once, and trains on every batch that is full. Nothing in a round depends on the clock, so two runs
with one seed are equal to the last bit.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from typing import Any, assert_never

import numpy as np
import psutil
import torch

from appo.algorithms.checkpoints import CheckpointError
from appo.algorithms.memory.blocks import count_blocks
from appo.algorithms.memory.collate import BatchAssembler
from appo.algorithms.memory.counters import Phase, WorkerCounters
from appo.algorithms.memory.request_table import PolicyRequests
from appo.algorithms.memory.settings import write_setting
from appo.algorithms.memory.weights import PolicyBuffers
from appo.algorithms.messages import (
    AdoptPolicy,
    Command,
    EpisodesFinished,
    MatchesFinished,
    ReplaceWorkers,
    Report,
    SaveCheckpoint,
    SetHyperparameters,
    Setting,
)
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.run.resources import SharedResources
from appo.algorithms.sampling.env_split import EnvSplit
from appo.algorithms.workers.actor_worker import FailureReporter, build_split, close_splits, fault_policy, tell_progress
from appo.algorithms.workers.batch_prefetcher import BatchPrefetcher
from appo.algorithms.workers.jobs import ActorJob, RunPlan
from appo.algorithms.workers.learner_core import LearnerCore, TrainingDiverged
from appo.algorithms.workers.opponents_core import OpponentsCore
from appo.algorithms.workers.placement import place_learner
from appo.algorithms.workers.policy_core import PolicyCore
from appo.algorithms.workers.process_launcher import RunFailed
from appo.algorithms.workers.roster import ACTOR, KINDS, LEARNER, OPPONENT_WORKER, POLICY_WORKER, WorkerId
from appo.algorithms.workers.seeds import SeedKey
from appo.envs.api import Decorrelation, EnvError, Repeatable, UnsupportedSpaceError
from appo.utils.options import ConfigError

log = logging.getLogger(__name__)


class SerialWorkerPool:
    """Actors, policy workers and learners as objects. Satisfies the driver's `WorkerPool`."""

    def __init__(self, plan: RunPlan, shared: SharedResources) -> None:
        """Builds everything; the first `poll` restores and resets."""
        # Not tried: sums of another number of threads are rounded otherwise, and a serial run repeats itself exactly.
        torch.set_num_threads(place_learner(plan.workers.learner_threads, 1, 0, plan.device).threads)
        self._arrays = shared.arrays
        self._reports: list[Report] = []
        self._is_sampling = True
        self._sampler_only = plan.sampler_only
        sampling = plan.sampling
        self._decorrelate = (
            sampling.decorrelate_envs_on_one_worker and sampling.decorrelate_experience_max_seconds > 0.0
        )
        self._rollout = plan.learning.rollout
        self._seed = plan.seeds.of(SeedKey.ENVIRONMENTS)
        self._counters = {
            worker: WorkerCounters(shared.arrays, place) for place, worker in enumerate(shared.roster.ids)
        }
        for counters in self._counters.values():
            counters.enter(Phase.STEP)
        self._learners: list[LearnerCore] = []
        self._prefetchers: list[BatchPrefetcher] = []
        self._policies: list[PolicyCore] = []
        for worker in shared.roster.of_kind(LEARNER):
            self._build_learner(plan, shared, worker)
        for worker in shared.roster.of_kind(POLICY_WORKER):
            self._build_policies(plan, shared, worker)
        self._opponents = [
            OpponentsCore(shared.arrays, KINDS[OPPONENT_WORKER].job(plan, worker), self._counters[worker])
            for worker in shared.roster.of_kind(OPPONENT_WORKER)
        ]
        self._splits: list[EnvSplit] = []
        self._jobs = [ActorJob.of(plan, worker.number) for worker in shared.roster.of_kind(ACTOR)]
        self._splits_per_actor = sampling.worker_num_splits

    def _build_learner(self, plan: RunPlan, shared: SharedResources, worker: WorkerId) -> None:
        arrays, policy, counters = shared.arrays, worker.policy, self._counters[worker]
        job = KINDS[LEARNER].job(plan, worker)

        def buffers_of(source: int) -> PolicyBuffers:
            self._learners[source].take_snapshot()  # of this moment, not of one that the clock chose
            return PolicyBuffers(shared.weights[source], shared.snapshots[source])

        learner = LearnerCore(
            arrays, shared.weights[policy], shared.snapshots[policy], counters, job, buffers_of=buffers_of
        )
        assembler = BatchAssembler(arrays, policy, job.trajectories, hold_blocks=job.hold_blocks)
        bell, staging = shared.bells.of(worker), [learner.staging()]
        self._learners.append(learner)
        self._prefetchers.append(BatchPrefetcher(assembler, staging, bell, lambda _: None, counters))

    def _build_policies(self, plan: RunPlan, shared: SharedResources, worker: WorkerId) -> None:
        arrays, job = shared.arrays, KINDS[POLICY_WORKER].job(plan, worker)
        for policy, seed in job.seeds.items():
            model = build_actor_critic(job.model, job.spec, job.device)
            inference = PolicyInference(model, arrays.sizes.trajectories, job.device, seed)
            requests = PolicyRequests(arrays, policy, worker.number, job.num_workers)
            counters, weights = self._counters[worker], shared.weights[policy]
            self._policies.append(PolicyCore(arrays, requests, weights, inference, counters, policy))

    def poll(self, timeout_s: float) -> list[Report]:
        """One round; the time plays no part.

        Raises:
            RunFailed: something in it failed, with its traceback.
        """
        del timeout_s
        try:
            if not self._splits:
                self._begin()
            elif self._is_sampling:
                self._answer()
                self._sample()
                self._train()
        except (EnvError, TrainingDiverged) as error:
            self._is_sampling = False
            raise RunFailed("".join(traceback.format_exception(error))) from error
        reports, self._reports = self._reports, []
        return reports

    def send_all(self, commands: Iterable[Command]) -> None:
        """Obey at once."""
        for command in commands:
            match command:
                case SaveCheckpoint():
                    self._reports.append(self._learners[command.policy].save(command))
                case SetHyperparameters():
                    self._learners[command.policy].set_hyperparameters(command)
                case AdoptPolicy():
                    self._learners[command.policy].adopt_policy(command)
                case _ if isinstance(command, Setting):
                    write_setting(self._arrays, command)
                case ReplaceWorkers():
                    pass  # there is one process, which is not blocked by another
                case _:
                    assert_never(command)

    def measure_memory(self) -> None:
        """All is one process, so each kind has all of its memory."""
        self._arrays["memory_mb"][:] = psutil.Process().memory_info().rss / 1e6

    def count_blocks(self) -> dict[str, int]:
        """How many blocks are in each state; every holder of one is in this process."""
        return count_blocks(self._arrays, set(), set())

    def stop_replacing(self) -> None:
        """Nothing can be replaced here: play no more rounds, in which something might fail."""
        self._is_sampling = False

    def lives(self, worker: WorkerId) -> bool:
        """All are here as long as this process is."""
        del worker
        return True

    def stop_sampling(self, timeout_s: float) -> list[Report]:
        """No more rounds."""
        del timeout_s
        self._is_sampling = False
        return []

    def stop(self, timeout_s: float) -> list[Report]:
        """Close the environments."""
        del timeout_s
        close_splits(self._splits)
        reports, self._reports = self._reports, []
        return reports

    def state(self) -> dict[str, Any]:
        """Where all random numbers stand. Episodes begin anew after a resume, each with its own beginning."""
        return {
            "serial": {
                "actions": [policy.inference.random_state for policy in self._policies],
                "opponents": [opponents.random_states for opponents in self._opponents],
                "assignments": [split.random_state for split in self._splits],
                "environments": [
                    split.env.randomness() if isinstance(split.env, Repeatable) else [] for split in self._splits
                ],
            }
        }

    def _begin(self) -> None:
        try:
            restored = [learner.restore() for learner in self._learners]
        except CheckpointError as error:
            raise RunFailed(str(error)) from error
        self._reports += restored
        try:
            self._build_splits()
        except (ConfigError, UnsupportedSpaceError) as error:
            raise RunFailed(str(error)) from error
        for split in self._splits:
            if isinstance(split.env, Repeatable):
                split.env.remember_randomness()
        state = self._take_up_randomness(restored[0].run_state.get("serial"))
        for position, split in enumerate(self._splits):
            rng = np.random.default_rng([self._seed, position])
            # The clock plays no part, so it cannot limit how long this takes: few steps do.
            how = Decorrelation(rng, self._rollout) if self._decorrelate and state is None else None
            is_started = split.start(how)
            assert is_started, "blocks of a new run are free"

    def _build_splits(self) -> None:
        for job in self._jobs:
            reporter = FailureReporter("", self._reports.append)
            faults = fault_policy(job.sampling, WorkerCounters(self._arrays, job.index), reporter)
            for index in range(self._splits_per_actor):
                self._splits.append(build_split(self._arrays, job, index, 0, faults))

    def _take_up_randomness(self, state: Any) -> Any:
        """The state of all random numbers that a checkpoint kept; None: it kept none that can be taken up."""
        if state is None:
            return None
        try:
            if not self._fits(state):
                log.info("other policies or environments than before the resume: their random numbers begin anew")
                return None
            self._restore_randomness(state)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            log.warning("random numbers are drawn anew: those of the checkpoint cannot be taken up (%r)", error)
            return None
        return state

    def _fits(self, state: dict[str, Any]) -> bool:
        """As many policies, splits and environments as now."""
        if len(state["actions"]) != len(self._policies) or len(state["environments"]) != len(self._splits):
            return False
        frozen = [len(states) for states in state.get("opponents", [])]
        if frozen != [opponents.num_frozen for opponents in self._opponents]:
            return False
        pairs = zip(state["environments"], self._splits, strict=True)
        return all(len(environments) in (0, split.env.num_envs) for environments, split in pairs)

    def _restore_randomness(self, state: dict[str, Any]) -> None:
        for policy, actions in zip(self._policies, state["actions"], strict=True):
            policy.inference.random_state = actions
        for opponents, states in zip(self._opponents, state.get("opponents", []), strict=True):
            opponents.random_states = states
        for split, assignment, environments in zip(
            self._splits, state["assignments"], state["environments"], strict=True
        ):
            split.random_state = assignment
            if environments and isinstance(split.env, Repeatable):
                split.env.restore_randomness(environments)

    def _answer(self) -> None:
        for policy in self._policies:
            slabs = policy.requests.open()
            if len(slabs) and policy.adopt_newest():
                policy.answer(slabs)
        for opponents in self._opponents:
            self._reports += opponents.load_new()
            opponents.answer()

    def _sample(self) -> None:
        finished: list[Any] = []
        for split in self._splits:
            if split.waits_for_block:
                split.try_next_block()
            elif split.is_answered():
                completed = split.completed
                finished += split.advance()
                if split.completed > completed:
                    tell_progress(split.env, int(self._arrays["run_env_frames"][0]))
        if finished:
            self._reports.append(EpisodesFinished(finished))
        if matches := [match for split in self._splits for match in split.pop_matches()]:
            self._reports.append(MatchesFinished(matches))

    def _train(self) -> None:
        for learner, prefetcher in zip(self._learners, self._prefetchers, strict=True):
            if self._sampler_only:
                prefetcher.drop_ready(timeout_s=0.0)
            elif (staging := prefetcher.next(0.0)) is not None:
                self._reports += [learner.train(staging), *learner.pop_reports()]
                prefetcher.done(staging)
