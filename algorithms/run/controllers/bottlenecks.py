"""Why is this run slow? Says what limits it once that has held for a minute, and again when it has changed."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from appo.algorithms.messages import Command, Report, WorkerStarted
from appo.algorithms.reporting import bottleneck
from appo.algorithms.reporting.bottleneck import Counters, Finding, Settings
from appo.algorithms.reporting.machine import Machine
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.reporting.timing import StageTimes
from appo.algorithms.run.config import torch_device
from appo.algorithms.run.controllers.context import Controller, ControllerContext
from appo.algorithms.train_config import TrainConfig
from appo.algorithms.workers.roster import ACTOR, KINDS
from appo.utils.processes import core_count, usable_cores

LOOK_EVERY_S = 5.0
# After the first optimizer step: caches fill and the first batches are computed slower than all others.
WARM_UP_S = 5.0
# What is shorter is told by chance: a checkpoint, a full batch.
SHORTEST_S = 15.0
RECENT_S = 20.0
HOLDS_S = 60.0

log = logging.getLogger(__name__)


class Bottlenecks(Controller):
    """Decides nothing: measures now and then, tells the log, `events.jsonl` and every snapshot."""

    def __init__(self, context: ControllerContext) -> None:
        """In serial mode, where stages take turns in one process, nothing is measured."""
        roster = context.roster
        self._is_on = not context.config.workers.serial_mode
        self._learns = not context.config.run.sampler_only
        self._settings = settings_of(context.config)
        self._arrays, self._event_log, self._statistics = context.arrays, context.event_log, context.statistics
        self._kinds = {KINDS[kind].timers: roster.places(kind) for kind in KINDS if roster.of_kind(kind)}
        self._actors = {roster.place(worker): worker.name for worker in roster.of_kind(ACTOR)}
        self._machine = Machine()
        self._times = StageTimes(context.arrays, self._kinds)
        self._next_look = self._began = 0.0
        self._first: Counters | None = None
        self._recent: deque[Counters] = deque()
        self._ready_seen, self._looks = 0.0, 0
        self._present: Finding | None = None
        self._since = 0.0  # the present finding holds
        self._said: tuple[str, str, str] | None = None

    def note(self, report: Report) -> None:
        """A worker that was started anew is a process that is not known yet."""
        if isinstance(report, WorkerStarted):
            self._machine.list_again()

    def due(self, snapshot: RunSnapshot) -> Sequence[Command]:
        """Look, every few seconds; there is nothing to be done."""
        now = time.monotonic()
        if not self._is_on or now < self._next_look or not self._has_warmed_up(snapshot, now):
            return ()
        self._next_look = now + LOOK_EVERY_S
        counters = self._look(snapshot)
        self._first = self._first or counters
        self._recent.append(counters)
        while len(self._recent) > 2 and self._recent[1].processor.clock_s <= now - RECENT_S:
            self._recent.popleft()
        self._statistics.bottleneck = self._found_since(self._first, counters)
        self._follow(self._found_since(self._recent[0], counters), now)
        return ()

    def _has_warmed_up(self, snapshot: RunSnapshot, now: float) -> bool:
        has_begun = snapshot.env_frames and (not self._learns or all(each.train_steps for each in snapshot.policies))
        if snapshot.state != "training" or not has_begun:
            return False
        self._began = self._began or now
        return now - self._began >= WARM_UP_S

    def _look(self, snapshot: RunSnapshot) -> Counters:
        self._times.look()
        self._ready_seen += snapshot.blocks.get("READY", 0) / max(1, sum(snapshot.blocks.values()))
        self._looks += 1
        seconds, events = self._times.seconds.copy(), self._arrays["event_counts"].copy()
        return Counters(self._machine.look(), seconds, events, self._ready_seen, self._looks)

    def _found_since(self, before: Counters, after: Counters) -> Finding | None:
        if after.processor.clock_s - before.processor.clock_s < SHORTEST_S:
            return None
        window = bottleneck.window_between(before, after, self._kinds, self._actors)
        return bottleneck.find(window, self._settings)

    def _follow(self, finding: Finding | None, now: float) -> None:
        """Tell of a finding that has held long enough and is not the one that was told last."""
        if finding is None:
            return
        if self._present is None or finding.is_about != self._present.is_about:
            self._since = now
        self._present = finding
        if now - self._since >= HOLDS_S and finding.is_about != self._said:
            self._said = finding.is_about
            log.info("bottleneck: %s", finding.said)
            self._event_log.write("bottleneck", finding._asdict())


def settings_of(config: TrainConfig) -> Settings:
    """The options that findings speak of."""
    sampling, learning = config.sampling, config.learning
    return Settings(
        sampling.num_workers,
        sampling.num_envs_per_worker,
        sampling.env_backend,
        getattr(config.family, "env_frameskip", 0),
        config.model.hidden_size,
        config.workers.policy_workers_per_policy,
        learning.ppo_epochs,
        learning.batch_size,
        torch_device(config.run.device),
        core_count(),
        len(usable_cores()),
    )
