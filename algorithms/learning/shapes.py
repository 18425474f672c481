"""Checks on entry, so that a wrong shape is named instead of broadcast."""

from __future__ import annotations

from torch import Tensor


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor whose leading dimensions differ from `shape`.

    Raises:
        ValueError: the shapes do not agree.
    """
    if tuple(tensor.shape[: len(shape)]) != shape:
        raise ValueError(f"{name} is {tuple(tensor.shape)}; expected {shape} in front")


def require_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors that are not all of the first one's shape.

    Raises:
        ValueError: the shapes do not agree.
    """
    (reference, first), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != first.shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, but {reference} is {tuple(first.shape)}")
