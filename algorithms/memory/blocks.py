"""The life of a block: FREE -> FILLING -> READY -> TRAINING -> FREE.

A block belongs to one split of one actor for ever. A split fills its blocks in turn: rollout n (n = 1, 2, ...) goes
into block (n - 1) % K. A block's state follows from five sequence numbers, each with a single writer, so that no
transition needs a lock and a death between any two instructions leaves a state that can be read:

    FILLING    filling > ready                               begun and not complete; the actor's
    READY      ready > taken[p] and unplayed[p] for a p      complete; learner p has not taken its columns
    TRAINING   taking[p] > taken[p] for a p                  learner p copies its columns now
    FREE       otherwise                                     every learner is done with it

A policy that plays no row of rollout n has `unplayed` n: its learner is not waited for. The actor writes `unplayed`
before `ready`, and a reader reads them the other way round. For a policy that plays, `unplayed` stays below the rollout
and is never lowered below an older one, so that no rollout that it did not play seems to be its own while the next is
filled.

There is no list of free blocks, so none can be lost.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.layout import OBSERVATION, SharedArrays
from appo.algorithms.specs import ELAPSED_STEPS
from appo.envs.api import StepArrays
from appo.utils.failpoints import failpoint


class BlockState(enum.IntEnum):
    """What a block is waiting for."""

    FREE = 0
    FILLING = 1
    READY = 2
    TRAINING = 3


def block_states(arrays: SharedArrays) -> NDArray[np.int8]:
    """[A, S, K] of `BlockState`, derived from the headers."""
    ready, taken = arrays["ready_sequence"], arrays["taken_sequence"]
    settled = np.maximum(taken, arrays["unplayed_sequence"])
    states = np.full(ready.shape, BlockState.FREE, np.int8)
    states[(ready > settled).any(axis=0)] = BlockState.READY
    states[(arrays["taking_sequence"] > taken).any(axis=0)] = BlockState.TRAINING
    states[arrays["filling_sequence"] > ready] = BlockState.FILLING
    return states


def count_blocks(arrays: SharedArrays, absent_actors: set[int], absent_learners: set[int]) -> dict[str, int]:
    """How many blocks are in each state, and how many are `lost`: held by a process that is not there to go on."""
    states, taken = block_states(arrays), arrays["taken_sequence"]
    held = np.zeros(states.shape, np.bool_)
    for actor in absent_actors:
        held[actor] |= states[actor] == BlockState.FILLING
    for policy in absent_learners:
        held |= arrays["taking_sequence"][policy] > taken[policy]
    counts = {state.name: int(np.count_nonzero(states == state)) for state in BlockState}
    return counts | {"lost": int(np.count_nonzero(held))}


def give_back(arrays: SharedArrays, actor: int) -> None:
    """In the place of an actor that is dead: what it had begun to fill is free again."""
    arrays["filling_sequence"][actor] = arrays["ready_sequence"][actor]


def stop_taking(arrays: SharedArrays, policy: int) -> None:
    """In the place of a learner that is dead: what it was taking waits for its successor."""
    arrays["taking_sequence"][policy] = arrays["taken_sequence"][policy]


_ELAPSED_STEPS = OBSERVATION + ELAPSED_STEPS.name


class Scratch(NamedTuple):
    """What a split knows of its newest step beyond what its blocks hold."""

    frames: NDArray[np.int32]  # [E] as in `StepArrays`
    crashed: NDArray[np.uint8]  # [E]

    @classmethod
    def of(cls, rows: int) -> Scratch:
        """Zero, for so many agent rows."""
        return cls(np.zeros(rows, np.int32), np.zeros(rows, np.uint8))


class SplitBlocks:
    """The blocks of one split, as the actor that fills them sees them."""

    def __init__(self, arrays: SharedArrays, actor: int, split: int) -> None:
        """Find the place after the last complete rollout; a rollout that a dead predecessor began is begun anew."""
        self._filling = arrays["filling_sequence"][actor, split]  # [K]
        self._ready = arrays["ready_sequence"][actor, split]
        self._taken = arrays["taken_sequence"][:, actor, split]  # [L, K]
        self._unplayed = arrays["unplayed_sequence"][:, actor, split]  # [L, K]
        self._filling[:] = self._ready
        self.sequence = int(self._ready.max())  # of the last rollout begun
        self.num_blocks = len(self._ready)
        self.rollout = arrays.sizes.rollout
        self._views = {name: array[actor, split] for name, array in _block_views(arrays).items()}
        self.actions = arrays["answers"][actor, split, :, :, :, : arrays.sizes.actions.width]  # [K, T, E, W]
        self.policy_id = self._views["policy_id"]  # [K, T+1, E]
        self.is_last = self._views["is_last"]  # [K, T+1, E]
        self._observations = {name: array[actor, split] for name, array in arrays.observations().items()}
        # [K, T+1, E, 1], written by EnvSplit; None without critic_sees_time.
        self.elapsed_steps = self._views.get(_ELAPSED_STEPS)

    @property
    def block(self) -> int:
        """Index of the block that holds the rollout now being filled."""
        return (self.sequence - 1) % self.num_blocks

    def begin_next(self) -> bool:
        """Take the next block if it is free."""
        following = self.sequence % self.num_blocks
        settled = np.maximum(self._taken[:, following], self._unplayed[:, following])
        if (settled < self._ready[following]).any():
            return False
        assert self._filling[following] == self._ready[following], "block begun twice"
        self.sequence += 1
        self._filling[following] = self.sequence
        failpoint("actor-block-begin")
        return True

    def play(self, policies: NDArray[np.int32]) -> None:
        """Say which policies have a row in the rollout so far; the learners of the others are not waited for.

        Frozen policies, which come after those that learn, have none.
        """
        unplayed, sequence = self._unplayed[:, self.block], self.sequence
        is_played = np.zeros(len(unplayed), np.bool_)
        is_played[policies[policies < len(unplayed)]] = True
        unplayed[:] = np.where(is_played, np.minimum(unplayed, sequence - 1), sequence)

    def complete(self) -> None:
        """Hand the filled block over. The actor writes nothing into it until it is free again."""
        block = self.block
        assert self._filling[block] == self.sequence > self._ready[block], "block completed without being filled"
        failpoint("actor-block-complete")
        self._ready[block] = self.sequence

    def observations(self, block: int, row: int) -> dict[str, NDArray[Any]]:
        """Name -> [E, ...] of one row."""
        return {name: view[block, row] for name, view in self._observations.items()}

    def carry_over(self, previous: int) -> None:
        """Row T of a complete block becomes row 0 of the one now being filled."""
        for name in self._row_names():
            self._views[name][self.block, 0] = self._views[name][previous, self.rollout]

    def step_arrays(self, scratch: Scratch) -> list[list[StepArrays]]:
        """[K][T]: where step t of each block writes; its observation is row t + 1."""
        return [
            [self._arrays_of(block, row=t + 1, step=t, scratch=scratch) for t in range(self.rollout)]
            for block in range(self.num_blocks)
        ]

    def reset_arrays(self, scratch: Scratch) -> StepArrays:
        """Where a reset writes: row 0 of the block now being filled."""
        return self._arrays_of(self.block, row=0, step=0, scratch=scratch)

    def _row_names(self) -> list[str]:
        return [name for name in self._views if name not in ("rewards", "terminated", "truncated")]

    def _arrays_of(self, block: int, *, row: int, step: int, scratch: Scratch) -> StepArrays:
        views = self._views
        return StepArrays(
            observations={
                name.removeprefix(OBSERVATION): view[block, row]
                for name, view in views.items()
                if name.startswith(OBSERVATION) and name != _ELAPSED_STEPS
            },
            is_first=views["is_first"][block, row],
            is_last=views["is_last"][block, row],
            active=views["active"][block, row],
            rewards=views["rewards"][block, step],
            terminated=views["terminated"][block, step],
            truncated=views["truncated"][block, step],
            frames=scratch.frames,
            crashed=scratch.crashed,
        )


def _block_views(arrays: SharedArrays) -> dict[str, NDArray[Any]]:
    names = ("is_first", "is_last", "active", "policy_id", "rewards", "terminated", "truncated")
    observations = {OBSERVATION + name: array for name, array in arrays.observations().items()}
    return observations | {name: arrays[name] for name in names}


class BlockAddress(NamedTuple):
    """One complete rollout."""

    actor: int
    split: int
    block: int
    sequence: int


class LearnerBlocks:
    """Complete blocks, as the learner of one policy takes them."""

    def __init__(self, arrays: SharedArrays, policy: int) -> None:
        """What a dead predecessor was taking is taken anew."""
        self._ready = arrays["ready_sequence"]  # [A, S, K]
        self._unplayed = arrays["unplayed_sequence"][policy]
        self._taking = arrays["taking_sequence"][policy]
        self._taken = arrays["taken_sequence"][policy]
        self._taking[:] = self._taken

    def ready(self) -> list[BlockAddress]:
        """Complete blocks that this learner has not begun to take, the oldest rollouts first."""
        sequences = self._ready.copy()
        found = np.argwhere((sequences > self._taking) & (sequences > self._unplayed))
        addresses = [BlockAddress(a, s, k, int(sequences[a, s, k])) for a, s, k in found.tolist()]
        return sorted(addresses, key=lambda address: address.sequence)

    @property
    def num_ready(self) -> int:
        """How many `ready` would give."""
        sequences = self._ready.copy()
        return int(np.count_nonzero((sequences > self._taking) & (sequences > self._unplayed)))

    def take(self, address: BlockAddress) -> None:
        """READY -> TRAINING, for this policy."""
        cell = address[:3]
        assert self._taken[cell] == self._taking[cell] < address.sequence, "block taken twice"
        self._taking[cell] = address.sequence
        failpoint("learner-take")

    def release(self, address: BlockAddress) -> None:
        """TRAINING -> FREE, when the other learners are done too."""
        cell = address[:3]
        assert self._taking[cell] == address.sequence > self._taken[cell], "block released without being taken"
        failpoint("learner-release")
        self._taken[cell] = address.sequence
