"""Which numbers a network computes with: what the option means on the device at hand."""

from __future__ import annotations

from typing import Any

import torch

# Numbers in a matrix: 512 x 512 train 1.4 times as fast in bf16 on a CPU, 256 x 256 1.06 times.
_WORTH_CONVERTING = 131_072


def compute_dtype(precision: str, device: torch.device, reads_images: bool, largest: int) -> torch.dtype:
    """What `--precision` means for a network on this device.

    auto is bf16 where the device multiplies it in hardware and the network is worth it: small vector networks spend
    more on converting than they save, and a GPU is done with larger ones before the conversion has started.

    Args:
        precision: auto, fp32 or bf16.
        device: where the network computes.
        reads_images: the network convolves.
        largest: numbers in the largest matrix that would be multiplied in it.
    """
    if precision == "auto":
        is_worth_it = reads_images or (device.type == "cpu" and largest >= _WORTH_CONVERTING)
        return torch.bfloat16 if is_worth_it and multiplies_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def set_gpu_float32(precision: str) -> None:
    """How this process multiplies float32 on GPUs where torch leaves a choice.

    Recurrent layers exactly, since policy workers compute the same in single steps; convolutions in TF32, with 11 bits
    of mantissa, unless fp32 was asked for. All other products are exact by default.
    """
    cudnn: Any = torch.backends.cudnn
    cudnn.rnn.fp32_precision = "ieee"
    cudnn.conv.fp32_precision = "ieee" if precision == "fp32" else "tf32"


def multiplies_bf16(device: torch.device) -> bool:
    """The device multiplies bf16 matrices faster than float32 ones.

    GPUs since Ampere do, and CPUs with AMX. With AVX512_BF16 alone AMD's are twice as fast as in float32, Intel's half
    as fast: CartPole, Breakout and doom_basic train 1.3 to 1.4 times as fast in float32 there.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or (is_cpu_from_amd() and capabilities.get("avx512_bf16")))


def is_cpu_from_amd() -> bool:
    """Libraries of Intel's choose slower code there."""
    return str(torch.cpu.get_capabilities().get("cpu_name", "")).startswith("AMD")
