"""Which stage limits a run's speed, by which numbers, and what to change.

Pure functions: the state of a run's counters at two moments gives a window of measurements, and that one finding.
Actors, policy workers and learners wait for each other, so the stage that limits all is the one that does not wait
while others wait for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.counters import PART_OF, EventCounter, Timer
from appo.algorithms.reporting.machine import ProcessorTime

NEIGHBOURS, STRAGGLER, LEARNER = "neighbours", "straggler", "learner"
ENVIRONMENTS, POLICY_WORKER, TINY_BATCHES, BALANCED = "environments", "policy_worker", "tiny_batches", "balanced"

# Less may be the desktop of the user, or what the machine does for itself.
NEIGHBOURS_SHARE = 0.25
# A core that is free this often is there for whoever wants it: others take nothing away from the run.
CORES_FULL = 0.9
# A run whose processes could keep less than this share of the cores busy, were they free, waits for something else.
WANTED_SHARE = 0.5
# Actors with equal environments differ by a quarter at most, beside neighbours by half.
STRAGGLER_TIMES = 2.5
# A straggler that waits half of its time is no slower than the others, however long its steps are.
STRAGGLER_SHARE = 0.5
# An actor is stopped for a moment whenever a batch is full; a quarter of its time is more than that.
WAITS = 0.25
# A learner that waits for data half of its time does not limit those who make the data.
LEARNER_BUSY = 0.5
# With two splits, one waits for actions while the other steps; a share of 0.2 and less is the hand-over.
ENVIRONMENTS_SHARE = 0.75
# A forward pass of a small network costs 0.3 ms, however few rows it has; from about 16 rows on the rows cost more.
TINY_ROWS = 16.0
# A pass that takes longer is a heavy network, whose price more rows do not spread.
TINY_BATCH_S = 0.003
# An actor whose environments compute keeps most of a core busy; one whose environments sleep, a tenth.
COMPUTES_PER_ACTOR = 0.5


class Settings(NamedTuple):
    """Options of the run that findings speak of."""

    num_workers: int
    num_envs_per_worker: int
    env_backend: str
    env_frameskip: int  # 0: the environment has no such option
    hidden_size: int
    policy_workers_per_policy: int
    ppo_epochs: int
    batch_size: int
    device: str  # as torch calls it
    cores: int  # that the run can keep busy
    shared_cores: int  # that it may use beside others; more, where a container's CPU quota is smaller


class Counters(NamedTuple):
    """A run's counters at one moment; arrays are [N, ...] by place in the shared arrays, actors first."""

    processor: ProcessorTime
    seconds: NDArray[np.float64]  # [N, timers] booked since the start
    events: NDArray[np.int64]  # [N, event counters]
    ready_seen: float  # sum over all looks so far: share of the blocks that waited for a learner
    looks: int


class Window(NamedTuple):
    """What was measured between two moments."""

    seconds: float
    shares: Mapping[Timer, float]  # stage -> share of the time of all processes of its kind; absent: no such process
    step_s: Mapping[str, float]  # actor -> seconds for one step of one of its splits; absent: it made none
    stepping: Mapping[str, float]  # actor -> share of its time in which it stepped
    batch_rows: float  # of an average batch of actions; 0: there was none
    batch_s: float  # seconds for one
    ready: float  # share of the blocks that waited for a learner
    run_cores: float  # that this run kept busy
    wanted_cores: float  # that it would have kept busy, had there been a core for each of its processes at any time
    other_cores: float  # that others kept busy


class Finding(NamedTuple):
    """What limits the speed."""

    kind: str
    said: str  # one sentence
    numbers: dict[str, float]  # the evidence
    option: str = ""  # to change; empty: no option helps
    value: str = ""
    culprit: str = ""  # a worker's name, where it is one

    @property
    def is_about(self) -> tuple[str, str, str]:
        """The same for findings that differ in their numbers only."""
        return self.kind, self.option, self.culprit


