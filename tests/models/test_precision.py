"""What --precision means on a device."""

import pytest
import torch

from algorithms.models.precision import compute_dtype, multiplies_bf16

CPU = torch.device("cpu")


@pytest.mark.parametrize(("has_amx", "has_avx"), [(True, True), (False, True), (False, False)])
def test_auto_is_bf16_for_images_where_the_processor_multiplies_it(monkeypatch, has_amx, has_avx):
    capabilities = {"amx_bf16": has_amx, "avx512_bf16": has_avx, "avx512_f": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert multiplies_bf16(CPU) == has_avx
    expected = torch.bfloat16 if has_avx else torch.float32
    assert compute_dtype("auto", CPU, reads_images=True) == expected
    assert compute_dtype("auto", CPU, reads_images=False) == torch.float32
    for reads_images in (True, False):
        assert compute_dtype("fp32", CPU, reads_images) == torch.float32
        assert compute_dtype("bf16", CPU, reads_images) == torch.bfloat16


def test_a_processor_that_does_not_say_has_none(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert not multiplies_bf16(CPU)
