"""Which numbers a network computes with: what the option means on the device at hand."""

from __future__ import annotations

import torch


def compute_dtype(precision: str, device: torch.device, reads_images: bool) -> torch.dtype:
    """What `--precision` means for a network on this device.

    auto is bf16 where the device multiplies it in hardware and the network is worth it: small vector networks spend
    more on converting than they save.

    Args:
        precision: auto, fp32 or bf16.
        device: where the network computes.
        reads_images: the network convolves.
    """
    if precision == "auto":
        return torch.bfloat16 if reads_images and multiplies_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def multiplies_bf16(device: torch.device) -> bool:
    """The device multiplies bf16 matrices faster than float32 ones: GPUs since Ampere, CPUs with AMX or AVX512_BF16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))
