"""What --precision means on a device."""

import itertools

import pytest
import torch

from algorithms.models.precision import compute_dtype, multiplies_bf16

CPU = torch.device("cpu")
SMALL, LARGE = 256 * 256, 512 * 512


@pytest.mark.parametrize(("has_amx", "has_avx"), [(True, True), (False, True), (False, False)])
def test_auto_is_bf16_for_large_networks_where_the_processor_multiplies_it(monkeypatch, has_amx, has_avx):
    capabilities = {"amx_bf16": has_amx, "avx512_bf16": has_avx, "avx512_f": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert multiplies_bf16(CPU) == has_avx
    expected = torch.bfloat16 if has_avx else torch.float32
    assert compute_dtype("auto", CPU, reads_images=True, largest=SMALL) == expected
    assert compute_dtype("auto", CPU, reads_images=False, largest=LARGE) == expected
    assert compute_dtype("auto", CPU, reads_images=False, largest=SMALL) == torch.float32
    for reads_images, largest in itertools.product((True, False), (SMALL, LARGE)):
        assert compute_dtype("fp32", CPU, reads_images, largest) == torch.float32
        assert compute_dtype("bf16", CPU, reads_images, largest) == torch.bfloat16


def test_vectors_alone_are_no_work_for_a_gpu_however_wide_the_network(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    gpu = torch.device("cuda")
    assert compute_dtype("auto", gpu, reads_images=False, largest=LARGE) == torch.float32
    assert compute_dtype("auto", gpu, reads_images=True, largest=SMALL) == torch.bfloat16


def test_a_processor_that_does_not_say_has_none(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not multiplies_bf16(CPU)
