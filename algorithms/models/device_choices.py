"""Which of two implementations of a part of a network a device uses.

Every choice has two sides that are both correct on any device: tests on the CPU demand numbers and gradients that are
equal to the rounding of float32. What was measured on CPUs is chosen on CPUs only; all other devices get what torch's
own libraries do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from appo.algorithms.models.precision import is_cpu_from_amd


class DeviceChoices(NamedTuple):
    """True: what this project computes itself; False: torch's own."""

    splits_images: bool
    """Images pass through an encoder in parts that fit in a cache, not all at once."""
    keeps_pixels: bool
    """A convolution of pixels keeps their bytes for the backward pass, not the numbers made of them."""
    orders_single_channel: bool
    """Images of one channel are given the strides of channels last, which convolutions then use for their results."""
    transposes_narrow_layers: bool
    """The gradient of a layer with few inputs is computed the other way round."""
    loops_over_steps: bool
    """Recurrent layers run over time in Python and reset states there, not over episodes by the device's library."""
    has_sigmoid_tanh: bool
    """tanh by way of the sigmoid."""
    packs_weights: bool
    """Policy workers keep the weights in the form in which the device multiplies them, see `cpu_inference`."""


OF_TORCH = DeviceChoices(*[False] * len(DeviceChoices._fields))
ON_CPU = DeviceChoices(*[True] * len(DeviceChoices._fields))._replace(has_sigmoid_tanh=is_cpu_from_amd())
_CHOICES = {"cpu": ON_CPU}


def choices_for(device: torch.device) -> DeviceChoices:
    """What networks use on this device."""
    if torch.compiler.is_exporting():  # for devices yet unknown, and batches of any size
        return OF_TORCH
    return _CHOICES.get(device.type, OF_TORCH)
