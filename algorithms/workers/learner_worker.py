"""The learner worker: computes gradients for one policy."""

from __future__ import annotations

import time
from typing import assert_never

import torch

from appo.algorithms.memory.collate import BatchAssembler
from appo.algorithms.memory.counters import Timer
from appo.algorithms.messages import AdoptPolicy, LearnerCommand, SaveCheckpoint, SetHyperparameters
from appo.algorithms.workers.batch_prefetcher import BatchPrefetcher
from appo.algorithms.workers.checkpoint_writer import CheckpointWriter
from appo.algorithms.workers.jobs import LearnerJob
from appo.algorithms.workers.learner_core import LearnerCore
from appo.algorithms.workers.release_pacer import ReleasePacer
from appo.algorithms.workers.roster import POLICY_WORKER
from appo.algorithms.workers.thread_trial import ThreadTrial
from appo.algorithms.workers.worker import LONGEST_SLEEP_S, Worker
from appo.utils.processes import keep_freed_memory

# What an iteration measured is of use to a reader, not to the run: small tasks have dozens a second.
REPORT_EVERY_S = 1.0
# Of the two seconds that a worker has to end: for a checkpoint that is being written.
LAST_WRITE_S = 1.5
# Of training time, in each step: for the rest of a command that does not fit into the queue.
FINISH_COMMAND_S = 0.2


class _Stopped(Exception):
    """The rest of an iteration is of no use any more."""


class LearnerWorker(Worker):
    """Trains one policy; steps no environment and computes no actions.

    Reads:   complete blocks (actors, policy workers), commands, whether all actors are to stop (driver)
    Writes:  published weights, taken counters of blocks
    Sends:   PolicyRestored, PolicyRecovered, TrainingReport, TrainingRolledBack, CheckpointSaved, CheckpointFailed,
             HyperparametersChanged, HyperparametersRefused, PolicyAdopted, AdoptionRefused (driver)
    """

    job: LearnerJob

    def setup(self) -> None:
        """Build the network, go on from the newest checkpoint, publish the weights to begin with."""
        placement = self.start.placement
        torch.set_num_threads(placement.threads)
        self._trial = ThreadTrial(placement.threads) if placement.tries_fewer_threads else None
        keep_freed_memory()
        job, bells = self.job, self.bells
        weights = self.start.memory.open_weights(job.policy)
        snapshot = self.start.memory.open_snapshot(job.policy)
        self._core = LearnerCore(
            self.arrays, weights, snapshot, self.counters, job, self._serve, self.start.memory.open_buffers
        )
        self._writer = CheckpointWriter(self._core.folder)
        assembler = BatchAssembler(self.arrays, job.policy, job.trajectories, hold_blocks=job.hold_blocks)
        pacer = ReleasePacer() if job.just_in_time and not job.sampler_only else None
        waits = job.hold_blocks or job.just_in_time or job.sampler_only
        ahead = job.learning.train_in_background_thread and not waits
        stagings = [self._core.staging() for _ in range(2 if ahead else 1)]
        self.report(self._core.begin(), *self._core.pop_reports())
        self._prefetcher = BatchPrefetcher(assembler, stagings, bells.own, self._ring_actors, self.counters, pacer)
        self._next_report = 0.0
        self._actors_stop = self.arrays["stop"][: self.arrays.sizes.actors]
        for bell in bells.of_kind(POLICY_WORKER):
            bell.ring()

    def step(self) -> None:
        """Train on the next batch, or sleep a moment."""
        self._obey_commands()
        if self._is_over:
            self._prefetcher.close()  # two threads must not wait for one bell: poll raises an error
            self.bells.own.wait(LONGEST_SLEEP_S)
            return
        if self.job.sampler_only:
            self._prefetcher.drop_ready(LONGEST_SLEEP_S)
            self.counters.lap(Timer.LEARNER_WAIT_BATCH)
            return
        staging = self._prefetcher.next(LONGEST_SLEEP_S)
        if staging is None:
            return
        began = time.monotonic()
        is_due = began >= self._next_report
        try:
            report = self._core.train(staging, with_metrics=is_due)
        except _Stopped:
            return
        if self._trial is not None:
            self._trial.took(time.monotonic() - began)
        self._prefetcher.done(staging)
        if is_due:
            self._next_report = time.monotonic() + REPORT_EVERY_S
            self.report(report)
        self.report(*self._core.pop_reports())

    def teardown(self) -> None:
        """End the threads that prepare batches and write checkpoints."""
        if hasattr(self, "_prefetcher"):
            self._prefetcher.close()
        if hasattr(self, "_writer"):
            self._writer.close(LAST_WRITE_S)
            self.report(*self._writer.finished())

    @property
    def _is_over(self) -> bool:
        """Sampling has been stopped for good. The last checkpoint is taken now, and no step after it would be kept."""
        return bool(self._actors_stop.all())

    def _serve(self) -> None:
        """An iteration may take minutes, and neither a checkpoint nor the end of the run waits for it."""
        self._obey_commands()
        if self.counters.stop_requested or self._is_over:
            raise _Stopped
        self._prefetcher.between_minibatches()

    def _obey_commands(self) -> None:
        for command in self.commands.receive(FINISH_COMMAND_S):
            self._obey(command)
        news = [*self._core.pop_reports(), *self._writer.finished()]
        if news or self.reports.is_waiting:
            self.report(*news)

    def _obey(self, command: LearnerCommand) -> None:
        match command:
            case SetHyperparameters():
                self._core.set_hyperparameters(command)
            case AdoptPolicy():
                self._core.adopt_policy(command)
            case SaveCheckpoint():
                self.counters.lap(Timer.LEARNER_TRAIN)
                self._writer.submit(command, self._core.encode)
                self.counters.lap(Timer.LEARNER_SAVE)
            case _:
                assert_never(command)

    def _ring_actors(self, actors: set[int]) -> None:
        for actor in actors:
            self.bells.actors[actor].ring()
