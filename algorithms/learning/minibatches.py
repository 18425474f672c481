"""From a batch to the minibatches of an iteration.

Letters:  R = rows of a trajectory or chunk,  M = trajectories or chunks side by side; the others as in `batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from appo.algorithms.learning.batch import Batch
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.learning.masks import trajectory_structure
from appo.algorithms.learning.shapes import require_shape


class Estimates(NamedTuple):
    """What a return estimator made of the rewards; constants, in units of reward."""

    value_targets: Tensor  # [R, M]
    advantages: Tensor  # [R, M]


class Minibatch(NamedTuple):
    """Columns ready for a forward pass, or all columns of an iteration. Nothing here carries a gradient.

    The model is unrolled over the R rows and, as long as there are no `estimates`, over the observation after them, on
    which the estimator bootstraps. It lies behind them in memory, so that nothing is copied to have both.
    """

    unrolled_observations: dict[str, Tensor]  # [R with estimates, else R+1, M, ...]
    unrolled_is_first: Tensor  # [the same, M]
    state: Tensor  # [M, H] recurrent state before row 0
    columns: Tensor  # [M] int64, where they stand among all columns that `split` has cut
    actions: Tensor  # [R, M, W]
    behaviour_log_prob: Tensor  # [R, M]
    behaviour_parameters: Tensor  # [R, M, P]
    behaviour_value: Tensor  # [R, M] in units of reward
    rewards: Tensor  # [R, M] scaled and clipped
    discounts: Tensor  # [R, M]
    has_delta: Tensor  # [R, M]
    acted: Tensor  # [R, M] bool, the row is a decision of this policy: it has a ratio
    valid: Tensor  # [R, M] bool, it acted and is young enough to enter the losses
    estimates: Estimates | None = None

    def copy(self) -> Minibatch:
        """The same in memory of its own."""
        observations = {name: leaf.clone() for name, leaf in self.unrolled_observations.items()}
        estimates = None if self.estimates is None else Estimates(*(each.clone() for each in self.estimates))
        others = {name: getattr(self, name).clone() for name in ("state", "columns", *_ROWS)}
        return self._replace(unrolled_observations=observations, estimates=estimates, **others)

    def tensors(self) -> list[Tensor]:
        """Every array, in one order for all minibatches of the same make."""
        others = (getattr(self, name) for name in ("state", "columns", *_ROWS))
        return [*self.unrolled_observations.values(), *others, *(self.estimates or ())]

    @property
    def observations(self) -> dict[str, Tensor]:
        """Name -> [R, M, ...]."""
        return {name: leaf[: len(self.actions)] for name, leaf in self.unrolled_observations.items()}

    @property
    def is_first(self) -> Tensor:
        """[R, M]."""
        return self.unrolled_is_first[: len(self.actions)]

    def map(self, change: Callable[[Tensor], Tensor]) -> Minibatch:
        """The same minibatch with every array of rows changed in one way; states and columns stay."""
        rows = {name: change(getattr(self, name)) for name in _ROWS}
        observations = {name: change(leaf) for name, leaf in self.unrolled_observations.items()}
        estimates = None if self.estimates is None else Estimates(*map(change, self.estimates))
        return self._replace(unrolled_observations=observations, estimates=estimates, **rows)


_NO_ROWS = ("unrolled_observations", "state", "columns", "estimates")
_ROWS = tuple(name for name in Minibatch._fields if name not in _NO_ROWS)


def check_batch(batch: Batch) -> None:
    """Refuse a batch whose arrays do not belong together.

    Raises:
        ValueError: names the array, its shape and the expected one.
    """
    rows, columns = batch.is_first.shape
    for name in ("is_last", "active", "own"):
        require_shape(name, getattr(batch, name), (rows, columns))
    for name, leaf in batch.observations.items():
        require_shape(f"observation {name!r}", leaf, (rows, columns))
    for name in Batch._fields[Batch._fields.index("actions") :]:
        require_shape(name, getattr(batch, name), (rows - 1, columns))
    chunks = len(batch.recurrent_state)
    require_shape("recurrent_state", batch.recurrent_state, (chunks, columns))
    if chunks == 0 or (rows - 1) % chunks:
        raise ValueError(f"recurrent_state has {chunks} chunks, which cannot divide {rows - 1} rows evenly")


def whole_batch(batch: Batch, config: LearningConfig, oldest: int) -> Minibatch:
    """All trajectories of an iteration, masked and scaled; `oldest`: rows of older policy versions are masked."""
    masks = trajectory_structure(
        batch.is_first, batch.is_last, batch.active, batch.own, batch.terminated, gamma=config.gamma
    )
    return Minibatch(
        unrolled_observations=batch.observations,
        unrolled_is_first=masks.resets,
        state=batch.recurrent_state[0],
        columns=torch.arange(batch.rewards.shape[1], device=batch.rewards.device),
        actions=batch.actions,
        behaviour_log_prob=batch.behaviour_log_prob,
        behaviour_parameters=batch.behaviour_parameters,
        behaviour_value=batch.behaviour_value,
        rewards=(batch.rewards * config.reward_scale).clamp_(-config.reward_clip, config.reward_clip),
        discounts=masks.discounts,
        has_delta=masks.has_delta,
        acted=masks.valid,
        valid=masks.valid & (batch.policy_version >= oldest),
    )


def with_estimates(data: Minibatch, estimates: Estimates, recurrent_state: Tensor) -> Minibatch:
    """Fix the estimates, drop the observation that only bootstraps, and cut trajectories into chunks.

    Args:
        data: [T, B] trajectories.
        estimates: [T, B].
        recurrent_state: [C, B, H] before the first row of each chunk.

    Returns:
        [T/C, C*B] chunks, every one starting from its stored state.
    """
    steps, chunks = len(data.actions), len(recurrent_state)
    data = data._replace(estimates=estimates).map(lambda rows: rows[:steps])
    if chunks == 1:
        return data

    def cut(rows: Tensor) -> Tensor:
        return rows.reshape(chunks, -1, *rows.shape[1:]).transpose(0, 1).flatten(1, 2)

    columns = torch.arange(data.valid.shape[1] * chunks, device=data.valid.device)
    return data.map(cut)._replace(state=recurrent_state.flatten(0, 1), columns=columns)


def put_together(rows: Tensor, columns: Tensor, trajectories: int) -> Tensor:
    """Undo `split` and the cut into chunks.

    Args:
        rows: [T/C, C*B] of all minibatches of an epoch, side by side.
        columns: [C*B] theirs.
        trajectories: B.

    Returns:
        [T, B] as in the batch.
    """
    in_order = rows.index_select(1, columns.argsort())
    return in_order.reshape(len(rows), -1, trajectories).transpose(0, 1).flatten(0, 1)


def columns_with(rows: Tensor, columns: int) -> Tensor:
    """[columns] bool, which of so many columns that `split` cuts hold a row that is true in [T, B] of the batch."""
    trajectories = rows.shape[1]
    return rows.reshape(columns // trajectories, -1, trajectories).any(1).flatten()


def num_minibatches(data: Minibatch, chunks: int, batch_size: int) -> int:
    """How many minibatches of `batch_size` rows the data makes, when each trajectory is cut into so many chunks.

    Raises:
        ValueError: it does not make a whole number of them, each of whole chunks.
    """
    rows, columns = data.actions.shape[:2]
    if batch_size % (rows // chunks) or rows * columns % batch_size:
        raise ValueError(
            f"{columns} trajectories of {chunks} times {rows // chunks} rows do not make whole minibatches of "
            f"batch_size={batch_size} rows"
        )
    return columns * rows // batch_size


Chosen = Tensor | slice | None
"""The columns of a minibatch: their numbers [M], or those that follow each other; None: all of them."""


def split(
    columns: int, count: int, generator: torch.Generator | None, device: torch.device | str = "cpu"
) -> Iterator[Chosen]:
    """Cut so many columns into `count` minibatches, in random order, on this device, when a generator is given.

    A single minibatch has them all: their order does not change a mean.
    """
    if count == 1:
        yield None
        return
    width = columns // count
    if generator is None:
        yield from (slice(start, start + width) for start in range(0, columns, width))
        return
    yield from torch.split(torch.randperm(columns, generator=generator).to(device), width)


def minibatch_of(data: Minibatch, chosen: Chosen) -> Minibatch:
    """Some columns of the data, on its device."""
    if chosen is None:
        return data
    if isinstance(chosen, Tensor):
        rows = data.map(lambda rows: _select(rows, chosen))
    else:
        rows = data.map(lambda rows: rows[:, chosen])
    return rows._replace(state=data.state[chosen], columns=data.columns[chosen])


def _select(rows: Tensor, chosen: Tensor) -> Tensor:
    """Some columns, in the order in which the rows lie in memory: images may have their channels last."""
    in_memory = sorted(range(rows.dim()), key=rows.stride, reverse=True)
    if in_memory[:2] != [0, 1] or in_memory == sorted(in_memory):
        return rows.index_select(1, chosen)
    declared = sorted(range(rows.dim()), key=in_memory.__getitem__)
    return rows.permute(in_memory).index_select(1, chosen).permute(declared)
