"""What the processor that runs the tests can do."""

import pytest
import torch

from appo.algorithms.models.packing import can_pack

CPU = torch.device("cpu")
packs_float32 = pytest.mark.skipif(not can_pack(CPU, torch.float32), reason="this torch packs no weights")
packs_bf16 = pytest.mark.skipif(not can_pack(CPU, torch.bfloat16), reason="no bf16 weights are packed for this CPU")
