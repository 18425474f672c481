"""From a configuration to memory, doorbells and the specification of every worker."""

from __future__ import annotations

import dataclasses
import logging
import math
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from appo.algorithms.evaluation.config import VIDEOS
from appo.algorithms.memory import layout
from appo.algorithms.memory.layout import SharedArrays, Sizes
from appo.algorithms.memory.weights import WeightsBuffer
from appo.algorithms.specs import action_spec, observation_tensors, observed
from appo.algorithms.train_config import TrainConfig, holds_blocks
from appo.algorithms.workers.core_sharing import placements, policies_per_worker
from appo.algorithms.workers.jobs import ModelJob, RunPlan
from appo.algorithms.workers.roster import KINDS, Roster
from appo.algorithms.workers.seeds import Seeds
from appo.algorithms.workers.worker import Bells, SharedMemoryHandle
from appo.algorithms.workers.worker_handle import WorkerSpec
from appo.envs.api import EnvSpec
from appo.envs.option_wrappers import dressed
from appo.envs.registry import ResolvedEnv, resolve, vectorised
from appo.utils.options import ConfigError
from appo.utils.processes import available_memory

# Measured: 55 descriptors in a driver of six workers, of which each has queues, pipes and a doorbell.
_DRIVER_DESCRIPTORS, _DESCRIPTORS_PER_WORKER = 32, 8
# Memory that must stay free beside the blocks: the processes themselves, of which workers share a part. An actor of
# CartPole has 11 MB of its own; simulators have more, which is not known before.
_MB_PER_ACTOR, _MB_PER_TORCH_WORKER = 20, 350
# Named, not imported: they load torch.
CHECK_MODEL = "appo.algorithms.workers.model_check:check_model"
REQUIRE_IMAGES = "appo.algorithms.evaluation.episode_video:require_images"

log = logging.getLogger(__name__)


class SharedResources(NamedTuple):
    """Everything that the workers of a run share."""

    arrays: SharedArrays
    weights: list[WeightsBuffer]
    snapshots: list[WeightsBuffer]
    bells: Bells
    roster: Roster

    def handle(self) -> SharedMemoryHandle:
        """For the start of a worker."""
        return SharedMemoryHandle.of(self.arrays, self.weights, self.snapshots)


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


def with_pooled_policies(config: TrainConfig, device: str) -> TrainConfig:
    """The configuration with the number of policies of each policy worker chosen where it is 0."""
    workers = config.workers
    if workers.policies_per_policy_worker:
        return config
    together = policies_per_worker(config.sampling.num_policies, workers.policy_workers_per_policy, device)
    return dataclasses.replace(config, workers=dataclasses.replace(workers, policies_per_policy_worker=together))


def sizes_of(config: TrainConfig, spec: EnvSpec) -> Sizes:
    """Every size of the shared arrays."""
    sampling, learning = config.sampling, config.learning
    rows = sampling.num_envs_per_worker // sampling.worker_num_splits * spec.agents_per_env
    trajectories = sampling.num_workers * sampling.worker_num_splits * rows
    return Sizes(
        actors=sampling.num_workers,
        splits=sampling.worker_num_splits,
        blocks=num_blocks(config, trajectories),
        rollout=learning.rollout,
        recurrence=learning.recurrence if learning.recurrence > 0 else learning.rollout,
        rows=rows,
        acting_policies=sampling.num_policies + sampling.frozen_policies,
        learning_policies=sampling.num_policies,
        processes=len(Roster.of(sampling, config.workers)),
        state_size=config.model.recurrent_state_size,
        observations=observation_tensors(observed(spec, config.model.critic_sees_time)),
        actions=action_spec(spec),
        reward_shaping=spec.reward_shaping,
        scripted_players=len(sampling.anchors),
    )


