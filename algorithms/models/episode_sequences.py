"""A recurrent layer over whole trajectories by the device's own library, which knows no resets.

Trajectories are cut where episodes begin. The parts, longest first, are packed step by step, as
`torch.nn.utils.rnn.PackedSequence` has it, so that nothing is padded and one call computes all of them. `cut` waits for
the device, to learn where episodes begin. All products are in float32: in bf16 the library would round the state after
each step, which a policy worker does not.

Shape letters:  T = time steps,  N = agent rows,  H = hidden size,  S = parts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
    """Trajectories cut where episodes begin. All but `batch_sizes` lie on the trajectories' device."""

    packed: Tensor  # [T * N] int64: which step, in the order of [T, N], each packed one is
    unpacked: Tensor  # [T * N] int64, the inverse
    batch_sizes: Tensor  # [longest part] int64, on the CPU: parts that have a first, second, ... step
    row: Tensor  # [S] int64: whose part it is
    begins: Tensor  # [S, 1] bool, an episode begins; else the part goes on with the row's state


def cut(begins: Tensor) -> Parts:
    """[T, N, 1] bool, an episode begins."""
    steps, rows = begins.shape[:2]
    is_first = begins.squeeze(-1).t().cpu()  # [N, T]
    is_start = is_first.clone()
    is_start[:, 0] = True
    at = is_start.flatten().nonzero().squeeze(1)  # in the order of [N, T]
    lengths = torch.diff(at, append=torch.tensor([steps * rows]))
    lengths, order = lengths.sort(descending=True, stable=True)
    at = at[order]
    row, start = at // steps, at % steps
    offset = torch.arange(int(lengths[0])).unsqueeze(1)
    exists = offset < lengths  # [longest, S]
    packed = ((start + offset) * rows + row)[exists]
    unpacked = torch.empty_like(packed)
    unpacked[packed] = torch.arange(len(packed))
    device, of_parts = begins.device, is_first.flatten()[at].unsqueeze(1)
    return Parts(packed.to(device), unpacked.to(device), exists.sum(1), row.to(device), of_parts.to(device))


def unroll_gru(x: Tensor, state: Tensor, parts: Parts, weights: list[Tensor]) -> Tensor:
    """As `sequences.GruSequence`, but for the inputs, which are not multiplied yet.

    Args:
        x: [T, N, F].
        state: [N, H] before the first step.
        parts: of these trajectories.
        weights: input [3H, F] and recurrent [3H, H], then their biases [3H].

    Returns:
        [T, N, H] the state after every step.
    """
    with torch.autocast(x.device.type, enabled=False):
        before = _before(state, parts)
        output, _ = torch._VF.gru(
            _packed(x, parts), parts.batch_sizes, before, _in_one(weights), True, 1, 0.0, True, False
        )
    return _unpacked(output, parts, x)


def unroll_lstm(x: Tensor, state: Tensor, cell: Tensor, parts: Parts, weights: list[Tensor]) -> Tensor:
    """As `unroll_gru`, with 4H instead of 3H, and c [N, H] before the first step."""
    with torch.autocast(x.device.type, enabled=False):
        before = (_before(state, parts), _before(cell, parts))
        output, *_ = torch._VF.lstm(
            _packed(x, parts), parts.batch_sizes, before, _in_one(weights), True, 1, 0.0, True, False
        )
    return _unpacked(output, parts, x)


def _in_one(weights: list[Tensor]) -> list[Tensor]:
    """The same weights side by side in memory of their own, as cuDNN wants them: it would make that copy, and warn."""
    flat = torch.cat([weight.flatten() for weight in weights])
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


def _packed(x: Tensor, parts: Parts) -> Tensor:
    return x.float().flatten(0, 1).index_select(0, parts.packed)


def _before(state: Tensor, parts: Parts) -> Tensor:
    # Not a product with zero, which a state that is not finite would survive.
    return state.index_select(0, parts.row).masked_fill(parts.begins, 0.0).unsqueeze(0)


def _unpacked(output: Tensor, parts: Parts, x: Tensor) -> Tensor:
    return output.index_select(0, parts.unpacked).unflatten(0, x.shape[:2])