def window_between(before: Counters, after: Counters, kinds: Mapping[str, slice], actors: Mapping[int, str]) -> Window:
    """What happened between two moments.

    Args:
        before: the earlier one.
        after: the later one.
        kinds: beginning of the names of a kind's timers -> the places of its workers.
        actors: place -> name.
    """
    seconds, events = after.seconds - before.seconds, (after.events - before.events).clip(min=0)
    passed = max(after.processor.clock_s - before.processor.clock_s, 1e-9)
    run_cores, waiting, busy_cores = (
        max(0.0, getattr(after.processor, name) - getattr(before.processor, name)) / passed
        for name in ("run_s", "waited_s", "busy_s")
    )
    stages = [timer for timer in Timer if timer not in PART_OF]
    shares: dict[Timer, float] = {}
    for kind, places in kinds.items():
        mine = [timer for timer in stages if timer.name.startswith(f"{kind}_")]
        of_kind = seconds[places].sum(axis=0)
        if (total := float(of_kind[mine].sum())) > 0.0:
            shares |= {timer: float(of_kind[timer]) / total for timer in mine}
    steps = events[:, EventCounter.ACTOR_STEPS_OF_SPLITS]
    stepped = seconds[:, Timer.ACTOR_ENV_STEP]
    in_all = seconds[:, [timer for timer in stages if timer.name.startswith("ACTOR_")]].sum(axis=1)
    there = {place: name for place, name in actors.items() if steps[place]}
    batches, rows = (int(events[:, of].sum()) for of in (EventCounter.POLICY_BATCHES, EventCounter.POLICY_ROWS))
    computed = seconds[:, [Timer.POLICY_GATHER, Timer.POLICY_FORWARD, Timer.POLICY_SCATTER]].sum()
    return Window(
        passed,
        shares,
        {name: float(stepped[place] / steps[place]) for place, name in there.items()},
        {name: float(stepped[place] / max(in_all[place], 1e-9)) for place, name in there.items()},
        rows / batches if batches else 0.0,
        float(computed) / batches if batches else 0.0,
        (after.ready_seen - before.ready_seen) / max(1, after.looks - before.looks),
        run_cores,
        run_cores + waiting,
        max(0.0, busy_cores - run_cores),
    )


def find(window: Window, settings: Settings) -> Finding | None:
    """What limits the speed; None where nothing was measured."""
    if Timer.ACTOR_ENV_STEP not in window.shares:
        return None
    # Neighbours slow down all stages, so what they hide is told when they are gone; but no actor more than the others.
    looks_for = (_straggler, _neighbours, _learner, _environments, _tiny_batches, _policy_worker)
    found = (look(window, settings) for look in looks_for)
    return next((finding for finding in found if finding is not None), None) or _balanced(window, settings)


def _neighbours(window: Window, settings: Settings) -> Finding | None:
    cores = settings.shared_cores
    share = window.other_cores / cores
    if share < NEIGHBOURS_SHARE or not _all_are_busy(window, settings):
        return None
    if window.wanted_cores < WANTED_SHARE * settings.cores:
        return None
    said = (
        f"other programs take {share:.0%} of the machine, {window.other_cores:.1f} of {_cores(cores)}, and leave no "
        "core idle: end them, or let them wait with nice"
    )
    numbers = {"other_cores": window.other_cores, "run_cores": window.run_cores, "wanted_cores": window.wanted_cores}
    return Finding(NEIGHBOURS, said, numbers)


def _straggler(window: Window, settings: Settings) -> Finding | None:
    if len(window.step_s) < 2:
        return None
    slowest = max(window.step_s, key=lambda name: window.step_s[name])
    rest = [seconds for name, seconds in window.step_s.items() if name != slowest]
    usual, its = statistics.median(rest), window.step_s[slowest]
    if not usual or its < STRAGGLER_TIMES * usual or window.stepping[slowest] < STRAGGLER_SHARE:
        return None
    advice = f"see what its environments do, and log/{slowest}.txt"
    option, value = ("env_backend", "subproc") if settings.env_backend == "serial" else ("", "")
    if option:
        advice += f"; --{option}={value} steps them side by side"
    said = (
        f"{slowest} is a straggler: a step of its environments takes {1000 * its:.3g} ms, {its / usual:.1f} times the "
        f"{1000 * usual:.3g} ms of the others: {advice}"
    )
    return Finding(STRAGGLER, said, {"step_ms": 1000 * its, "others_step_ms": 1000 * usual}, option, value, slowest)


