"""From blocks to batches: columns of complete blocks are laid side by side in arrays of fixed shape.

A block is released as soon as its last column is copied, so an actor never waits for a gradient longer than its
other blocks last. In synchronous training the caller holds the release back until the iteration is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.blocks import BlockAddress, BlockState, LearnerBlocks, block_states
from appo.algorithms.memory.layout import OBSERVATION, SharedArrays, batch_arrays

Allocate = Callable[[tuple[int, ...], str], NDArray[Any]]


class Staging(NamedTuple):
    """Arrays `[T or T+1 or C, B, ...]` that hold one iteration's trajectories."""

    arrays: dict[str, NDArray[Any]]  # by the names of the shared table


def allocate_staging(shared: SharedArrays, trajectories: int, allocate: Allocate) -> Staging:
    """Arrays for `trajectories` columns, laid out in memory as the blocks are.

    `allocate(shape, dtype)` decides in which memory (pinned, plain).
    """
    arrays = {}
    for spec in batch_arrays(shared.sizes):
        rows, _, *rest = spec.stored_shape[3:]
        arrays[spec.name] = spec.as_declared(allocate((rows, trajectories, *rest), spec.dtype))
    return Staging(arrays)


class BatchAssembler:
    """Fills staging arrays with the columns that one policy played, block after block."""

    def __init__(self, shared: SharedArrays, policy: int, trajectories: int, *, hold_blocks: bool) -> None:
        """`hold_blocks`: keep copied blocks until `release_held`, so that actors cannot run ahead."""
        self.blocks = LearnerBlocks(shared, policy)
        self.holds = hold_blocks
        """May be changed between two batches."""
        self._shared = shared
        self._released: list[int] = []
        self._sources = {spec.name: shared[spec.name] for spec in batch_arrays(shared.sizes)}
        self._policy = policy
        self._all_columns = np.arange(shared.sizes.rows)
        self._one_policy = shared.sizes.acting_policies == 1
        self._trajectories = trajectories
        self._held: list[BlockAddress] = []
        self._open: tuple[BlockAddress, NDArray[np.int64]] | None = None  # block begun, its columns not yet copied
        self._filled = 0
        self._blocks_taken = self._blocks_of_batch = 0

    def fill(self, staging: Staging) -> bool:
        """Copy what is ready. True when the staging arrays are full; the next call begins a new batch."""
        while self._filled < self._trajectories:
            if self._open is None and not self._open_next():
                if not self._stands_still():
                    return False
                if not self._open_next():  # the last rollout may have ended between the two looks
                    self.release_held()
                    return False
            self._copy_columns(staging)
        self._filled = 0
        self._blocks_of_batch, self._blocks_taken = self._blocks_taken, 0
        return True

    def is_complete(self) -> bool:
        """As many blocks wait as the last batch was filled from, or more."""
        return self.blocks.num_ready >= self._blocks_of_batch

    @property
    def missing(self) -> int:
        """Trajectories that the current batch still needs."""
        return self._trajectories - self._filled

    def release_held(self) -> None:
        """Give back the blocks held in synchronous training."""
        for address in self._held:
            self._release(address)
        self._held.clear()

    def pop_released(self) -> list[int]:
        """Actors of the blocks given back since the last call, one entry per block."""
        released, self._released = self._released, []
        return released

    def _open_next(self) -> bool:
        for address in self.blocks.ready():
            self.blocks.take(address)
            self._blocks_taken += 1
            columns = self._own_columns(address)
            if len(columns):
                self._open = (address, columns)
                return True
            self._done_with(address)
        return False

    def _stands_still(self) -> bool:
        """Blocks are held for a batch that misses columns, and no split can fill another.

        It comes when a policy drew too few columns, or when rollouts do not add up to batches. If they are given back
        then, what is played next for this policy is played with the weights that it still has: nothing becomes older.
        """
        if not self._held:
            return False
        # Quarantined actors fill nothing any more.
        is_served = (self._shared["quarantined"][: self._shared.sizes.actors] == 0)[:, None, None]
        begun, unplayed = self._shared["filling_sequence"], self._shared["unplayed_sequence"][self._policy]
        may_help = is_served & ((begun > unplayed) | (begun == 0))  # what others play is of no use here
        return bool((block_states(self._shared) >= BlockState.READY)[may_help].all())

    def _own_columns(self, address: BlockAddress) -> NDArray[np.int64]:
        if self._one_policy:
            return self._all_columns
        played = self._sources["policy_id"][address[:3]][:-1] == self._policy  # [T, E]
        return np.flatnonzero(played.any(axis=0))

    def _copy_columns(self, staging: Staging) -> None:
        assert self._open is not None
        address, columns = self._open
        now, later = columns[: self.missing], columns[self.missing :]
        selection: Any = slice(now[0], now[-1] + 1) if now[-1] - now[0] + 1 == len(now) else now
        target = slice(self._filled, self._filled + len(now))
        for name, source in self._sources.items():
            staging.arrays[name][:, target] = source[address[:3]][:, selection]
        self._filled += len(now)
        self._open = (address, later) if len(later) else None
        if self._open is None:
            self._done_with(address)

    def _done_with(self, address: BlockAddress) -> None:
        if self.holds:
            self._held.append(address)
        else:
            self._release(address)

    def _release(self, address: BlockAddress) -> None:
        self.blocks.release(address)
        self._released.append(address.actor)


def observation_names(staging: Staging) -> dict[str, str]:
    """Observation name -> name in the staging arrays."""
    return {name.removeprefix(OBSERVATION): name for name in staging.arrays if name.startswith(OBSERVATION)}
