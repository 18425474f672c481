"""All weights of a module as one contiguous float32 tensor, so that publishing or adopting them is one copy.

Parameters and floating-point buffers become views of it; they keep their identity, shape and memory format, so
optimizers, `state_dict` and `load_state_dict` go on working and act on it. Whole numbers (index tables) are
constants of the architecture and stay where they are. Moving the module to another device or dtype afterwards
would tear it apart: move first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

_ALIGNMENT = 16  # numbers: 64 bytes, a cache line and the widest vector register


def flat_size(module: nn.Module) -> int:
    """How many float32 numbers `flatten` lays out, padding included."""
    return sum(_padded(tensor) for tensor in _tensors(module))


@torch.no_grad()
def flatten(module: nn.Module) -> Tensor:
    """Lay all weights out in one tensor, and make the module use it.

    Two modules built alike have the same layout: `flatten(b).copy_(flatten(a))` makes them equal.

    Returns:
        [flat_size(module)] float32; what is written into it is in force at once.

    Raises:
        TypeError: a tensor is floating point but not float32.
        ValueError: the tensors lie on several devices.
    """
    tensors = list(_tensors(module))
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(f"weights lie on {sorted(map(str, devices))}; move the module to one device first")
    device = devices.pop() if devices else torch.device("cpu")
    flat = torch.zeros(flat_size(module), device=device)
    start = 0
    for tensor in tensors:
        # Strides are kept where a tensor is dense: convolutions stay in channels_last.
        view = flat[start : start + tensor.numel()].as_strided(
            tensor.shape, torch.empty_like(tensor).stride(), storage_offset=start
        )
        view.copy_(tensor)
        tensor.data = view
        start += _padded(tensor)
    return flat


def _padded(tensor: Tensor) -> int:
    return -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Every parameter and floating buffer once, in the order of the architecture."""
    seen: set[int] = set()
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in named:
        if not tensor.is_floating_point() or id(tensor) in seen:
            continue
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} is {tensor.dtype}; weights that travel are float32")
        seen.add(id(tensor))
        yield tensor
