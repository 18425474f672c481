"""What child processes of the memory tests do; a module of its own, so that a child can import it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from appo.algorithms.memory.weights import WeightsBuffer
from appo.algorithms.workers.worker import SharedMemoryHandle
from appo.utils.doorbells import SharedDescriptor


def add_one_everywhere(handle: SharedMemoryHandle, pipe: Any) -> None:
    """Answer what the other process wrote, through the same memory."""
    arrays = handle.map()
    pipe.send(int(arrays["env_frames"].sum()))
    arrays["env_frames"][...] += 1
    pipe.send("added")
    pipe.recv()


def publish_for_a_while(descriptor: SharedDescriptor, count: int, seconds: float) -> None:
    """Publish as fast as possible; every number equals the version."""
    weights = WeightsBuffer(descriptor.descriptor)
    flat = np.zeros(count, np.float32)
    until, version = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        version += 1
        flat.fill(version)
        weights.publish(flat, version)
