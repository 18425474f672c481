"""The device under test. On the CPU, a rehearsal: it stands in with the choices of other devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from appo.algorithms.models.device_choices import OF_TORCH
from appo.algorithms.models.precision import set_gpu_float32
from tests.end_to_end.conftest import start
from tests.models.processors import use_on_cpu

__all__ = ["start"]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """What is compared with the CPU."""
    name: str = request.config.getoption("--gpu_device")
    return name


@pytest.fixture
def on_device(device: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A context in which networks on `device` compute as on a GPU."""

    @contextlib.contextmanager
    def within() -> Iterator[None]:
        with monkeypatch.context() as patch:
            if device == "cpu":
                use_on_cpu(patch, OF_TORCH)
            else:
                set_gpu_float32("fp32")  # networks that are built on the CPU have not asked for it
            yield

    return within
