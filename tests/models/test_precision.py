"""What --precision means on a device."""

import itertools
import math
import time

import pytest
import torch

from appo.algorithms.models.actor_critic import build_actor_critic
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.models.precision import compute_dtype, multiplies_bf16
from appo.envs.api import ActionLeaf, EnvSpec, ObservationLeaf

CPU = torch.device("cpu")
SMALL, LARGE = 256 * 256, 512 * 512


AMD_WITH_BF16 = {"cpu_name": "AMD EPYC 9R14", "avx512_bf16": True}


@pytest.mark.parametrize(
    ("capabilities", "is_quicker"),
    [
        ({"cpu_name": "Intel Xeon", "amx_bf16": True, "avx512_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "amx_bf16": False, "avx512_bf16": True}, False),  # half the speed of float32
        ({"cpu_name": "Intel Xeon", "amx_bf16": False, "avx512_bf16": False}, False),
        (AMD_WITH_BF16, True),
        ({"cpu_name": "AMD EPYC 7763", "avx512_bf16": False}, False),
        ({"avx512_bf16": True}, False),  # nobody knows how it does that
        ({}, False),
    ],
)
def test_auto_is_bf16_for_large_networks_where_the_processor_is_quicker_at_it(monkeypatch, capabilities, is_quicker):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert multiplies_bf16(CPU) == is_quicker
    expected = torch.bfloat16 if is_quicker else torch.float32
    assert compute_dtype("auto", CPU, reads_images=True, largest=SMALL) == expected
    assert compute_dtype("auto", CPU, reads_images=False, largest=LARGE) == expected
    assert compute_dtype("auto", CPU, reads_images=False, largest=SMALL) == torch.float32
    for reads_images, largest in itertools.product((True, False), (SMALL, LARGE)):
        assert compute_dtype("fp32", CPU, reads_images, largest) == torch.float32
        assert compute_dtype("bf16", CPU, reads_images, largest) == torch.bfloat16


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (4, {"mlp_layers": "512,512"}, torch.bfloat16),
        (4, {"mlp_layers": "256,256"}, torch.float32),
        (4, {"mlp_layers": "64", "use_rnn": True, "hidden_size": 256}, torch.bfloat16),
        (5000, {"mlp_layers": "64,64"}, torch.float32),  # what reads observations is float32 in any case
        (5000, {"mlp_layers": "64,64", "use_spectral_norm": True}, torch.float32),
    ],
)
def test_auto_looks_at_the_matrices_that_would_be_multiplied_in_bf16(monkeypatch, size, options, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD_WITH_BF16)
    spec = EnvSpec((ObservationLeaf("obs", (size,), "float32", "vector"),), (ActionLeaf("discrete", 4),), 1)
    config = ModelConfig(**({"use_rnn": False, "encoder_extra_fc_layers": 0} | options))
    assert build_actor_critic(config, spec).dtype == expected


def test_categories_that_are_looked_up_and_heads_of_many_choices_make_no_network_large(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD_WITH_BF16)
    leaf = ObservationLeaf("obs", (1,), "int64", "categorical", num_categories=50_000)
    spec = EnvSpec((leaf,), (ActionLeaf("discrete", 5_000),), 1)
    config = ModelConfig(use_rnn=False, encoder_extra_fc_layers=0, mlp_layers="64,64")
    assert build_actor_critic(config, spec).dtype == torch.float32


def test_vectors_alone_are_no_work_for_a_gpu_however_wide_the_network(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    gpu = torch.device("cuda")
    assert compute_dtype("auto", gpu, reads_images=False, largest=LARGE) == torch.float32
    assert compute_dtype("auto", gpu, reads_images=True, largest=SMALL) == torch.bfloat16


@pytest.mark.alone
def test_auto_is_no_slower_on_this_processor_than_its_other_choice():
    """Measured: what a processor claims and what it does differ (AVX512_BF16 is half as fast as float32 on Intel's)."""
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for dtype in [*seconds] * 30:
        matrix = torch.ones(512, 512, dtype=dtype)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    chosen = compute_dtype("auto", CPU, reads_images=True, largest=LARGE)
    assert seconds[chosen] < 1.25 * min(seconds.values()), f"auto means {chosen} here, but {seconds}"
