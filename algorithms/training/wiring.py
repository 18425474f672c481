"""From a configuration to memory, doorbells and the recipe of every worker."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import resource
from typing import NamedTuple

import numpy as np

from algorithms.config import TrainConfig
from algorithms.memory import layout
from algorithms.memory.layout import SharedArrays, Sizes
from algorithms.memory.weights import WeightsBuffer
from algorithms.specs import action_spec, observation_tensors, observed
from algorithms.training.experiment import Experiment
from algorithms.workers.doorbells import Doorbell
from algorithms.workers.incarnations import Recipe
from algorithms.workers.jobs import ActorJob, LearnerJob, ModelJob, PolicyJob
from algorithms.workers.placement import apart, beside_learner, place_actor, place_torch_worker
from algorithms.workers.worker import Bells, SharedMemoryHandle
from envs.api import EnvSpec
from envs.registry import ResolvedEnv, resolve
from utils.options import ConfigError
from utils.processes import available_memory

# Measured: 55 descriptors in a driver of six workers, of which each has queues, pipes and a doorbell.
_DRIVER_DESCRIPTORS, _DESCRIPTORS_PER_WORKER = 32, 8
# Memory that must stay free beside the blocks: the processes themselves, of which workers share a part. An actor of
# CartPole has 11 MB of its own; simulators have more, which nobody knows before.
_MB_PER_ACTOR, _MB_PER_TORCH_WORKER = 20, 350
# Named, not imported: only the worker itself loads what it needs.
ACTOR = "algorithms.workers.actor_worker:ActorWorker"
POLICY_WORKER = "algorithms.workers.policy_worker:PolicyWorker"
LEARNER = "algorithms.workers.learner_worker:LearnerWorker"
CHECK_MODEL = "algorithms.workers.model_check:check_model"

_SEED_KINDS = ("env", "assignment", "policy_worker", "learner")

log = logging.getLogger(__name__)


class Seeds:
    """All randomness of a run, from one number; a resumed run draws other numbers than the first."""

    def __init__(self, seed: int, starts: int) -> None:
        """`starts`: how often the experiment was started before."""
        self._entropy = (seed, starts)

    def of(self, kind: str, *indices: int) -> int:
        """A seed for one worker."""
        key = (_SEED_KINDS.index(kind), *indices)
        sequence = np.random.SeedSequence(self._entropy, spawn_key=key)
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


class Wiring(NamedTuple):
    """Everything that the workers of a run share."""

    arrays: SharedArrays
    weights: list[WeightsBuffer]
    snapshots: list[WeightsBuffer]
    bells: Bells

    def handle(self) -> SharedMemoryHandle:
        """For the start of a worker."""
        return SharedMemoryHandle.of(self.arrays, self.weights, self.snapshots)


def holds_blocks(config: TrainConfig) -> bool:
    """Actors wait for the weights that their last rollout led to."""
    return not config.workers.async_rl or config.learning.num_minibatches_to_accumulate == 0


def is_just_in_time(config: TrainConfig) -> bool:
    """The next iteration at most is collected while the learner trains, and that as late as keeps the learner busy."""
    learning = config.learning
    is_within_one = 0 < learning.num_minibatches_to_accumulate <= learning.num_batches_per_iteration
    return config.workers.async_rl and is_within_one


def num_blocks(config: TrainConfig, trajectories: int) -> int:
    """Blocks of each split, K: they hold what may be under way to the learner, and one waits while the next is filled.

    Where the learner prepares its next iteration ahead, that one waits outside of the blocks. Where it has the next one
    collected just in time, none waits.

    `trajectories`: columns that one block of every split holds together.
    """
    if holds_blocks(config):
        return 1
    just_in_time = is_just_in_time(config)
    batches = config.learning.num_minibatches_to_accumulate
    if batches < 0:
        batches = 2 * config.learning.num_batches_per_iteration
    if config.learning.train_in_background_thread and not just_in_time:
        batches -= config.learning.num_batches_per_iteration
    columns = batches * config.learning.batch_size // config.learning.rollout
    return max(1 if just_in_time else 2, math.ceil(columns / trajectories))


def sizes_of(config: TrainConfig, spec: EnvSpec) -> Sizes:
    """Every size of the shared arrays."""
    sampling, learning = config.sampling, config.learning
    rows = sampling.num_envs_per_worker // sampling.worker_num_splits * spec.agents_per_env
    trajectories = sampling.num_workers * sampling.worker_num_splits * rows
    policy_workers = sampling.num_policies * config.workers.policy_workers_per_policy
    return Sizes(
        actors=sampling.num_workers,
        splits=sampling.worker_num_splits,
        blocks=num_blocks(config, trajectories),
        rollout=learning.rollout,
        recurrence=learning.recurrence if learning.recurrence > 0 else learning.rollout,
        rows=rows,
        policies=sampling.num_policies,
        processes=sampling.num_workers + policy_workers + sampling.num_policies,
        state_size=config.model.recurrent_state_size,
        observations=observation_tensors(observed(spec, config.model.critic_sees_time)),
        actions=action_spec(spec),
    )


def check_memory(config: TrainConfig, sizes: Sizes) -> float:
    """The MB that are left for networks; refuses a run that this machine's memory cannot hold without them.

    Raises:
        ConfigError: with the sizes in MB and the options to lower.
    """
    blocks_mb = layout.total_bytes(sizes) / 1e6
    trajectories = config.learning.batch_size * config.learning.num_batches_per_iteration / config.learning.rollout
    column_mb = sum(spec.nbytes for spec in layout.block_arrays(sizes)) / 1e6 / (sizes.trajectories * sizes.blocks)
    staging_mb = 2 * trajectories * column_mb * sizes.policies
    torch_workers = sizes.processes - sizes.actors
    processes_mb = sizes.actors * _MB_PER_ACTOR + torch_workers * _MB_PER_TORCH_WORKER
    needed_mb, available_mb = blocks_mb + staging_mb + processes_mb, available_memory() / 1e6
    if needed_mb > available_mb:
        raise ConfigError(
            f"this run needs about {needed_mb:.0f} MB ({blocks_mb:.0f} MB of rollouts, {staging_mb:.0f} MB of batches, "
            f"{processes_mb:.0f} MB of processes) and {available_mb:.0f} MB are available; lower num_workers, "
            "num_envs_per_worker, rollout, batch_size, num_batches_per_iteration or num_minibatches_to_accumulate"
        )
    return available_mb - needed_mb


def check_descriptors(sizes: Sizes) -> None:
    """Refuse a run whose driver may not open as many files as it would need; after `allow_many_descriptors`.

    Raises:
        ConfigError: with both numbers and what to do.
    """
    needed = _DRIVER_DESCRIPTORS + sizes.processes * _DESCRIPTORS_PER_WORKER
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        fitting = (allowed - _DRIVER_DESCRIPTORS) // _DESCRIPTORS_PER_WORKER - (sizes.processes - sizes.actors)
        remedy = f", or lower num_workers to {fitting}" if fitting > 0 else ""
        raise ConfigError(
            f"this run needs about {needed} open files for its {sizes.processes} workers and may open {allowed}; "
            f"raise the limit with ulimit -n {needed}{remedy}"
        )


def wire(config: TrainConfig, sizes: Sizes) -> Wiring:
    """Allocate everything that the workers share."""
    per_policy = config.workers.policy_workers_per_policy
    bells = Bells(
        actors=[Doorbell() for _ in range(sizes.actors)],
        policy_workers=[[Doorbell() for _ in range(per_policy)] for _ in range(sizes.policies)],
        learners=[Doorbell() for _ in range(sizes.policies)],
    )
    blocks = sizes.actors * sizes.splits * sizes.blocks
    log.info("shared memory: %.1f MB in %d blocks", layout.total_bytes(sizes) / 1e6, blocks)
    weights = [WeightsBuffer.create(f"weights-{policy}") for policy in range(sizes.policies)]
    snapshots = [WeightsBuffer.create(f"snapshot-{policy}") for policy in range(sizes.policies)]
    return Wiring(SharedArrays.create(sizes), weights, snapshots, bells)


def model_job(config: TrainConfig, spec: EnvSpec, device: str, available_mb: float) -> ModelJob:
    """What is built once before the run starts; `available_mb`: for networks."""
    run, policies = config.run, config.sampling.num_policies
    model = config.model if device == "cpu" else dataclasses.replace(config.model, precision="fp32")  # any CPU has that
    resumes = run.restart_behavior == "resume"
    return ModelJob(
        spec=spec,
        model=model,
        learning=config.learning,
        auxiliary_options=config.auxiliary,
        checkpoint_dirs=[run.checkpoint_dir(policy) for policy in range(policies)] if resumes else [],
        load_kind=run.load_checkpoint_kind,
        best_metric=run.save_best_metric,
        num_policies=policies,
        policy_workers=config.workers.policy_workers_per_policy,
        available_mb=available_mb,
    )


def actor_job(config: TrainConfig, env: ResolvedEnv, spec: EnvSpec, index: int, seeds: Seeds) -> ActorJob:
    """The work of one actor."""
    return ActorJob(
        index=index,
        env=env,
        family_options=config.family,
        sampling=config.sampling,
        num_actors=config.sampling.num_workers,
        env_seed=seeds.of("env"),
        assignment_seed=seeds.of("assignment"),
        spec=spec,
    )


def recipes(config: TrainConfig, spec: EnvSpec, device: str, experiment: Experiment, seeds: Seeds) -> list[Recipe]:
    """Every worker of the run, learners first: they take longest to start and everyone waits for their weights."""
    actors, per_policy = config.sampling.num_workers, config.workers.policy_workers_per_policy
    policies, niceness = config.sampling.num_policies, config.workers.default_niceness
    by_policy = range(policies)
    learner_place = place_torch_worker(config.workers.learner_threads, policies, niceness)
    policy_place = place_torch_worker(config.workers.policy_worker_threads, policies * per_policy, niceness)
    policy_places = [policy_place] * (policies * per_policy)
    env = resolve(config.env.env)
    is_pinned, gpus = config.workers.set_workers_cpu_affinity and env.family.has_engine, config.workers.actor_gpus
    if is_pinned and config.run.sampler_only and device == "cpu":
        policy_places = apart(policy_place, policies * per_policy)
    # Where learner and actors take turns, neither is in the other's way.
    is_learned_beside = is_pinned and device == "cpu" and policies == 1 and not holds_blocks(config)
    beside = beside_learner(learner_place.threads) if is_learned_beside and not config.run.sampler_only else ()
    taken = tuple(core for place in policy_places for core in place.cores)
    workers = []
    for policy in by_policy:
        learner = learner_job(config, spec, policy, device, experiment, seeds)
        process = actors + policies * per_policy + policy
        workers.append(Recipe(f"learner-{policy}", process, LEARNER, learner, learner_place))
    for policy, index in itertools.product(by_policy, range(per_policy)):
        seed = seeds.of("policy_worker", policy, index)
        job = PolicyJob(policy, index, per_policy, spec, config.model, device, seed)
        process = actors + policy * per_policy + index
        place = policy_places[policy * per_policy + index]._replace(beside=beside)
        workers.append(Recipe(f"policy-{policy}-{index}", process, POLICY_WORKER, job, place))
    for index in range(actors):
        actor_place = place_actor(index, is_pinned, niceness, gpus, taken)._replace(beside=beside)
        actor = actor_job(config, env, spec, index, seeds)
        workers.append(Recipe(f"actor-{index:02d}", index, ACTOR, actor, actor_place))
    return workers


def learner_job(
    config: TrainConfig, spec: EnvSpec, policy: int, device: str, experiment: Experiment, seeds: Seeds
) -> LearnerJob:
    """The work of one learner."""
    return LearnerJob(
        policy=policy,
        spec=spec,
        model=config.model,
        learning=config.learning,
        device=device,
        seed=seeds.of("learner", policy),
        checkpoint_dir=experiment.checkpoint_dir(policy),
        load_kind=config.run.load_checkpoint_kind,
        keep_checkpoints=config.run.keep_checkpoints,
        auxiliary_options=config.auxiliary,
        hold_blocks=holds_blocks(config),
        just_in_time=is_just_in_time(config),
        sampler_only=config.run.sampler_only,
        snapshot_every_sec=config.workers.snapshot_every_sec,
        max_bad_steps=config.learning.max_bad_steps,
        best_metric=config.run.save_best_metric,
    )
