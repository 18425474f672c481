"""Decisions on a GPU from recordings: one for each size of batch, in memory that they share.

Shape letters:  N = agent rows of one request,  K = numbers of a packed result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from appo.algorithms.recording import Recording

Decide = Callable[[Tensor, Mapping[str, Tensor], Tensor], Tensor]
"""Rows [N], observations [N, ...] and is_first [N] on the device -> packed results [N, K]."""
_SMALLEST = 8  # rows


class RecordedActing:
    """Plays the recording of the next larger size; rows that fill it up belong to nobody."""

    def __init__(self, decide: Decide, num_rows: int, device: torch.device, generator: torch.Generator) -> None:
        """`decide` draws from `generator`, and may be asked for row `num_rows` as well, several times in one batch."""
        self._decide, self._num_rows = decide, num_rows
        self._device, self._generator = device, generator
        self._recordings: dict[int, Recording[Tensor]] = {}
        # Rows and is_first of a batch lie one behind the other: one copy.
        self._staged = torch.empty(2 * num_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._taken = torch.empty(2 * num_rows, dtype=torch.int64, device=device)
        self._observations: dict[str, Tensor] = {}

    def act(self, rows: Tensor, observations: Mapping[str, Tensor], is_first: Tensor) -> Tensor:
        """[N], name -> [N, ...] and [N], all on the CPU, of the same names and types each time -> [N, K] on the CPU.

        Raises:
            CannotBeRecordedError: the network waits for its device; nothing has been decided.
        """
        count = len(rows)
        size = min(self._num_rows, max(_SMALLEST, 1 << (count - 1).bit_length()))
        staged = self._staged[: 2 * size].view(2, size)
        staged[0, :count], staged[0, count:] = rows, self._num_rows
        staged[1, :count] = is_first
        self._taken[: 2 * size].copy_(self._staged[: 2 * size], non_blocking=True)
        for name, leaf in observations.items():
            if name not in self._observations:
                self._observations[name] = _place_for(leaf, self._num_rows, self._device)
            self._observations[name][:count].copy_(leaf, non_blocking=True)
        if size not in self._recordings:
            self._recordings[size] = self._record(size)
        return self._recordings[size].play()[:count].to("cpu", copy=True)

    def _record(self, size: int) -> Recording[Tensor]:
        rows, is_first = self._taken[: 2 * size].view(2, size)
        observations = {name: leaf[:size] for name, leaf in self._observations.items()}
        pool = next((other.pool for other in self._recordings.values()), None)
        asked = rows.clone()
        rows.fill_(self._num_rows)  # nobody's memory goes on while this is tried out
        try:
            return Recording(
                lambda: self._decide(rows, observations, is_first),
                self._device,
                generators=[self._generator],
                pool=pool,
            )
        finally:
            rows.copy_(asked)


def _place_for(leaf: Tensor, num_rows: int, device: torch.device) -> Tensor:
    """Zeros [num_rows, ...] of the leaf's type, in its order of memory: images may have their channels last."""
    in_memory = sorted(range(leaf.dim()), key=leaf.stride, reverse=True)
    if leaf.dim() < 4 or in_memory == sorted(in_memory):
        return torch.zeros((num_rows, *leaf.shape[1:]), dtype=leaf.dtype, device=device)
    _, channels, height, width = leaf.shape
    return torch.zeros((num_rows, height, width, channels), dtype=leaf.dtype, device=device).permute(0, 3, 1, 2)