def _learner(window: Window, settings: Settings) -> Finding | None:
    waits = window.shares.get(Timer.ACTOR_WAIT_BLOCK, 0.0)
    busy = 1.0 - window.shares.get(Timer.LEARNER_WAIT_BATCH, 1.0)
    if waits < WAITS or busy < LEARNER_BUSY:
        return None
    if settings.ppo_epochs > 1:
        option, value = "ppo_epochs", str(settings.ppo_epochs // 2)
    elif settings.device == "cpu":
        option, value = "hidden_size", str(max(1, settings.hidden_size // 2))
    else:
        option, value = "batch_size", str(2 * settings.batch_size)
    gpu = ", or --device=gpu" if settings.device == "cpu" else ""
    others = " or larger minibatches (--batch_size)" if option != "batch_size" else ""
    said = (
        f"the learner works {busy:.0%} of its time and actors wait {waits:.0%} of theirs until it has taken their "
        f"rollouts ({window.ready:.0%} of the blocks are READY): --{option}={value}{others}{gpu}"
    )
    numbers = {"learner_busy": busy, "actor_wait_block": waits, "ready": window.ready}
    return Finding(LEARNER, said, numbers, option, value)


def _environments(window: Window, settings: Settings) -> Finding | None:
    share = window.shares[Timer.ACTOR_ENV_STEP]
    if share < ENVIRONMENTS_SHARE:
        return None
    cores, number = settings.cores, settings.num_workers
    numbers = {"actor_env_step": share, "run_cores": window.run_cores, "wanted_cores": window.wanted_cores}
    takes = f"environments take {share:.0%} of the actors' time"
    computes = window.wanted_cores >= COMPUTES_PER_ACTOR * min(number, cores) * share
    if computes and _no_more_to_have(window, settings):
        option, value = ("env_frameskip", str(2 * settings.env_frameskip)) if settings.env_frameskip else ("", "")
        advice = f"--{option}={value} or a vectorised environment" if option else "a faster or vectorised environment"
        said = f"{takes} and all cores are busy: more --num_workers cannot help on {_cores(cores)}, {advice} would"
        return Finding(ENVIRONMENTS, said, numbers, option, value)
    if computes and number < cores:
        option, value = "num_workers", str(cores)
    elif settings.env_backend == "serial" and settings.num_envs_per_worker > 1:
        option, value = "env_backend", "subproc"
    else:
        option, value = "num_workers", str(2 * number)
    busy = f"{window.run_cores:.1f} of {_cores(cores)} are busy"
    said = f"{takes} while {busy}: --{option}={value} lets more environments step at one time"
    return Finding(ENVIRONMENTS, said, numbers, option, value)


def _tiny_batches(window: Window, settings: Settings) -> Finding | None:
    waits = window.shares.get(Timer.ACTOR_WAIT_POLICY, 0.0)
    if not 0.0 < window.batch_rows < TINY_ROWS or window.batch_s > TINY_BATCH_S or waits < WAITS:
        return None
    value = str(4 * settings.num_envs_per_worker)
    said = (
        f"batches of actions are tiny: {window.batch_rows:.1f} rows each, and actors wait {waits:.0%} of their time "
        f"for them: --num_envs_per_worker={value}"
    )
    numbers = {"batch_rows": window.batch_rows, "batch_ms": 1000 * window.batch_s, "actor_wait_policy": waits}
    return Finding(TINY_BATCHES, said, numbers, "num_envs_per_worker", value)


def _policy_worker(window: Window, settings: Settings) -> Finding | None:
    waits = window.shares.get(Timer.ACTOR_WAIT_POLICY, 0.0)
    busy = 1.0 - window.shares.get(Timer.POLICY_WAIT, 1.0)
    if waits < 2 * WAITS or busy < 1.0 - WAITS:
        return None
    if settings.device == "cpu" and not _no_more_to_have(window, settings):
        option, value = "policy_workers_per_policy", str(2 * settings.policy_workers_per_policy)
        more = f" or a smaller network (--hidden_size={max(1, settings.hidden_size // 2)})"
    else:
        option, value, more = "hidden_size", str(max(1, settings.hidden_size // 2)), ""
    gpu = ", or --device=gpu" if settings.device == "cpu" else ""
    said = (
        f"policy workers compute {busy:.0%} of their time, {1000 * window.batch_s:.3g} ms for {window.batch_rows:.0f} "
        f"actions, and actors wait {waits:.0%} of theirs: --{option}={value}{more}{gpu}"
    )
    numbers = {"policy_busy": busy, "actor_wait_policy": waits, "batch_ms": 1000 * window.batch_s}
    return Finding(POLICY_WORKER, said, numbers | {"batch_rows": window.batch_rows}, option, value)


def _balanced(window: Window, settings: Settings) -> Finding:
    shares = window.shares
    numbers = {
        "actor_env_step": shares[Timer.ACTOR_ENV_STEP],
        "actor_wait_policy": shares.get(Timer.ACTOR_WAIT_POLICY, 0.0),
        "actor_wait_block": shares.get(Timer.ACTOR_WAIT_BLOCK, 0.0),
        "run_cores": window.run_cores,
    }
    said = (
        f"balanced: no stage alone holds up the others; actors step {numbers['actor_env_step']:.0%} of their time, "
        f"wait {numbers['actor_wait_policy']:.0%} for actions and {numbers['actor_wait_block']:.0%} for the learner, "
        f"and {window.run_cores:.1f} of {_cores(settings.cores)} are busy"
    )
    return Finding(BALANCED, said, numbers)


def _all_are_busy(window: Window, settings: Settings) -> bool:
    return window.run_cores + window.other_cores >= CORES_FULL * settings.shared_cores


def _no_more_to_have(window: Window, settings: Settings) -> bool:
    """All cores are busy, or all that a container's quota leaves."""
    return _all_are_busy(window, settings) or window.run_cores >= CORES_FULL * settings.cores


def _cores(number: int) -> str:
    return f"{number} core{'s' if number != 1 else ''}"
