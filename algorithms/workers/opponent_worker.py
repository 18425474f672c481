"""The opponent worker: computes the actions of all frozen policies, which past selves of the learning ones play."""

from __future__ import annotations

import time

import torch

from appo.algorithms.memory.counters import Timer
from appo.algorithms.workers.jobs import OpponentJob
from appo.algorithms.workers.opponents_core import OpponentsCore
from appo.algorithms.workers.policy_worker import DynamicBatcher, wait_for_batch
from appo.algorithms.workers.worker import LONGEST_SLEEP_S, Worker
from appo.utils.processes import keep_freed_memory

LOOK_EVERY_S = 0.2  # for past selves that have joined


class OpponentWorker(Worker):
    """Answers requests for actions of frozen policies; its weights come from files.

    Reads:   asked counters and observations (actors), which past self is to play (driver)
    Writes:  actions and recurrent states into blocks; answered counters; which past selves are loaded
    Sends:   OpponentFailed (driver)
    """

    job: OpponentJob

    def setup(self) -> None:
        """Prepare to read networks, which are built when they are first needed."""
        torch.set_num_threads(self.start.placement.threads)
        keep_freed_memory()
        self._core = OpponentsCore(self.arrays, self.job, self.counters, self.start.generation)
        self._batcher = DynamicBatcher(self._core.requests)
        self._next_look = 0.0

    def step(self) -> None:
        """Answer everything that waits."""
        requests = self._core.requests
        if not requests.count():
            self.bells.own.wait(LONGEST_SLEEP_S)
        wait_for_batch(requests, self._batcher, self.bells.own)
        self.counters.lap(Timer.OPPONENT_WAIT)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY_S
            if failed := self._core.load_new():
                self.report(*failed)
        for actor in self._core.answer():
            self.bells.actors[actor].ring()
