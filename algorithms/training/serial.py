"""Everything in one process, in turns: for debugging, for tests, for refactoring with bit-identical results.

The cores are those of the worker processes; only who calls them differs. One round answers every open request,
steps every split once, and trains on every batch that is full. Nothing in a round depends on the clock, so two runs
with one seed are equal to the last bit.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

import numpy as np
import psutil
import torch

from algorithms.checkpoints import CheckpointError
from algorithms.config import TrainConfig
from algorithms.memory.blocks import count_blocks
from algorithms.memory.collate import BatchAssembler
from algorithms.memory.counters import Phase, WorkerCounters
from algorithms.memory.request_table import PolicyRequests
from algorithms.messages import Command, EpisodesFinished, Report
from algorithms.models.actor_critic import build_actor_critic
from algorithms.models.inference import PolicyInference
from algorithms.sampling.env_split import EnvSplit
from algorithms.training import wiring
from algorithms.training.config import torch_device
from algorithms.training.experiment import Experiment
from algorithms.workers.actor_worker import build_split, close_splits, fault_keeper, tell_progress
from algorithms.workers.batch_feeder import BatchFeeder
from algorithms.workers.launch_pad import RunFailed
from algorithms.workers.learner_core import LearnerCore, TrainingDiverged
from algorithms.workers.placement import place_torch_worker
from algorithms.workers.policy_core import PolicyCore
from algorithms.workers.restarts import Kind
from envs.api import Decorrelation, EnvError, EnvSpec, Repeatable, UnsupportedSpaceError
from envs.registry import resolve
from utils.options import ConfigError

log = logging.getLogger(__name__)


class SerialWorkforce:
    """Actors, policy workers and learners as objects. Satisfies the driver's `Workforce`."""

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, wires: wiring.Wiring, experiment: Experiment, seeds: wiring.Seeds
    ) -> None:
        """Builds everything; the first `poll` restores and resets."""
        torch.set_num_threads(place_torch_worker(config.workers.learner_threads, 1, 0).threads)
        self._arrays = wires.arrays
        self._reports: list[Report] = []
        self._is_sampling = True
        self._sampler_only = config.run.sampler_only
        sampling = config.sampling
        self._decorrelate = (
            sampling.decorrelate_envs_on_one_worker and sampling.decorrelate_experience_max_seconds > 0.0
        )
        self._rollout = config.learning.rollout
        self._seed = seeds.of("env")
        actors, policies = config.sampling.num_workers, config.sampling.num_policies
        counters = [WorkerCounters(wires.arrays, process) for process in range(wires.arrays.sizes.processes)]
        for counter in counters:
            counter.enter(Phase.STEP)
        device = torch_device(config.run.device)
        self._learners: list[LearnerCore] = []
        self._feeders: list[BatchFeeder] = []
        self._policies: list[PolicyCore] = []
        for policy in range(policies):
            job = wiring.learner_job(config, spec, policy, device, experiment, seeds)
            weights, snapshot = wires.weights[policy], wires.snapshots[policy]
            of_learner = counters[actors + policies + policy]
            learner = LearnerCore(wires.arrays, weights, snapshot, of_learner, job)
            assembler = BatchAssembler(wires.arrays, policy, job.trajectories, hold_blocks=job.hold_blocks)
            bell, awaits_batch = wires.bells.learners[policy], wires.arrays["awaits_batch"][policy : policy + 1]
            self._learners.append(learner)
            feeder = BatchFeeder(assembler, [learner.staging()], bell, lambda _: None, of_learner, awaits_batch)
            self._feeders.append(feeder)
            inference = PolicyInference(
                build_actor_critic(config.model, spec, device),
                actors * wires.arrays.sizes.splits * wires.arrays.sizes.rows,
                device,
                seeds.of("policy_worker", policy, 0),
            )
            requests = PolicyRequests(wires.arrays, policy, 0, 1)
            own = counters[actors + policy]
            self._policies.append(PolicyCore(wires.arrays, requests, wires.weights[policy], inference, own, policy))
        self._splits: list[EnvSplit] = []
        env = resolve(config.env.env)
        self._jobs = [wiring.actor_job(config, env, spec, actor, seeds) for actor in range(actors)]
        self._splits_per_actor = config.sampling.worker_num_splits

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

    def send(self, name: str, command: Command) -> bool:
        """Obey at once."""
        learner = self._learners[int(name.removeprefix("learner-"))]
        self._reports.append(learner.save(command))
        return True

    def measure_memory(self) -> None:
        """All is one process, so each kind has all of its memory."""
        self._arrays["memory_mb"][:] = psutil.Process().memory_info().rss / 1e6

    def unblock(self, kind: Kind, why: str) -> None:
        """There is no other process that could hold this one up."""

    def count_blocks(self) -> dict[str, int]:
        """How many blocks are in each state; everybody who holds one is here."""
        return count_blocks(self._arrays, set(), set())

    def stop_replacing(self) -> None:
        """There is nobody else who could be replaced; no more rounds, in which something might fail."""
        self._is_sampling = False

    def lives(self, name: str) -> bool:
        """All are here as long as this process is."""
        del name
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
                "assignments": [split.assignment.random_state for split in self._splits],
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
            faults = fault_keeper(job.sampling, WorkerCounters(self._arrays, job.index))
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
        pairs = zip(state["environments"], self._splits, strict=True)
        return all(len(environments) in (0, split.env.num_envs) for environments, split in pairs)

    def _restore_randomness(self, state: dict[str, Any]) -> None:
        for policy, actions in zip(self._policies, state["actions"], strict=True):
            policy.inference.random_state = actions
        for split, assignment, environments in zip(
            self._splits, state["assignments"], state["environments"], strict=True
        ):
            split.assignment.random_state = assignment
            if environments and isinstance(split.env, Repeatable):
                split.env.restore_randomness(environments)

    def _answer(self) -> None:
        for policy in self._policies:
            slabs = policy.requests.open()
            if len(slabs) and policy.adopt_newest():
                policy.answer(slabs)

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

    def _train(self) -> None:
        for learner, feeder in zip(self._learners, self._feeders, strict=True):
            if self._sampler_only:
                feeder.drop_ready(timeout_s=0.0)
            elif (staging := feeder.next(0.0)) is not None:
                self._reports += [learner.train(staging), *learner.pop_reports()]
                feeder.done(staging)
