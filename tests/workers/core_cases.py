"""Actors, policy workers and learners as plain objects over real shared memory, taking turns in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np
import torch

from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.memory.collate import BatchAssembler
from appo.algorithms.memory.counters import WorkerCounters
from appo.algorithms.memory.layout import SharedArrays, Sizes
from appo.algorithms.memory.request_table import PolicyRequests, Slabs
from appo.algorithms.memory.weights import WeightsBuffer
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.specs import action_spec, observation_tensors
from appo.algorithms.train_config import NoOptions
from appo.algorithms.workers import actor_worker
from appo.algorithms.workers.actor_worker import build_split
from appo.algorithms.workers.jobs import ActorJob, LearnerJob
from appo.algorithms.workers.learner_core import LearnerCore
from appo.algorithms.workers.policy_core import PolicyCore
from appo.envs.api import Decorrelation
from appo.envs.registry import probe, resolve

ACTORS, SPLITS, ENVS_PER_SPLIT, ROLLOUT = 2, 2, 2, 8
SMALL_MODEL: dict[str, Any] = {
    "hidden_size": 16,
    "mlp_layers": "16",
    "encoder_extra_fc_layers": 0,
    "nonlinearity": "tanh",
}


def run_state(frames: int) -> dict[str, Any]:
    """What a driver without episodes keeps in a checkpoint."""
    episodes = {"finished": 0, "returns": [], "true_returns": [], "lengths": [], "extra": {}}
    return {"env_frames": frames, "train_seconds": 1.0, "episodes": episodes}


class Case:
    """What a run is made of."""

    def __init__(
        self,
        env: str,
        *,
        options: dict[str, Any] | None = None,
        policies: int = 1,
        frozen: int = 0,
        recurrence: int = ROLLOUT,
        blocks: int = 2,
        **model: Any,
    ) -> None:
        self.env, self.policies, self.frozen, self.recurrence = resolve(env), policies, frozen, recurrence
        self.family_options = self.env.family.config(**(options or {}))
        self.model = ModelConfig(**(SMALL_MODEL | model))
        self.spec = probe(self.env, self.family_options)
        self.name, self.blocks = env, blocks

    @property
    def columns(self) -> int:
        """Trajectories of a batch: neither a divisor nor a multiple of a block's columns."""
        return 3 * ENVS_PER_SPLIT * self.spec.agents_per_env // 2 + 2

    def learning(self, **options: Any) -> LearningConfig:
        values = {"rollout": ROLLOUT, "batch_size": self.columns * ROLLOUT, "recurrence": self.recurrence}
        return LearningConfig(**(values | {"with_vtrace": self.recurrence == ROLLOUT} | options))

    def sizes(self) -> Sizes:
        return Sizes(
            actors=ACTORS,
            splits=SPLITS,
            blocks=self.blocks,
            rollout=ROLLOUT,
            recurrence=self.recurrence,
            rows=ENVS_PER_SPLIT * self.spec.agents_per_env,
            acting_policies=self.policies + self.frozen,
            learning_policies=self.policies,
            processes=ACTORS + 2 * self.policies + self.frozen,
            state_size=self.model.recurrent_state_size,
            observations=observation_tensors(self.spec.observations),
            actions=action_spec(self.spec),
        )


def make_decided(learner: LearnerCore) -> None:
    """New networks are almost indifferent, whatever they see or remember: give this one opinions."""
    generator = torch.Generator().manual_seed(learner.job.seed)
    with torch.no_grad():
        for weight in learner._model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator).to(weight.device), alpha=0.3)
    learner.publish()


class Player(Protocol):
    """Who answers the requests of one policy."""

    requests: PolicyRequests
    inference: PolicyInference

    def adopt_newest(self) -> bool: ...

    def answer(self, slabs: Slabs) -> None: ...


