"""The memory that a process of environments shares with the one that started it: one table of arrays.

Writers: the parent writes actions, commands and `asked`, and `crashed` of results that follow from a restart; the child
everything else, of its own environments only.
A child writes `done` last, so whatever belongs to a step is there when its number is.

Letters:  E = agent rows,  N = environments,  P = processes,  W = numbers that store one action.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.envs.api import EnvSpec, ObservationLeaf, StepArrays
from appo.utils.segment import Segment, aligned

# What a child is asked for.
STEP, RESET = 0, 1
RESET_AS_TOLD = 2  # with the seed and the options of a message that is on its way
# How it went.
DONE, DONE_WITH_INFO, FAILED = 0, 1, 2
FLAGS = ("is_first", "is_last", "active", "terminated", "truncated", "crashed")  # of `StepArrays`
# Clocks of a child, counts and nanoseconds: those of commands are numbered as they are.
CLOCKS = ("env_step", "env_reset", "idle")
IDLE = 2


class SharedRows(NamedTuple):
    """The arrays, as one process has mapped them."""

    steps: StepArrays
    flags: NDArray[np.uint8]  # [FLAGS, E] those of `steps`, together
    actions: NDArray[np.float32]  # [E, W]
    asked: NDArray[np.int64]  # [N] number of the newest command
    command: NDArray[np.uint8]  # [N] which it is
    done: NDArray[np.int64]  # [N] number of the newest command that was carried out
    outcome: NDArray[np.uint8]  # [N] how
    clocks: NDArray[np.int64]  # [P, CLOCKS, 2] how often, and for how long


def map_rows(
    segment: Segment | None, spec: EnvSpec, num_envs: int, num_processes: int, keeps_final: bool
) -> SharedRows:
    """Map the arrays of a segment; without one, memory of this process alone."""
    arrays = {}
    place = 0
    for name, shape, dtype in _table(spec, num_envs, num_processes, keeps_final):
        arrays[name] = np.zeros(shape, dtype) if segment is None else segment.array(place, shape, dtype)
        place += aligned(_bytes(shape, dtype))
    finals = _observations(arrays, "final", spec) if keeps_final else None
    observations = _observations(arrays, "observation", spec)
    others: dict[str, Any] = {name: arrays[name] for name in _NUMBERS}
    steps = StepArrays(
        observations, final_observations=finals, **dict(zip(FLAGS, arrays["flags"], strict=True)), **others
    )
    return SharedRows(steps, *(arrays[name] for name in SharedRows._fields[1:]))


def segment_size(spec: EnvSpec, num_envs: int, num_processes: int, keeps_final: bool) -> int:
    """Bytes that `map_rows` needs."""
    table = _table(spec, num_envs, num_processes, keeps_final)
    return sum(aligned(_bytes(shape, dtype)) for _, shape, dtype in table)


def action_width(spec: EnvSpec) -> int:
    """Numbers that store one action."""
    return sum(1 if leaf.kind == "discrete" else leaf.size for leaf in spec.actions)


def add_time(clock: NDArray[np.int64], count: int, nanoseconds: int) -> None:
    """Add to one of `clocks`; two numbers cost a quarter of what adding a pair does."""
    clock[0] += count
    clock[1] += nanoseconds


class Stopwatch:
    """What processes have booked on their clocks."""

    def __init__(self, clocks: NDArray[np.int64]) -> None:
        """`clocks`: [P, CLOCKS, 2] of `SharedRows`."""
        self._clocks, self._before = clocks, np.zeros(clocks.shape[1:], np.int64)

    def stop(self) -> None:
        """Keep what is booked by now; nothing is read from the clocks any more."""
        self._clocks = self._clocks.copy()

    def pop(self) -> dict[str, tuple[int, float]]:
        """By name of a clock: how often, and how many seconds, over all processes since the last call."""
        now = self._clocks.sum(axis=0)
        since, self._before = now - self._before, now
        return {name: (count, ns / 1e9) for name, (count, ns) in zip(CLOCKS, since.tolist(), strict=True)}


def rows_of_envs(envs: NDArray[np.int64], agents: int) -> NDArray[np.int64]:
    """[n * A] agent rows of n environments."""
    return envs if agents == 1 else np.asarray((envs[:, None] * agents + np.arange(agents)).ravel())


def rows_of(steps: StepArrays, rows: slice) -> StepArrays:
    """Some rows, as views."""

    def cut(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array[rows] for name, array in arrays.items()}

    finals = None if steps.final_observations is None else cut(steps.final_observations)
    others: dict[str, Any] = {name: getattr(steps, name)[rows] for name in (*FLAGS, *_NUMBERS)}
    return StepArrays(cut(steps.observations), final_observations=finals, **others)


def _in_memory(leaf: ObservationLeaf, spec: EnvSpec) -> tuple[int, ...]:
    """The shape of an observation as it lies in memory: writing it in another order costs ten times as much."""
    if leaf.name not in spec.channels_last:
        return leaf.shape
    channels, height, width = leaf.shape
    return height, width, channels


def observation_zeros(leaf: ObservationLeaf, spec: EnvSpec, *axes: int) -> NDArray[Any]:
    """[*axes, ...] zeros with the axes of the leaf, an image as it lies in the environment's memory."""
    array = np.zeros((*axes, *_in_memory(leaf, spec)), leaf.dtype)
    return np.moveaxis(array, -1, -3) if leaf.name in spec.channels_last else array


def _observations(arrays: dict[str, np.ndarray], kind: str, spec: EnvSpec) -> dict[str, np.ndarray]:
    """By name, with the axes of the leaves."""
    found = {leaf.name: arrays[f"{kind}/{leaf.name}"] for leaf in spec.observations}
    return {name: np.moveaxis(array, -1, 1) if name in spec.channels_last else array for name, array in found.items()}


_NUMBERS = {"rewards": "f4", "frames": "i4"}


def _table(
    spec: EnvSpec, num_envs: int, num_processes: int, keeps_final: bool
) -> Iterator[tuple[str, tuple[int, ...], str]]:
    rows = num_envs * spec.agents_per_env
    for kind in ("observation", "final")[: 1 + keeps_final]:
        for leaf in spec.observations:
            yield f"{kind}/{leaf.name}", (rows, *_in_memory(leaf, spec)), leaf.dtype
    yield "flags", (len(FLAGS), rows), "u1"
    for name, dtype in _NUMBERS.items():
        yield name, (rows,), dtype
    yield "actions", (rows, action_width(spec)), "f4"
    yield "asked", (num_envs,), "i8"
    yield "command", (num_envs,), "u1"
    yield "done", (num_envs,), "i8"
    yield "outcome", (num_envs,), "u1"
    yield "clocks", (num_processes, len(CLOCKS), 2), "i8"


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
