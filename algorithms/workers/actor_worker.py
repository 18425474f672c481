"""The actor worker: steps environments and nothing else."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.blocks import SplitBlocks
from appo.algorithms.memory.counters import EventCounter, Phase, Timer, WorkerCounters
from appo.algorithms.memory.layout import SharedArrays
from appo.algorithms.memory.request_table import SplitRequests
from appo.algorithms.messages import (
    EnvironmentFailed,
    EpisodeFinished,
    EpisodesFinished,
    MatchesFinished,
    MatchFinished,
)
from appo.algorithms.sampling.config import SamplingConfig
from appo.algorithms.sampling.env_split import EnvSplit, Requests
from appo.algorithms.sampling.match_results import MatchBook, SplitMatches
from appo.algorithms.sampling.matchmaking import ROLLOUTS_PER_DRAW, Draws, MatchAssignment, Opponents
from appo.algorithms.sampling.policy_assignment import PolicyAssignment, SplitAssignment
from appo.algorithms.sampling.random_player import RandomAnswers
from appo.algorithms.sampling.reward_shaping import RewardShaper
from appo.algorithms.sampling.scripted_seats import ScriptedSeats
from appo.algorithms.workers.core_sharing import CoreSharing
from appo.algorithms.workers.jobs import ActorJob
from appo.algorithms.workers.roster import LEARNER, OPPONENT_WORKER, POLICY_WORKER
from appo.algorithms.workers.worker import LONGEST_SLEEP_S, Worker
from appo.envs.api import BatchEnv, Decorrelation, EnvContext, EnvError, RewardShapingBatch
from appo.envs.faults import FaultPolicy, Restarts
from appo.envs.registry import make_batch_env
from appo.envs.vector.env_process import ChildFaults
from appo.envs.vector.process_handle import ProcessSettings
from appo.envs.vector.subproc_batch import SubprocBatchEnv
from appo.utils import processes
from appo.utils.doorbells import Doorbell
from appo.utils.processes import limit_native_threads

# Episodes are reported in batches: a message costs more than an environment step of a small task.
REPORT_EVERY_S = 0.25
# Environments that fail may do so many times a second.
FAILURES_EVERY_S = 20.0
# Follow the curriculum this often.
PROGRESS_EVERY_S = 1.0
# Environments are moved into their episodes by so many steps at most: most episodes are shorter, and end on the way.
DECORRELATION_STEPS = 1000
# The first actor, and a replacement, take this long: the other processes need longer until they are ready.
AT_ONCE_S = 0.5
# No environment is built anew more often in the life of one actor: its seeds never come again.
ATTEMPTS_PER_LIFE = 1_000_000

log = logging.getLogger(__name__)


class ActorWorker(Worker):
    """Steps environments; owns no policy, computes no gradient, never imports torch.

    Reads:   answered counters (policy workers), free blocks and timers (learners), opponents (driver)
    Writes:  observations, rewards and ends into its own blocks; its rows of the request table; its counters
    Sends:   EpisodesFinished, MatchesFinished, EnvironmentFailed (driver)
    """

    job: ActorJob

    def setup(self) -> None:
        """Build every environment, reset it, and ask for its first action."""
        self.splits: list[EnvSplit] = []
        self._episodes: list[EpisodeFinished] = []
        self._matches: list[MatchFinished] = []
        self._next_report = self._next_progress = 0.0
        # By policy: that of its policy worker, or, for frozen ones, the one of the opponent worker.
        self._servers = self.bells.by_policy(POLICY_WORKER, self.arrays.sizes.learning_policies)
        self._servers += self.bells.of_kind(OPPONENT_WORKER) * self.arrays.sizes.frozen_policies
        self._learners = self.bells.of_kind(LEARNER)
        job = self.job
        self.counters.enter(Phase.RESET)
        faults = fault_policy(job.sampling, self.counters, FailureReporter(self.start.name, self.report))
        for index in range(job.sampling.worker_num_splits):
            split = build_split(self.arrays, job, index, self.start.generation, faults, self._cores_of_environments())
            self.splits.append(split)
        if job.sampling.force_envs_single_thread:
            limit_native_threads()  # after the environments brought their libraries in
        self._start_splits()
        self._core_sharing = CoreSharing(self.arrays, self.start.placement)
        self._ring_all(self._servers)

    def step(self) -> None:
        """Advance every split whose actions are there; sleep when there is none."""
        advanced = False
        for split in self.splits:
            if split.waits_for_block:
                advanced |= self._continue(split)
            elif split.is_answered():
                self._advance(split)
                advanced = True
        if not advanced:
            self._wait()
        self._report_episodes()
        self._follow_progress()

    def teardown(self) -> None:
        """Tell of the last episodes, and close every environment."""
        self._next_report = 0.0
        self._report_episodes()
        close_splits(getattr(self, "splits", []))

    def _cores_of_environments(self) -> list[int]:
        """Those of the run, where this actor has one of its own for the sake of engines."""
        return processes.usable_cores(self.start.driver) if self.start.placement.cores else []

    def _start_splits(self) -> None:
        job, generation, number = self.job, self.start.generation, len(self.splits)
        max_seconds = decorrelation_seconds(job.sampling, job.index, job.num_actors, generation) / number
        moves_apart = job.sampling.decorrelate_envs_on_one_worker
        for index, split in enumerate(self.splits):
            key = [job.env_seed, job.index, generation, index if moves_apart else 0]
            how = Decorrelation(np.random.default_rng(key), DECORRELATION_STEPS, max_seconds, moves_apart)
            split.start(how if max_seconds else None)

    def _advance(self, split: EnvSplit) -> None:
        self.counters.lap(Timer.ACTOR_BOOKKEEPING)
        completed = split.completed
        self._episodes += split.advance()
        self._matches += split.pop_matches()
        self.counters.add_time(Timer.ACTOR_SIMULATE, split.simulated_s)
        self.counters.count(EventCounter.ACTOR_STEPS_OF_SPLITS)
        self.counters.lap(Timer.ACTOR_ENV_STEP)
        if not split.waits_for_block:
            self._ring(self._servers, split.players)
        if split.completed > completed:
            self.counters.count(EventCounter.ACTOR_ROLLOUTS)
            self._ring(self._learners, split.completed_by)

    def _continue(self, split: EnvSplit) -> bool:
        with contextlib.nullcontext() if split.has_started else self.counters.during(Phase.RESET):
            goes_on = split.try_next_block()
        if not goes_on:
            return False
        self._ring_all(self._servers)  # a split that has started just now asks all of them
        return True

    def _wait(self) -> None:
        self.counters.lap(Timer.ACTOR_BOOKKEEPING)
        self.bells.own.wait(LONGEST_SLEEP_S)
        all_wait_for_blocks = all(split.waits_for_block for split in self.splits)
        self.counters.lap(Timer.ACTOR_WAIT_BLOCK if all_wait_for_blocks else Timer.ACTOR_WAIT_POLICY)

    def _report_episodes(self) -> None:
        if (self._episodes or self._matches) and time.monotonic() >= self._next_report:
            self.report(EpisodesFinished(self._episodes), *([MatchesFinished(self._matches)] if self._matches else []))
            self._episodes, self._matches = [], []
            self._next_report = time.monotonic() + REPORT_EVERY_S

    def _follow_progress(self) -> None:
        if time.monotonic() < self._next_progress:
            return
        self._next_progress = time.monotonic() + PROGRESS_EVERY_S
        self._core_sharing.follow()
        for split in self.splits:
            tell_progress(split.env, int(self.arrays["run_env_frames"][0]))
            if isinstance(split.env, SubprocBatchEnv):
                times, seconds = split.env.pop_timing()["env_step"]
                self.counters.add_time(Timer.ACTOR_PROCESSES_STEP, seconds, times)

    @staticmethod
    def _ring(bells: list[Doorbell], policies: NDArray[np.int32]) -> None:
        """Those of some policies, each once; frozen ones share one, and have no learner."""
        for bell in {id(bells[policy]): bells[policy] for policy in policies if policy < len(bells)}.values():
            bell.ring()

    @staticmethod
    def _ring_all(bells: list[Doorbell]) -> None:
        for bell in {id(bell): bell for bell in bells}.values():
            bell.ring()


def tell_progress(env: BatchEnv, env_frames: int) -> None:
    """Let environments with a curriculum know how far training has come."""
    if hasattr(env, "set_training_progress"):
        env.set_training_progress(env_frames)


def decorrelation_seconds(sampling: SamplingConfig, index: int, num_actors: int, generation: int) -> float:
    """How long an actor may spend on moving its environments apart: the first, or a successor, next to nothing."""
    limit_s = sampling.decorrelate_experience_max_seconds
    share_s = 0.0 if generation else limit_s * index / num_actors
    return min(limit_s, max(share_s, AT_ONCE_S))


def close_splits(splits: list[EnvSplit]) -> None:
    """Close every environment. One that fails to is told of: nothing is lost with it."""
    for split in splits:
        try:
            split.close()
        except EnvError as error:
            log.warning("%s", error)


class FailureReporter:
    """Tells the driver why environments of one actor fail: the first time, and then now and then."""

    def __init__(self, actor: str, report: Callable[[EnvironmentFailed], None]) -> None:
        """`actor`: its name; empty: it is no process, and has no log of its own."""
        self._actor, self._report = actor, report
        self._next = 0.0

    def note(self, cause: str) -> None:
        """An environment has failed, and begins anew."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + FAILURES_EVERY_S
            self._report(EnvironmentFailed(self._actor, cause))