class Turns:
    """A run in which everybody acts in turns, answering requests in random groups."""

    def __init__(
        self,
        case: Case,
        folder: Path,
        *,
        seed: int = 0,
        with_splits: bool = True,
        device: str = "cpu",
        **learning: Any,
    ) -> None:
        self.case, self.rng, self.device = case, np.random.default_rng(seed), device
        sizes = case.sizes()
        self.arrays = SharedArrays.create(sizes)
        self.arrays["opponents"][:, 0] = self.arrays["opponents_loaded"][:] = 1  # frozen policies are there
        self.arrays["opponent_shares"][:] = 1.0
        self.weights = [WeightsBuffer.create(f"weights-{policy}") for policy in range(sizes.acting_policies)]
        self.snapshots = [WeightsBuffer.create(f"snapshot-{policy}") for policy in range(case.policies)]
        counters = [WorkerCounters(self.arrays, process) for process in range(sizes.processes)]
        self.learners: list[LearnerCore] = []
        self.policies: list[Player] = []
        self.assemblers: list[BatchAssembler] = []
        for policy in range(case.policies):
            job = self.learner_job(policy, folder, **learning)
            learner = LearnerCore(self.arrays, self.weights[policy], self.snapshots[policy], counters[-1], job)
            learner.restore()
            make_decided(learner)
            self.learners.append(learner)
            self.assemblers.append(BatchAssembler(self.arrays, policy, case.columns, hold_blocks=False))
        for policy, weights in enumerate(self.weights):
            if policy >= case.policies:  # frozen: as the first one began
                weights.publish(self.learners[0]._flat.detach().cpu().numpy(), 0)
            model = build_actor_critic(case.model, case.spec, device)
            inference = PolicyInference(model, sizes.trajectories, device, policy)
            requests = PolicyRequests(self.arrays, policy, 0, 1)
            own = counters[ACTORS + policy]
            self.policies.append(PolicyCore(self.arrays, requests, weights, inference, own, policy))
        self.stagings = [learner.staging() for learner in self.learners]
        cells = [(actor, split) for actor in range(ACTORS) for split in range(SPLITS)] if with_splits else []
        with mock.patch.object(actor_worker, "ROLLOUTS_PER_DRAW", 0):  # players change as often as they can
            self.splits = [build_split(self.arrays, self.actor_job(actor), split, 0) for actor, split in cells]
        for split in self.splits:
            split.start(Decorrelation(self.rng, ROLLOUT))
        self.episodes = 0

    def learner_job(self, policy: int, folder: Path, **learning: Any) -> LearnerJob:
        return LearnerJob(
            policy=policy,
            spec=self.case.spec,
            model=self.case.model,
            learning=self.case.learning(**learning),
            device=self.device,
            seed=10 + policy,
            checkpoint_dir=folder / str(policy),
            load_kind="latest",
            keep_checkpoints=2,
            auxiliary_options=NoOptions(),
            hold_blocks=False,
        )

    def actor_job(self, actor: int) -> ActorJob:
        sampling = SamplingConfig(
            num_workers=ACTORS,
            num_envs_per_worker=SPLITS * ENVS_PER_SPLIT,
            worker_num_splits=SPLITS,
            policy_change_episodes=1,
            num_policies=self.case.policies,
            self_play=self.case.frozen > 0,
            self_play_pool_size=max(1, self.case.frozen // self.case.policies),
            self_play_anchors="",
        )
        return ActorJob(actor, ACTORS, self.case.env, self.case.family_options, sampling, 5, 6, self.case.spec)

    def turn(self) -> None:
        """Some open requests are answered by each policy, every split that can goes on."""
        for policy in self.policies:
            slabs = policy.requests.open()
            chosen = self.rng.permutation(np.flatnonzero(self.rng.random(len(slabs)) < 0.7))
            if len(chosen):
                assert policy.adopt_newest()
                policy.answer(Slabs(*(np.asarray(part)[chosen] for part in slabs)))
        for split in self.splits:
            if split.waits_for_block:
                split.try_next_block()
            elif split.is_answered():
                self.episodes += len(split.advance())

    def next_batch(self, policy: int) -> Batch:
        """A full batch of one policy, copied; the other policies let go of what they could use."""
        while not self.assemblers[policy].fill(self.stagings[policy]):
            self.turn()
            for other, assembler in enumerate(self.assemblers):
                if other != policy:
                    assembler.fill(self.stagings[other])
        batch = self.learners[policy]._batch(self.stagings[policy])
        fields = {name: value.clone() for name, value in batch._asdict().items() if isinstance(value, torch.Tensor)}
        return batch._replace(observations={k: v.clone() for k, v in batch.observations.items()}, **fields)

    def close(self) -> None:
        for split in self.splits:
            split.close()
