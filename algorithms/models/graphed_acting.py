"""Decisions on a GPU as CUDA graphs: one for each size of batch, in memory that they share.

Shape letters:  N = agent rows of one request,  K = numbers of a packed result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from appo.algorithms.cuda_graphs import CapturedGraph

Decide = Callable[[Tensor, Mapping[str, Tensor], Tensor], Tensor]
"""Rows [N], observations [N, ...] and is_first [N] on the device -> packed results [N, K]."""
_SMALLEST = 8  # rows: a GPU takes as long for fewer


class GraphedActing:
    """Replays the graph of the next larger size, padded with a row that is nobody's."""

    def __init__(self, num_rows: int, device: torch.device, generator: torch.Generator) -> None:
        """For batches of up to so many rows; `generator` is what decisions draw from."""
        self._num_rows, self._device, self._generator = num_rows, device, generator
        self._graphs: dict[int, CapturedGraph[Tensor]] = {}
        # Rows and is_first of a batch lie one behind the other: one copy.
        self._staged = torch.empty(2 * num_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._taken = torch.empty(2 * num_rows, dtype=torch.int64, device=device)
        self._observations: dict[str, Tensor] = {}

    def act(self, decide: Decide, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor) -> Tensor:
        """Decide for some rows.

        Args:
            decide: the same each time; asked for row `num_rows` as well, several times in one batch: the padding.
            rows: [N] on the CPU.
            observations: name -> [N, ...] on the CPU; the same names and types each time.
            is_first: [N] on the CPU.

        Returns:
            [N, K] on the CPU.

        Raises:
            CannotBeCapturedError: the network waits for its device; nothing has been decided.
        """
        count = len(rows)
        assert count <= self._num_rows, f"{count} rows of {self._num_rows}"
        if not self._observations:
            self._observations = {
                name: _place_for(leaf, self._num_rows, self._device) for name, leaf in observations.items()
            }
        assert self._observations.keys() == observations.keys(), f"{[*observations]}, not {[*self._observations]}"
        size = min(self._num_rows, max(_SMALLEST, 1 << (count - 1).bit_length()))
        staged = self._staged[: 2 * size].view(2, size)
        staged[0, :count], staged[0, count:] = rows, self._num_rows
        staged[1, :count] = is_first
        self._taken[: 2 * size].copy_(self._staged[: 2 * size], non_blocking=True)
        for name, leaf in observations.items():
            self._observations[name][:count].copy_(leaf, non_blocking=True)
        if size not in self._graphs:
            self._graphs[size] = self._capture(decide, size)
        return self._graphs[size].replay()[:count].to("cpu", copy=True)

    def _capture(self, decide: Decide, size: int) -> CapturedGraph[Tensor]:
        """Capture decisions for so many rows; changes no row's memory and uses up no random number."""
        rows, is_first = self._taken[: 2 * size].view(2, size)
        observations = {name: leaf[:size] for name, leaf in self._observations.items()}
        pool = next((other.pool for other in self._graphs.values()), None)
        asked, random_state = rows.clone(), self._generator.get_state()
        rows.fill_(self._num_rows)
        try:
            return CapturedGraph(
                lambda: decide(rows, observations, is_first), self._device, generators=[self._generator], pool=pool
            )
        finally:
            rows.copy_(asked)
            self._generator.set_state(random_state)


def _place_for(leaf: Tensor, num_rows: int, device: torch.device) -> Tensor:
    """Zeros [num_rows, ...] of the leaf's type, in its order of memory: images may have their channels last."""
    in_memory = sorted(range(1, leaf.dim()), key=leaf.stride, reverse=True)
    place = torch.zeros((num_rows, *(leaf.shape[axis] for axis in in_memory)), dtype=leaf.dtype, device=device)
    return place.permute(0, *(1 + in_memory.index(axis) for axis in range(1, leaf.dim())))
