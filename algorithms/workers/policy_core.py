"""A policy worker's core, without a process: open requests in, actions in the blocks out.

Gathers the rows of all requests with one index operation per observation array, runs one forward pass, scatters the
answers with one index operation, then counts the requests as answered.

Letters:  R = requests,  N = agent rows in them that this policy plays,  E = agent rows of a split.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appo.algorithms.memory.counters import EventCounter, Timer, WorkerCounters
from appo.algorithms.memory.layout import SharedArrays, Sizes
from appo.algorithms.memory.request_table import PolicyRequests, Slabs
from appo.algorithms.memory.weights import PublishedVersion
from appo.algorithms.models.inference import PolicyInference
from appo.utils.failpoints import failpoint


class WeightsSource(Protocol):
    """Where the weights of a policy come from."""

    @property
    def publication(self) -> int:
        """Changes whenever there are others; 0 before the first."""

    def read_into(self, flat: NDArray[Any]) -> PublishedVersion:
        """Copy the newest into `flat` [n]."""


class ServerCounts(NamedTuple):
    """Under which names a worker books what it does for a policy."""

    gather: Timer
    forward: Timer
    scatter: Timer
    adopt: Timer
    batches: EventCounter
    rows: EventCounter
    adoptions: EventCounter


OF_POLICY_WORKER = ServerCounts(
    Timer.POLICY_GATHER,
    Timer.POLICY_FORWARD,
    Timer.POLICY_SCATTER,
    Timer.POLICY_ADOPT,
    EventCounter.POLICY_BATCHES,
    EventCounter.POLICY_ROWS,
    EventCounter.POLICY_ADOPTIONS,
)


class Rows(NamedTuple):
    """Where the agent rows of a set of requests lie in the flattened shared arrays."""

    observed: NDArray[np.int64]  # [N] in arrays with T+1 rows per block
    decided: NDArray[np.int64]  # [N] in arrays with T rows per block
    agent: NDArray[np.int64]  # [N] row of the recurrent state that the policy worker keeps
    stored: NDArray[np.bool_]  # [N] the recurrent state before this row is kept in the block
    state: NDArray[np.int64]  # [N] where, in the array of recurrent states


class PolicyCore:
    """Answers requests for one policy."""

    def __init__(
        self,
        arrays: SharedArrays,
        requests: PolicyRequests,
        weights: WeightsSource,
        inference: PolicyInference,
        counters: WorkerCounters,
        policy: int,
        counts: ServerCounts = OF_POLICY_WORKER,
    ) -> None:
        """`inference` has one state row per agent row of the whole run."""
        self.requests = requests
        self.version = -1
        self._sizes = arrays.sizes
        self._policy = policy
        self._weights = weights
        self._publication = 0
        self.inference = inference
        self._counters, self._counts = counters, counts
        self._policy_id = arrays["policy_id"].reshape(-1)
        self._observations = {
            name: _GatheredRows(_flat(array, 5), inference) for name, array in arrays.observations().items()
        }
        self._is_first = _flat(arrays["is_first"], 5)
        self._answers = _flat(arrays["answers"], 5)
        self._versions = _flat(arrays["policy_version"], 5)
        self._states = _flat(arrays["recurrent_state"], 5)
        self._lanes = np.arange(arrays.sizes.rows)

    def adopt_newest(self) -> bool:
        """Take newer weights if there are any; False as long as none were ever published."""
        if self._weights.publication != self._publication:
            failpoint("policy-adopt")
            self._publication, self.version = self._weights.read_into(self.inference.received.numpy())
            self.inference.adopt_received()
            self._counters.count(self._counts.adoptions)
            self._counters.lap(self._counts.adopt)
        return self._publication > 0

    def answer(self, slabs: Slabs) -> None:
        """Act on every row of these slabs that this policy plays, and count them as answered."""
        rows = self._rows_of(slabs)
        if len(rows.agent):
            self._act(rows)
        self.requests.answer(slabs)
        self._counters.count(self._counts.batches)
        self._counters.count(self._counts.rows, len(rows.agent))

    def replay_recurrent_states(self, slabs: Slabs) -> None:
        """Work out the recurrent states that a lost predecessor kept of these splits, before they are first answered.

        From the last state that is stored in a split's block, the observations up to the open request are passed
        through the network once more. A request at row 0 goes on where the block before it ended; where there is only
        that one block, and one stored state in it, that is overwritten, and the agent has forgotten.
        """
        sizes = self._sizes
        if not sizes.state_size:
            return
        is_first = slabs.step == 0
        block = np.where(is_first, (slabs.block - 1) % sizes.blocks, slabs.block)
        decided = np.where(is_first, sizes.rollout, slabs.step)
        first = (decided - 1) // sizes.recurrence * sizes.recurrence
        is_there = ~is_first | (sizes.blocks > 1) | (first > 0)
        for offset in range(sizes.recurrence):
            chosen = is_there & (first + offset < decided)
            if not chosen.any():
                return
            step = (first + offset)[chosen]
            rows = self._rows_of(Slabs(slabs.actor[chosen], slabs.split[chosen], block[chosen], step, step))
            agents = torch.from_numpy(rows.agent)
            if offset == 0:
                self.inference.set_states(agents, self._states.index_select(0, torch.from_numpy(rows.state)))
            observed = torch.from_numpy(rows.observed)
            observations = {name: rows_of.take(observed) for name, rows_of in self._observations.items()}
            self.inference.act(agents, observations, self._is_first.index_select(0, observed))

    def _act(self, rows: Rows) -> None:
        observed = torch.from_numpy(rows.observed)
        observations = {name: rows_of.take(observed) for name, rows_of in self._observations.items()}
        is_first = self._is_first.index_select(0, observed)
        self._counters.lap(self._counts.gather)
        result = self.inference.act(torch.from_numpy(rows.agent), observations, is_first)
        self._counters.lap(self._counts.forward)
        decided = torch.from_numpy(rows.decided)
        log_prob, values = result.log_prob.unsqueeze(-1), result.values.unsqueeze(-1)
        answer = torch.cat((result.actions, log_prob, values, result.parameters), -1)
        self._answers.index_copy_(0, decided, answer)
        self._versions.index_fill_(0, decided, self.version)
        if self._sizes.state_size and rows.stored.any():
            states = result.state_before[torch.from_numpy(rows.stored)]
            self._states.index_copy_(0, torch.from_numpy(rows.state[rows.stored]), states)
        self._counters.lap(self._counts.scatter)

    def _rows_of(self, slabs: Slabs) -> Rows:
        sizes, lanes = self._sizes, self._lanes
        split = slabs.actor * sizes.splits + slabs.split
        block = split * sizes.blocks + slabs.block
        chunk, offset = np.divmod(slabs.step, sizes.recurrence)
        slab_of = np.array(
            (
                block * (sizes.rollout + 1) + slabs.step,
                block * sizes.rollout + slabs.step,
                split,
                block * (sizes.rollout // sizes.recurrence) + chunk,
            )
        )
        observed, decided, agent, state = (slab_of[:, :, None] * len(lanes) + lanes).reshape(len(slab_of), -1)
        rows = Rows(observed, decided, agent, np.repeat(offset == 0, len(lanes)), state)
        if sizes.acting_policies == 1:
            return rows
        mine = self._policy_id[observed] == self._policy
        return Rows(*(part[mine] for part in rows))


class StateReplay:
    """Works out, once for each split, the recurrent states that a lost predecessor has taken with it."""

    def __init__(self, core: PolicyCore, sizes: Sizes) -> None:
        """None is known yet."""
        self._core = core
        self._without_state = np.ones((sizes.actors, sizes.splits), np.bool_)

    def before(self, slabs: Slabs) -> None:
        """To be called before these slabs are answered."""
        forgotten = self._without_state[slabs.actor, slabs.split]
        if forgotten.any():
            chosen = Slabs(*(part[forgotten] for part in slabs))
            self._core.replay_recurrent_states(chosen)
            self._without_state[chosen.actor, chosen.split] = False


def _flat(array: NDArray[np.generic], leading: int) -> Tensor:
    """A tensor over the same memory whose first axis runs over all agent rows of all slabs."""
    rows = int(np.prod(array.shape[:leading]))
    flat = array.reshape(rows, *array.shape[leading:])
    assert np.shares_memory(flat, array) or not flat.size, "a copy would never be written to"
    return torch.from_numpy(flat)


class _GatheredRows:
    """Rows of one observation array, each time together in memory that the policy's device copies from."""

    def __init__(self, flat: Tensor, inference: PolicyInference) -> None:
        # Rows are gathered in the order in which they lie in memory: images with their channels last.
        self._is_image = not flat.is_contiguous()
        self._flat = flat.permute(0, 2, 3, 1) if self._is_image else flat
        self._upload = inference.upload_buffer(self._flat.shape[1:], flat.dtype)

    def take(self, rows: Tensor) -> Tensor:
        """[N, ...]; holds until the next call."""
        if self._upload is None:
            gathered = self._flat.index_select(0, rows)
        else:
            gathered = torch.index_select(self._flat, 0, rows, out=self._upload[: len(rows)])
        return gathered.permute(0, 3, 1, 2) if self._is_image else gathered