def fault_policy(sampling: SamplingConfig, counters: WorkerCounters, reporter: FailureReporter) -> FaultPolicy:
    """What one actor does about environments that fail; counted, and with as much time as a reset may take."""

    def count(is_bad_data: bool, cause: str) -> None:
        counters.count(EventCounter.ENV_BAD_DATA if is_bad_data else EventCounter.ENV_CRASHES)
        counters.beat()
        reporter.note(cause)

    def beat() -> bool:
        counters.beat()
        return not counters.stop_requested

    return FaultPolicy(
        sampling.max_env_rebuilds,
        drops_bad_data=sampling.on_bad_env_data == "drop",
        count=count,
        repairing=lambda: counters.during(Phase.RESET),
        beat=beat,
    )


def build_split(
    arrays: SharedArrays,
    job: ActorJob,
    split: int,
    generation: int,
    faults: FaultPolicy | None = None,
    cores: Sequence[int] = (),
) -> EnvSplit:
    """The environments of one split, over the blocks that are theirs.

    Args:
        arrays: of the run.
        job: of the actor.
        split: number of the split.
        generation: how often the actor was replaced.
        faults: decides about failures; None: every one is raised.
        cores: to which processes of environments are pinned in turn; empty: they run where the actor does.
    """
    sampling = job.sampling
    per_split = sampling.num_envs_per_worker // sampling.worker_num_splits
    contexts = []
    for place in range(per_split):
        vector_index = split * per_split + place
        env_id = job.index * sampling.num_envs_per_worker + vector_index
        total = job.num_actors * sampling.num_envs_per_worker
        # Environments that are built anew within one life of the actor count on from here.
        attempt = generation * ATTEMPTS_PER_LIFE
        contexts.append(EnvContext(job.index, vector_index, env_id, total, job.env_seed, attempt=attempt))
    env = _batch_env(job, contexts, faults, cores)
    opponents = Opponents(arrays, sampling.self_play_share) if sampling.self_play else None
    seed = np.random.SeedSequence(job.assignment_seed, spawn_key=(job.index, split, generation))
    blocks = SplitBlocks(arrays, job.index, split)
    requests: Requests = SplitRequests(arrays, job.index, split)
    if sampling.policy == "random":
        requests = RandomAnswers(blocks, job.spec.actions, np.random.default_rng(seed.spawn(1)[0]))
    return EnvSplit(
        env,
        blocks,
        requests,
        _assignment(job, arrays.sizes.learning_policies, split, seed, opponents),
        (arrays["env_frames"][job.index], arrays["agent_steps"][job.index]),
        _shaper(env, arrays, job),
        _matches(env, arrays, job, seed, opponents) if opponents is not None else None,
    )


