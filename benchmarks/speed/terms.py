"""What one agent step costs, term by term, each measured alone on one core with the code that a run executes.

Every function here runs in a process of its own, pinned to one core, with one thread of torch. A term is core-seconds
per agent step. The environments of one actor are really played; what the policy worker answers and the learner trains
on are those rollouts, laid out as in a run.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from appo.algorithms.memory.blocks import LearnerBlocks
from appo.algorithms.memory.collate import BatchAssembler
from appo.algorithms.memory.counters import WorkerCounters
from appo.algorithms.memory.layout import SharedArrays, block_arrays
from appo.algorithms.memory.request_table import PolicyRequests
from appo.algorithms.memory.weights import WeightsBuffer
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.run import resources
from appo.algorithms.run.config import torch_device
from appo.algorithms.sampling.env_split import EnvSplit
from appo.algorithms.train_config import TrainConfig
from appo.algorithms.workers.actor_worker import build_split
from appo.algorithms.workers.jobs import ActorJob, LearnerJob
from appo.algorithms.workers.learner_core import LearnerCore
from appo.algorithms.workers.policy_core import PolicyCore
from appo.algorithms.workers.seeds import Seeds
from appo.envs.action_layout import random_actions
from appo.envs.adapters import step_arrays
from appo.envs.api import Decorrelation, EnvContext, EnvSpec, StepArrays
from appo.envs.option_wrappers import env_of
from appo.envs.registry import make_batch_env
from appo.utils.doorbells import Doorbell
from appo.utils.processes import keep_freed_memory, limit_native_threads, pin_to_cores, usable_cores

_SEEDS = Seeds(1, 0)
_MIN_REPETITIONS = 5


class EnvTerm(NamedTuple):
    """Environments alone."""

    seconds: float  # per agent step
    frames: float  # per agent step


def environment(config: TrainConfig, spec: EnvSpec, seconds: float) -> EnvTerm:
    """Step the environments of one actor with random actions, split after split, keeping nothing."""
    _settle()
    sizes, rng = resources.sizes_of(config, spec), np.random.default_rng(1)
    per_split = sizes.rows // spec.agents_per_env
    family = config.family
    batches = []
    for split in range(sizes.splits):
        places = range(split * per_split, (split + 1) * per_split)
        contexts = [EnvContext(0, place, place, per_split * sizes.splits, 1) for place in places]
        batches.append(make_batch_env(env_of(config.env), family, contexts))
    limit_native_threads()
    out = _scratch(sizes.rows, spec)
    drawn = itertools.cycle([random_actions(spec.actions, rng, sizes.rows) for _ in range(64)])
    for batch in batches:
        batch.reset(out)

    def play(limit_s: float) -> EnvTerm:
        steps, frames, began = 0, 0, time.perf_counter()
        while (took_s := time.perf_counter() - began) < limit_s or not steps:
            for batch in batches:
                batch.step(next(drawn), out)
                steps, frames = steps + sizes.rows, frames + int(out.frames.sum())
        return EnvTerm(took_s / steps, frames / steps)

    play(0.2 * seconds)
    term = play(seconds)
    for batch in batches:
        batch.close()
    return term


def with_bookkeeping(config: TrainConfig, spec: EnvSpec, seconds: float) -> float:
    """The same environments as an actor steps them, writing blocks; actions and free blocks come at once."""
    _settle()
    recording = Recording(config, spec)
    recording.answer_at_random(0.2 * seconds)
    began, steps = time.perf_counter(), recording.answer_at_random(seconds)
    took = time.perf_counter() - began
    recording.close()
    return took / (steps * recording.arrays.sizes.rows)


def inference(config: TrainConfig, spec: EnvSpec, seconds: float) -> float:
    """A policy worker answering one split of every actor at a time, gathering and scattering included."""
    _settle()
    recording = Recording(config, spec)
    recording.answer_at_random(0.2 * seconds)
    recording.spread()
    core, arrays = recording.policy_core(), recording.arrays
    sizes = arrays.sizes
    steps = iter(range(10**9))

    def answer() -> None:
        step = next(steps)
        arrays["request_step"][:, 0] = step % sizes.rollout
        arrays["asked"][:, 0] += 1
        core.answer(core.requests.open())

    per_batch = _median_time(answer, seconds)
    recording.close()
    return per_batch / (sizes.actors * sizes.rows)


class LearnerTerm(NamedTuple):
    """A learner alone."""

    train_s: float  # per agent step, all epochs
    collate_s: float  # per agent step: copying blocks into a batch


def learner(config: TrainConfig, spec: EnvSpec, seconds: float, folder: Path) -> LearnerTerm:
    """Train again and again on rollouts that were played by the first policy."""
    _settle()
    recording = Recording(config, spec)
    recording.play()
    core = recording.learner_core(folder)
    staging = core.staging()
    assembler = BatchAssembler(recording.arrays, 0, core.job.trajectories, hold_blocks=False)

    def collate() -> None:
        while not assembler.fill(staging):
            recording.offer_again()

    steps = core.job.trajectories * recording.arrays.sizes.rollout
    collate_s = _median_time(collate, 0.1 * seconds)
    train_s = _median_time(lambda: core.train(staging), seconds)
    recording.close()
    return LearnerTerm(train_s / steps, collate_s / steps)


def hand_over(seconds: float) -> float:
    """Seconds from ringing a doorbell to the other process being awake, both on the same machine, cores free."""
    there, back = Doorbell(), Doorbell()
    child = os.fork()
    if child == 0:
        while there.wait(5.0):
            back.ring()
        os._exit(0)
    pin_to_cores(usable_cores()[:1])

    def ping() -> None:
        there.ring()
        back.wait(5.0)

    round_trip = _median_time(ping, seconds)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return round_trip / 2.0


class Recording:
    """The shared memory of a whole run, in which the environments of one actor are played."""

    def __init__(self, config: TrainConfig, spec: EnvSpec) -> None:
        self._config, self._spec = config, spec
        self.arrays = SharedArrays.create(resources.sizes_of(config, spec))
        self._counters = WorkerCounters(self.arrays, 0)
        self._weights = WeightsBuffer.create("weights-0")
        job = ActorJob.of(resources.plan_of(config, spec, "cpu", [], _SEEDS), 0)
        self._splits: list[EnvSplit] = [build_split(self.arrays, job, i, 0) for i in range(self.arrays.sizes.splits)]
        limit_native_threads()
        for split in self._splits:
            split.start(Decorrelation(np.random.default_rng(1), config.learning.rollout))

    def close(self) -> None:
        """Close the environments."""
        for split in self._splits:
            split.close()

    def answer_at_random(self, seconds: float) -> int:
        """Play with random actions and blocks that are free at once; how many split steps."""
        arrays, rng, sizes = self.arrays, np.random.default_rng(2), self.arrays.sizes
        drawn = itertools.cycle([random_actions(self._spec.actions, rng, sizes.rows) for _ in range(64)])
        answers, width = arrays["answers"], sizes.actions.width
        steps, deadline = 0, time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            for index, split in enumerate(self._splits):
                place = (0, index, int(arrays["request_block"][0, index]), int(arrays["request_step"][0, index]))
                answers[place][:, :width] = next(drawn)
                arrays["answered"][:, 0, index] = arrays["asked"][0, index]
                split.advance()
                if split.waits_for_block:
                    arrays["taken_sequence"][:] = arrays["ready_sequence"]
                    split.try_next_block()
                steps += 1
        return steps

    def policy_core(self) -> PolicyCore:
        """A policy worker's core over this memory, with weights of its own."""
        device, sizes = torch_device(self._config.run.device), self.arrays.sizes
        model = build_actor_critic(self._config.model, self._spec, device)
        rows = sizes.actors * sizes.splits * sizes.rows
        policy = PolicyInference(model, rows, device, 1)
        requests = PolicyRequests(self.arrays, 0, 0, 1)
        if not self._weights.publication:
            self._weights.publish(np.zeros(len(policy.received), np.float32), 0)
        core = PolicyCore(self.arrays, requests, self._weights, policy, self._counters, 0)
        core.adopt_newest()
        return core

    def learner_core(self, folder: Path) -> LearnerCore:
        """A learner's core over this memory."""
        config = self._config
        job = LearnerJob(
            policy=0,
            spec=self._spec,
            model=config.model,
            learning=config.learning,
            device=torch_device(config.run.device),
            seed=1,
            checkpoint_dir=folder,
            load_kind="latest",
            keep_checkpoints=1,
            auxiliary_options=config.auxiliary,
            hold_blocks=False,
        )
        return LearnerCore(self.arrays, self._weights, WeightsBuffer.create("snapshot-0"), self._counters, job)

    def play(self) -> None:
        """Fill every block of the actor with a policy's own actions, and let the other actors have the same."""
        core = self.policy_core()
        while not all(split.waits_for_block for split in self._splits):
            slabs = core.requests.open()
            if len(slabs):
                core.answer(slabs)
            for split in self._splits:
                if split.is_answered():
                    split.advance()
        self.spread()

    def spread(self) -> None:
        """Copy the actor's blocks to all others."""
        headers = ("filling_sequence", "ready_sequence", "request_block", "asked")
        for name in [spec.name for spec in block_arrays(self.arrays.sizes)] + list(headers):
            self.arrays[name][1:] = self.arrays[name][:1]
        self.arrays["answered"][:] = self.arrays["asked"]

    def offer_again(self) -> None:
        """What was taken is complete once more."""
        blocks = LearnerBlocks(self.arrays, 0)
        assert not blocks.ready(), "blocks are left"
        self.arrays["ready_sequence"][:] += 1


def _settle() -> None:
    pin_to_cores(usable_cores()[:1])
    torch.set_num_threads(1)
    keep_freed_memory()


def _median_time(work: Callable[[], object], seconds: float) -> float:
    work()
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < _MIN_REPETITIONS or time.perf_counter() < deadline:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _scratch(rows: int, spec: EnvSpec) -> StepArrays:
    """Laid out as in blocks: the channels of an image are neighbours in memory."""
    out = step_arrays(spec, rows // spec.agents_per_env)
    for leaf in spec.observations:
        if leaf.kind == "image":
            channels, height, width = leaf.shape
            out.observations[leaf.name] = np.zeros((rows, height, width, channels), leaf.dtype).transpose(0, 3, 1, 2)
    return out
