"""The job of each kind of worker: plain data, so that a process can start a worker without its libraries."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.workers.config import WorkersConfig
from appo.algorithms.workers.seeds import SeedKey, Seeds
from appo.envs.api import EnvSpec
from appo.envs.registry import ResolvedEnv


class RunPlan(NamedTuple):
    """What all jobs of a run are made of."""

    spec: EnvSpec
    env: ResolvedEnv
    family_options: Any
    sampling: SamplingConfig
    model: ModelConfig
    learning: LearningConfig
    auxiliary_options: Any
    workers: WorkersConfig
    device: str  # "cpu" or "cuda:N"
    seeds: Seeds
    checkpoint_dirs: list[Path]  # per policy
    load_kind: str
    keep_checkpoints: int
    best_metric: str  # by which a best checkpoint is picked
    sampler_only: bool
    hold_blocks: bool  # actors wait for the weights that their last rollout led to
    just_in_time: bool  # actors begin the next batch as late as keeps the learner busy
    videos: Path  # folder of the experiment's videos


@dataclass
class ActorJob:
    """Which environments an actor steps."""

    index: int
    num_actors: int
    env: ResolvedEnv
    family_options: Any
    sampling: SamplingConfig
    env_seed: int
    assignment_seed: int
    spec: EnvSpec  # of every environment, as it was found before the start

    @classmethod
    def of(cls, plan: RunPlan, index: int) -> ActorJob:
        """The work of one actor."""
        return cls(
            index=index,
            num_actors=plan.sampling.num_workers,
            env=plan.env,
            family_options=plan.family_options,
            sampling=plan.sampling,
            env_seed=plan.seeds.of(SeedKey.ENVIRONMENTS),
            assignment_seed=plan.seeds.of(SeedKey.ASSIGNMENT),
            spec=plan.spec,
        )


@dataclass
class PolicyJob:
    """Which policies a policy worker computes, and for which actors."""

    seeds: dict[int, int]  # by policy
    index: int  # among the workers of these policies
    num_workers: int  # of these policies
    spec: EnvSpec
    model: ModelConfig
    device: str

    @classmethod
    def of(cls, plan: RunPlan, first: int, index: int) -> PolicyJob:
        """The work of one policy worker; `first`: of the policies that it serves."""
        policies = range(first, min(first + plan.workers.served_together, plan.sampling.num_policies))
        seeds = {policy: plan.seeds.of(SeedKey.POLICY_WORKER, policy, index) for policy in policies}
        return cls(seeds, index, plan.workers.policy_workers_per_policy, plan.spec, plan.model, plan.device)


@dataclass
class OpponentJob:
    """Where past selves lie, and what plays them."""

    checkpoint_dirs: list[Path]  # per policy that learns
    spec: EnvSpec
    model: ModelConfig
    device: str
    seed: int

    @classmethod
    def of(cls, plan: RunPlan, seed: int) -> OpponentJob:
        """The work of the opponent worker."""
        return cls(plan.checkpoint_dirs, plan.spec, plan.model, plan.device, seed)


@dataclass
class EvaluationWorkerJob:
    """What is scored beside training, and how often."""

    num_policies: int
    every_s: float
    episodes: int  # of each evaluation
    num_envs: int  # at most
    first_env_id: int  # those before are training's
    worker_index: int  # those before are the actors'
    max_env_rebuilds: int
    drops_bad_data: bool
    deterministic: bool
    env: ResolvedEnv
    family_options: Any
    single_thread: bool
    spec: EnvSpec
    model: ModelConfig
    seed: int
    video_every_s: float  # 0: no videos
    videos: Path  # folder of the files

    @classmethod
    def of(cls, plan: RunPlan, seed: int) -> EvaluationWorkerJob:
        """The work of the evaluation worker."""
        workers = plan.workers
        # A step of ten costs a third more than one of five: most of it is the network's, whatever the rows.
        usual_envs = 5 if plan.env.family.has_engine else 10
        return cls(
            num_policies=plan.sampling.num_policies,
            every_s=workers.eval_every_sec,
            episodes=workers.eval_episodes,
            num_envs=workers.eval_envs or usual_envs,
            first_env_id=plan.sampling.num_workers * plan.sampling.num_envs_per_worker,
            worker_index=plan.sampling.num_workers,
            max_env_rebuilds=plan.sampling.max_env_rebuilds,
            drops_bad_data=plan.sampling.on_bad_env_data == "drop",
            deterministic=workers.eval_most_likely,
            env=plan.env,
            family_options=for_evaluation(plan.family_options, plan.env.family.evaluation),
            single_thread=plan.sampling.force_envs_single_thread,
            spec=plan.spec,
            model=plan.model,
            seed=seed % 2**31,
            video_every_s=workers.eval_video_every_sec,
            videos=plan.videos,
        )


def for_evaluation(family_options: Any, values: dict[str, Any]) -> Any:
    """A family's options with the values that it has for evaluation, see `EnvFamily.evaluation`."""
    names = {field.name for field in dataclasses.fields(family_options)}
    return dataclasses.replace(family_options, **{name: value for name, value in values.items() if name in names})


@dataclass
class LearnerJob:
    """Which policy is learned, how, and where it is kept."""

    policy: int
    spec: EnvSpec
    model: ModelConfig
    learning: LearningConfig
    device: str
    seed: int
    checkpoint_dir: Path
    load_kind: str
    keep_checkpoints: int
    auxiliary_options: Any
    hold_blocks: bool  # actors wait for the weights that their last rollout led to
    just_in_time: bool = False  # actors begin the next batch as late as keeps the learner busy
    sampler_only: bool = False
    snapshot_every_sec: float = 10.0
    max_bad_steps: int = 20
    best_metric: str = "reward"  # by which a best checkpoint is picked

    @classmethod
    def of(cls, plan: RunPlan, policy: int, seed: int) -> LearnerJob:
        """The work of one learner."""
        return cls(
            policy=policy,
            spec=plan.spec,
            model=plan.model,
            learning=plan.learning,
            device=plan.device,
            seed=seed,
            checkpoint_dir=plan.checkpoint_dirs[policy],
            load_kind=plan.load_kind,
            keep_checkpoints=plan.keep_checkpoints,
            auxiliary_options=plan.auxiliary_options,
            hold_blocks=plan.hold_blocks,
            just_in_time=plan.just_in_time,
            sampler_only=plan.sampler_only,
            snapshot_every_sec=plan.workers.snapshot_every_sec,
            max_bad_steps=plan.learning.max_bad_steps,
            best_metric=plan.best_metric,
        )

    @property
    def trajectories(self) -> int:
        """Rollouts of one agent that an iteration learns from."""
        return self.learning.trajectories_per_iteration


@dataclass
class ModelJob:
    """What is to be built, all of it on the CPU."""

    spec: EnvSpec
    model: ModelConfig
    learning: LearningConfig
    auxiliary_options: Any
    checkpoint_dirs: list[Path]  # of every policy that goes on from one; empty: none does
    load_kind: str
    best_metric: str
    num_policies: int
    policy_workers: int  # per policy
    frozen_policies: int
    available_mb: float  # what else the run needs is taken off
