"""What each kind of worker is told to do; plain data, so that whoever starts a worker need not import its libraries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms.learning.config import LearningConfig
from algorithms.models.config import ModelConfig
from algorithms.sampling.config import SamplingConfig
from envs.api import EnvSpec
from envs.registry import ResolvedEnv


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


@dataclass
class PolicyJob:
    """Which policy a policy worker computes, and for which actors."""

    policy: int
    index: int  # among the workers of this policy
    num_workers: int
    spec: EnvSpec
    model: ModelConfig
    device: str
    seed: int


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

    @property
    def trajectories(self) -> int:
        """Trajectories in one iteration."""
        return self.learning.batch_size * self.learning.num_batches_per_iteration // self.learning.rollout


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
    available_mb: float  # what else the run needs is taken off
