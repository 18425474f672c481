"""The evaluation worker: scores the newest weights of each policy while training goes on, in environments of its own.

Nobody waits for it, and the run goes on without it. It runs at the lowest priority, so it takes what others leave.
"""

from __future__ import annotations

import contextlib
import logging
import time

import numpy as np
import torch

from appo.algorithms.evaluation.episode_video import EpisodeVideos
from appo.algorithms.evaluation.evaluate import EvalResult, choose_num_envs, evaluate_policy
from appo.algorithms.memory.counters import EventCounter, Phase, Timer
from appo.algorithms.messages import EvaluationCutOff, EvaluationFinished, EvaluationVideoSaved
from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.inference import PolicyInference
from appo.algorithms.workers.jobs import EvaluationWorkerJob
from appo.algorithms.workers.worker import LONGEST_SLEEP_S, Worker
from appo.envs.api import EnvContext
from appo.envs.faults import FAILURES, FaultPolicy
from appo.envs.own_code import told
from appo.envs.registry import make_batch_env
from appo.envs.vector.make import vec_env_of
from appo.utils.processes import limit_native_threads, lower_priority

log = logging.getLogger(__name__)
LOWEST_PRIORITY = 19


class EvaluationWorker(Worker):
    """Plays a fixed number of episodes with one version of the weights, every so many seconds.

    Reads:   published weights (learners)
    Writes:  its counters
    Sends:   EvaluationFinished, EvaluationCutOff, EvaluationVideoSaved (driver)
    """

    job: EvaluationWorkerJob

    def setup(self) -> None:
        """Build environments and a network for each policy."""
        lower_priority(LOWEST_PRIORITY)
        torch.set_num_threads(1)
        job = self.job
        self.counters.enter(Phase.RESET)
        self._videos, self._next_video, self._records = self._open_videos(), 0.0, False
        number = choose_num_envs(job.episodes, job.num_envs)
        contexts = [self._context(index) for index in range(number)]
        faults = FaultPolicy(job.max_env_rebuilds, drops_bad_data=job.drops_bad_data)
        self._env = vec_env_of(make_batch_env(job.env, job.family_options, contexts, faults=faults, spec=job.spec))
        if job.single_thread:
            limit_native_threads()
        rows = number * job.spec.agents_per_env
        self._weights = [self.start.memory.open_weights(policy) for policy in range(job.num_policies)]
        self._policies = [
            PolicyInference(build_actor_critic(job.model, job.spec, "cpu"), rows, "cpu", job.seed + policy)
            for policy in range(job.num_policies)
        ]
        self._next_policy = 0
        self._next = time.monotonic() + job.every_s

    def step(self) -> None:
        """Score the next policy when its time has come."""
        if time.monotonic() < self._next or not self._weights[self._next_policy].publication:
            self.bells.own.wait(LONGEST_SLEEP_S)
            self.counters.lap(Timer.EVALUATION_WAIT)
            return
        policy, self._next_policy = self._next_policy, (self._next_policy + 1) % self.job.num_policies
        self._score(policy)
        self.counters.lap(Timer.EVALUATION_PLAY)
        if self._next_policy == 0:  # all of them, one after the other
            self._next = max(self._next + self.job.every_s, time.monotonic())

    def teardown(self) -> None:
        """Close the environments."""
        if hasattr(self, "_env"):
            self._env.close()
        self._close_videos()

    def _context(self, index: int) -> EnvContext:
        """Of the environments that score, and then of the one that is filmed; none of training has its `env_id`."""
        job = self.job
        first, generation = job.first_env_id, self.start.generation
        return EnvContext(
            job.worker_index, index, first + index, first + job.num_envs + 1, job.seed, attempt=generation
        )

    def _open_videos(self) -> EpisodeVideos | None:
        """Called before other environments are built: MuJoCo and SDL choose how to draw when they are imported."""
        job = self.job
        if not job.video_every_s:
            return None
        try:
            return EpisodeVideos(job.env, job.family_options, self._context(job.num_envs), job.videos)
        except FAILURES as error:
            log.warning("no videos of evaluations: %s", told(error))
            return None

    def _close_videos(self) -> None:
        videos, self._videos = getattr(self, "_videos", None), None
        if videos is not None:
            videos.close()

    def _score(self, policy: int) -> None:
        inference = self._policies[policy]
        published = self._weights[policy].read_into(inference.received.numpy())
        inference.adopt_received()
        result = evaluate_policy(
            inference, self._env, self.job.episodes, deterministic=self.job.deterministic, after_step=self._goes_on
        )
        if self.counters.stop_requested and not result.is_complete:  # its numbers would prefer short episodes
            episodes = len(result.returns) // self.job.spec.agents_per_env
            self.report(EvaluationCutOff(policy, published.version, episodes, result.wall_time))
            return
        self.counters.count(EventCounter.EVALUATIONS)
        self.report(report_of(policy, published.version, result))
        if not self.counters.stop_requested:
            self._record(policy, published.version)

    def _record(self, policy: int, version: int) -> None:
        """Record an episode of each policy of a round when a video is due. What fails costs the videos, no score."""
        if policy == 0:
            self._records = self._videos is not None and time.monotonic() >= self._next_video
            if self._records:
                self._next_video = time.monotonic() + self.job.video_every_s
        if not self._records or self._videos is None:
            return
        try:
            path = self._videos.record(
                self._policies[policy], policy, version, deterministic=self.job.deterministic, goes_on=self._goes_on
            )
        except FAILURES as error:
            log.warning("no more videos of evaluations: %s", told(error))
            with contextlib.suppress(*FAILURES):
                self._close_videos()
            return
        if path is not None:
            self.report(EvaluationVideoSaved(policy, version, str(path)))

    def _goes_on(self) -> bool:
        self.counters.beat()
        return not self.counters.stop_requested


def report_of(policy: int, version: int, result: EvalResult) -> EvaluationFinished:
    """What the driver is told of an evaluation."""
    return EvaluationFinished(
        policy=policy,
        version=version,
        episodes=len(np.unique(result.matches)),
        mean_return=result.mean,
        sem_return=result.sem,
        min_return=result.min,
        max_return=result.max,
        mean_true_return=float(result.true_returns.mean()) if len(result.true_returns) else result.mean,
        mean_length=float(result.lengths.mean()),
        extra=dict(result.extra),
        seconds=result.wall_time,
    )