def _batch_env(job: ActorJob, contexts: list[EnvContext], faults: FaultPolicy | None, cores: Sequence[int]) -> BatchEnv:
    """The environments of a split, in this process or in others."""
    sampling = job.sampling
    if not sampling.env_processes:
        return make_batch_env(job.env, job.family_options, contexts, faults, job.spec)
    child_faults = None if faults is None else ChildFaults(faults.max_rebuilds, faults.drops_bad_data)
    restarts = Restarts(
        "raise" if faults is None else "restart",
        sampling.env_restarts_lifetime,
        sampling.env_restarts_rate,
        sampling.env_restarts_period,
    )
    settings = ProcessSettings(
        num_workers=sampling.env_processes,
        start_method=sampling.env_start_method,
        reset_timeout_s=sampling.reset_timeout_seconds,
        step_timeout_s=sampling.env_step_timeout or None,
        restarts=restarts,
        child_faults=child_faults,
        own_group=False,
        cores=tuple(cores),
        first_core=contexts[0].env_id,
        single_thread=sampling.force_envs_single_thread,
    )
    if faults is not None:
        settings.count, settings.beat = faults.count, faults.beat
    return SubprocBatchEnv(job.env, job.family_options, contexts, settings, job.spec)


def _matches(
    env: BatchEnv, arrays: SharedArrays, job: ActorJob, seed: np.random.SeedSequence, opponents: Opponents
) -> SplitMatches:
    sizes, anchors = arrays.sizes, job.sampling.anchors
    scripted = ScriptedSeats(env, anchors, sizes.acting_policies, seed.spawn(1)[0]) if anchors else None
    book = MatchBook(env.num_envs, job.spec.agents_per_env, opponents)
    return SplitMatches(book, scripted, env.num_envs, sizes.learning_policies)


def _shaper(env: Any, arrays: Any, job: ActorJob) -> RewardShaper | None:
    """None where the reward has no weights, or the environments cannot be told of them."""
    first = arrays.sizes.reward_shaping
    if not first or not isinstance(env, RewardShapingBatch):
        return None
    return RewardShaper(env, first, arrays["reward_shaping"], job.spec.agents_per_env)


def _assignment(
    job: ActorJob, policies: int, split: int, seed: np.random.SeedSequence, opponents: Opponents | None
) -> PolicyAssignment:
    sampling, agents = job.sampling, job.spec.agents_per_env
    if agents == 1:
        splits = sampling.worker_num_splits
        return SplitAssignment(policies, job.index * splits + split, job.num_actors * splits)
    draws = Draws(
        matches=sampling.policy_change_episodes,
        rollouts=ROLLOUTS_PER_DRAW,
        mixes=sampling.pbt_mix_policies_in_one_env,
        seats=sampling.policies_of(job.spec.agents),
    )
    return MatchAssignment(policies, seed, agents, draws, opponents)
