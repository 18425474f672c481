"""Requests for actions: one row per split, a number asked and a number answered.

A split has at most one request open. It writes where its slab lies and then counts `asked` up; the policy worker
writes its answers into the block and then counts `answered` of its policy up. A new policy worker finds all open
requests by comparing the two, so none is lost with its predecessor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appo.algorithms.memory.layout import SharedArrays
from appo.utils.failpoints import failpoint


class Slabs(NamedTuple):
    """Slabs that wait for actions, one entry per request."""

    actor: NDArray[np.int64]  # [R]
    split: NDArray[np.int64]  # [R]
    block: NDArray[np.int64]  # [R]
    step: NDArray[np.int64]  # [R]
    asked: NDArray[np.int64]  # [R]

    def __len__(self) -> int:
        return len(self.actor)


class SplitRequests:
    """The row of one split, as its actor writes it."""

    def __init__(self, arrays: SharedArrays, actor: int, split: int) -> None:
        """A request that a dead predecessor left open, or had begun to write, is withdrawn by asking anew."""
        self._cell = (actor, split)
        self._block, self._step = arrays["request_block"], arrays["request_step"]
        self._asked = arrays["asked"]
        self._unasked = arrays["unasked"][:, actor, split]  # [P]
        self._answered = arrays["answered"][:, actor, split]  # [P]
        # The predecessor may have said whom it will not ask, and have died before it asked.
        self._number = int(max(self._asked[self._cell], self._answered.max(), self._unasked.max()))
        self._waits_for_all = True
        self.num_policies = len(self._answered)
        self._one_policy = self.num_policies == 1

    def ask(self, block: int, step: int, policies: NDArray[np.int32] | None = None) -> None:
        """Announce that the slab of row `step` in `block` is complete; to some policies, or to all."""
        self._block[self._cell] = block
        self._step[self._cell] = step
        self._number += 1
        self._waits_for_all = policies is None
        if policies is not None:
            self._unasked[:] = self._number
            self._unasked[policies] = self._number - 1
        failpoint("actor-ask")
        self._asked[self._cell] = self._number

    def is_answered(self) -> bool:
        """Every policy that was asked has answered the newest request."""
        if self._one_policy:
            return bool(self._answered[0] >= self._number)
        settled = self._answered if self._waits_for_all else np.maximum(self._answered, self._unasked)
        return bool(settled.min() >= self._number)


class JointRequests:
    """The requests for several policies that one worker serves, looked at together."""

    def __init__(self, arrays: SharedArrays, policies: range, first_actor: int = 0, stride: int = 1) -> None:
        """Those of actors first_actor, first_actor + stride, ... for some policies, which follow each other."""
        mine, these = slice(first_actor, None, stride), slice(policies.start, policies.stop)
        self._asked = arrays["asked"][mine]
        self._unasked, self._answered = arrays["unasked"][these, mine], arrays["answered"][these, mine]
        self._ready, self._taken = arrays["ready_sequence"][mine], arrays["taken_sequence"][:, mine]
        self._unplayed = arrays["unplayed_sequence"][:, mine]

    @property
    def num_splits(self) -> int:
        """Splits that can have a request open at one time: those whose newest request was for one of these policies."""
        return int(np.count_nonzero((self._asked > self._unasked).any(axis=0)))

    def count(self) -> int:
        """Splits whose request is open."""
        return int(np.count_nonzero(self._are_open().any(axis=0)))

    def asked_policies(self) -> list[int]:
        """Policies with an open request, counted from the first of these policies."""
        found: list[int] = np.flatnonzero(self._are_open().any(axis=(1, 2))).tolist()
        return found

    def _are_open(self) -> NDArray[np.bool_]:
        """[P, A, S] for these policies and actors."""
        are_open: NDArray[np.bool_] = self._asked > np.maximum(self._answered, self._unasked)
        return are_open

    def count_without_block(self) -> int:
        """Splits that have filled all of their blocks, of those counted by `num_splits`."""
        is_full = (self._ready > np.maximum(self._taken, self._unplayed)).any(0).all(-1)
        return int(np.count_nonzero(is_full & (self._asked > self._unasked).any(axis=0)))


class PolicyRequests:
    """Open requests of the actors that one policy worker serves."""

    def __init__(self, arrays: SharedArrays, policy: int, first_actor: int, stride: int) -> None:
        """Actors first_actor, first_actor + stride, ... are served here, so no two workers answer one request."""
        mine = slice(first_actor, None, stride)
        self._first, self._stride = first_actor, stride
        self._asked = arrays["asked"][mine]
        self._unasked = arrays["unasked"][policy][mine]
        self._answered = arrays["answered"][policy][mine]
        self._one_policy = arrays.sizes.acting_policies == 1
        self._block = arrays["request_block"][mine]
        self._step = arrays["request_step"][mine]
        self._ready, self._taken = arrays["ready_sequence"][mine], arrays["taken_sequence"][:, mine]
        self._unplayed = arrays["unplayed_sequence"][:, mine]

    @property
    def num_splits(self) -> int:
        """Splits that can have a request open at one time: those whose newest request was for this policy."""
        return int(self._asked.size) if self._one_policy else int(np.count_nonzero(self._asked > self._unasked))

    def count(self) -> int:
        """Requests open now."""
        return int(np.count_nonzero(self._is_open(self._asked)))

    def count_without_block(self) -> int:
        """Splits that have filled all of their blocks: they ask again when a learner has taken one."""
        is_full = (self._ready > np.maximum(self._taken, self._unplayed)).any(0).all(-1)
        return int(np.count_nonzero(is_full if self._one_policy else is_full & (self._asked > self._unasked)))

    def open(self) -> Slabs:
        """Every open request."""
        asked = self._asked.copy()
        rows, splits = np.nonzero(self._is_open(asked))
        block = self._block[rows, splits].astype(np.int64)
        step = self._step[rows, splits].astype(np.int64)
        return Slabs(rows * self._stride + self._first, splits, block, step, asked[rows, splits])

    def _is_open(self, asked: NDArray[np.int64]) -> NDArray[np.bool_]:
        # `asked` is read first: a request that is seen is seen together with the policies that it is for.
        is_open: NDArray[np.bool_] = asked > self._answered
        return is_open if self._one_policy else is_open & (asked > self._unasked)

    def answer(self, slabs: Slabs) -> None:
        """The answers lie in the blocks: say so."""
        failpoint("policy-answer")
        self._answered[(slabs.actor - self._first) // self._stride, slabs.split] = slabs.asked
