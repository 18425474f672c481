"""Where one worker runs: its cores, threads and priority.

An actor whose environments are engines, processes that work in lock step with it, is pinned to one core and they with
it: a ViZDoom worker pinned together with its engine steps three times as fast as one left to the scheduler. All others
are left to the scheduler, which moves them to whatever core waits: on two cores, CartPole with pinned actors left a
sixth of the machine idle and made 34k frames per second against 42k.
"""

from __future__ import annotations

from typing import NamedTuple

from appo.utils.processes import core_count, usable_cores


class Placement(NamedTuple):
    """Where one worker runs."""

    cores: tuple[int, ...]  # empty: anywhere
    threads: int
    niceness: int
    gpu: int | None = None  # the only one that an actor's simulator may see
    shared_cores: tuple[int, ...] = ()  # where it runs while the learner needs the other cores; empty: as ever
    tries_fewer_threads: bool = False  # `threads` are the most that it uses, see `thread_trial`


def place_actor(
    index: int, pinned: bool, niceness: int, gpus: tuple[int, ...] = (), reserved: tuple[int, ...] = ()
) -> Placement:
    """One core per actor, in turn, none that is `reserved`; one GPU for its environments where any are to be used."""
    cores = [core for core in usable_cores() if core not in reserved]
    gpu = gpus[index % len(gpus)] if gpus else None
    return Placement((cores[index % len(cores)],) if pinned else (), threads=1, niceness=niceness, gpu=gpu)


def place_policy_worker(threads: int, niceness: int) -> Placement:
    """One thread, unless more are asked for.

    Batches of decisions are small: on 16 cores a policy worker of Breakout spent 0.17 of its time on their forward
    passes with eight threads, 0.07 with one, at equally many frames per second.
    """
    return Placement((), threads or 1, niceness)


def place_learner(threads: int, sharing: int, niceness: int, device: str) -> Placement:
    """`threads` threads, or at most a fair share of the cores when that is 0; `sharing` learners compute at one time.

    Beside a GPU it only copies, with one thread: on 16 cores, eight that waited for each other in learner and policy
    worker took 5.6 of them from the actors.
    """
    if threads:
        return Placement((), threads, niceness)
    most = max(1, min(8, core_count() // (2 * max(1, sharing)))) if device == "cpu" else 1
    return Placement((), most, niceness, tries_fewer_threads=most > 1)
