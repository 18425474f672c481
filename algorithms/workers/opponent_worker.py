"""The opponent worker: computes the actions of all frozen policies, which past selves of the learning ones play."""

from __future__ import annotations

import time

import torch

from appo.algorithms.memory.counters import Timer
from appo.algorithms.workers.jobs import OpponentJob
from appo.algorithms.workers.opponents_core import OpponentsCore
from appo.algorithms.workers.policy_worker import BATCH_TIMEOUT_S
from appo.algorithms.workers.worker import LONGEST_SLEEP_S, Worker
from appo.utils.processes import keep_freed_memory


class OpponentWorker(Worker):
    """Answers requests for actions of frozen policies; its weights come from files.

    Reads:   asked counters and observations (actors), which past self is to play (driver)
    Writes:  actions and recurrent states into blocks; answered counters; which past selves are loaded
    """

    job: OpponentJob

    def setup(self) -> None:
        """Networks are built when they are first needed."""
        torch.set_num_threads(max(1, self.start.placement.threads))
        keep_freed_memory()
        self._core = OpponentsCore(self.arrays, self.job, self.counters, self.start.generation)

    def step(self) -> None:
        """Answer everything that waits."""
        if not self._core.count():
            self.bells.own.wait(LONGEST_SLEEP_S)
        deadline = time.monotonic() + BATCH_TIMEOUT_S
        while self._core.count() and (left_s := deadline - time.monotonic()) > 0:
            self.bells.own.wait(left_s)  # others may ask at the same time
        self.counters.lap(Timer.OPPONENT_WAIT)
        self._core.load_new()
        for actor in self._core.answer():
            self.bells.actors[actor].ring()
