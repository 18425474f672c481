"""What the processor that runs the tests can do, and what networks use on it."""

import pytest
import torch

from appo.algorithms.models import device_choices
from appo.algorithms.models.cpu_inference.packing import can_pack

CPU = torch.device("cpu")
packs_float32 = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="this torch packs no weights")
packs_bf16 = pytest.mark.skipif(not can_pack(CPU, torch.bfloat16), reason="no bf16 weights are packed for this CPU")


def use_on_cpu(monkeypatch, choices):
    """Let networks on the CPU use other implementations: those of another device, or one of them."""
    monkeypatch.setitem(device_choices._CHOICES, "cpu", choices)