def check_memory(config: TrainConfig, sizes: Sizes) -> float:
    """The MB that are left for networks; refuses a run that this machine's memory cannot hold without them.

    Raises:
        ConfigError: with the sizes in MB and the options to lower.
    """
    blocks_mb = layout.total_bytes(sizes) / 1e6
    column_mb = sum(spec.nbytes for spec in layout.batch_arrays(sizes)) / 1e6 / (sizes.trajectories * sizes.blocks)
    staging_mb = 2 * config.learning.trajectories_per_iteration * column_mb * sizes.learning_policies
    with_torch = [KINDS[worker.kind].uses_torch for worker in Roster.of(config.sampling, config.workers).ids]
    processes_mb = sum(_MB_PER_TORCH_WORKER if uses_torch else _MB_PER_ACTOR for uses_torch in with_torch)
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


def allocate(config: TrainConfig, sizes: Sizes) -> SharedResources:
    """Allocate everything that the workers share."""
    roster = Roster.of(config.sampling, config.workers)
    blocks = sizes.actors * sizes.splits * sizes.blocks
    log.info("shared memory: %.1f MB in %d blocks", layout.total_bytes(sizes) / 1e6, blocks)
    weights = [WeightsBuffer.create(f"weights-{policy}") for policy in range(sizes.learning_policies)]
    snapshots = [WeightsBuffer.create(f"snapshot-{policy}") for policy in range(sizes.learning_policies)]
    arrays = SharedArrays.create(sizes)
    arrays["reward_shaping"][:] = [weight for _, weight in sizes.reward_shaping]
    return SharedResources(arrays, weights, snapshots, Bells(roster), roster)


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
        frozen_policies=config.sampling.frozen_policies,
        available_mb=available_mb,
    )


def resolved_env(config: TrainConfig) -> ResolvedEnv:
    """The environment of a run, as --env and --env_backend say.

    Raises:
        ConfigError: it has no such form.
    """
    env = resolve(config.env.env)
    return dressed(vectorised(env) if config.sampling.env_backend == "native" else env, config.env)


def plan_of(
    config: TrainConfig,
    spec: EnvSpec,
    device: str,
    checkpoint_dirs: Sequence[Path],
    seeds: Seeds,
) -> RunPlan:
    """What the jobs of a run are made of; `checkpoint_dirs`: one per policy."""
    run = config.run
    return RunPlan(
        spec=spec,
        env=resolved_env(config),
        family_options=config.family,
        sampling=config.sampling,
        model=config.model,
        learning=config.learning,
        auxiliary_options=config.auxiliary,
        workers=config.workers,
        device=device,
        seeds=seeds,
        checkpoint_dirs=list(checkpoint_dirs),
        load_kind=run.load_checkpoint_kind,
        keep_checkpoints=run.keep_checkpoints,
        best_metric=run.save_best_metric,
        sampler_only=run.sampler_only,
        hold_blocks=holds_blocks(config),
        just_in_time=is_just_in_time(config),
        videos=run.folder.absolute() / VIDEOS,
    )


def worker_specs(plan: RunPlan) -> list[WorkerSpec]:
    """Every worker of the run, in the order in which they are started."""
    roster = Roster.of(plan.sampling, plan.workers)
    placed = placements(plan, roster)
    return [
        WorkerSpec(worker, worker.name, roster.place(worker), kind.worker_class, kind.job(plan, worker), placed[worker])
        for name, kind in sorted(KINDS.items(), key=lambda entry: entry[1].starts)
        for worker in roster.of_kind(name)
    ]


def too_small_budget(config: TrainConfig, spec: EnvSpec, frames_before: int) -> str:
    """A warning where the frames that are left do not make one iteration; empty where they may.

    Args:
        config: of the run.
        spec: of its environment.
        frames_before: of earlier starts of the experiment.
    """
    run, learning, policies = config.run, config.learning, config.sampling.num_policies
    iteration = learning.batch_size * learning.num_batches_per_iteration
    left = run.train_for_env_steps - frames_before
    # At most: a step may be of several frames.
    if run.sampler_only or left * spec.agents_per_env >= iteration * policies:
        return ""
    before = f" leaves {left} frames, which" if frames_before else ""
    of_policies = f" of each of {policies} policies" if policies > 1 else ""
    return (
        f"train_for_env_steps={run.train_for_env_steps}{before} may be spent before this start learns anything: an "
        f"iteration{of_policies} takes {iteration} agent steps; type a larger --train_for_env_steps, or a smaller "
        "--batch_size"
    )
