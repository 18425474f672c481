"""What a learner leaves for the one that comes after it: weights, optimizer and schedule, whole, in shared memory.

Written every few seconds, tensor by tensor from where it lies, so that nothing is gathered first. The weights of a
successor are newer than these: they are published after every optimizer step.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from appo.algorithms.learning.learner import Learner
from appo.algorithms.memory.weights import WeightsBuffer
from appo.utils.failpoints import failpoint

_PLAIN_BYTES = 65_536  # schedule, random numbers, counters; a generator's state takes 5 kB of it


class LearnerSnapshot:
    """The newest snapshot of one policy's learner."""

    def __init__(self, buffer: WeightsBuffer, flat: Tensor, learner: Learner) -> None:
        """Of `learner`, whose model's weights all lie in `flat`."""
        self._buffer = buffer
        self._flat = flat
        self._learner = learner
        self._plain = np.zeros(_PLAIN_BYTES, np.uint8)

    @property
    def exists(self) -> bool:
        """A snapshot has been taken."""
        return self._buffer.publication > 0

    def take(self) -> None:
        """Keep the learner as it is now."""
        state = self._learner.state_dict()
        plain = {name: value for name, value in state.items() if name != "optimizer"}
        content = np.frombuffer(pickle.dumps(plain), np.uint8)
        self._plain[: len(content)] = content
        parts = [self._plain, *(_as_array(tensor) for tensor in self._tensors(state))]
        failpoint("learner-snapshot")
        self._buffer.publish_parts(parts, self._learner.policy_version)

    def load(self, policy_version: int = 0) -> int:
        """Make the learner what it was; its policy version becomes `policy_version` if that is higher.

        The policy version that it had comes back.

        Raises:
            ValueError: there is no snapshot, or one of another model.
        """
        state = self._learner.state_dict()
        plain = self._read(self._buffer)
        taken: int = plain["num_updates"]
        plain["num_updates"] = max(taken, policy_version)
        self._learner.load_state_dict(state | plain)
        return taken

    def adopt(self, other: WeightsBuffer, values: Mapping[str, float], request: int) -> int:
        """Make the learner another one, as that one's snapshot has it; nobody else sees it before `take`.

        The policy version that the other one had comes back.

        Args:
            other: the snapshot of a learner of the same network.
            values: options from now on.
            request: see `Learner.adopt`.

        Raises:
            ValueError: there is no such snapshot, or it is of another network; nothing has changed.
        """
        plain = self._read(other)
        self._learner.adopt(plain, values, request)
        taken: int = plain["num_updates"]
        return taken

    def _read(self, buffer: WeightsBuffer) -> dict[str, Any]:
        """Weights and moments into the learner's own tensors; the rest comes back."""
        tensors = self._tensors(self._learner.state_dict())
        arrays = [_as_array(tensor) for tensor in tensors]
        buffer.read_parts_into([self._plain, *arrays])
        for tensor, array in zip(tensors, arrays, strict=True):
            if tensor.device.type != "cpu":
                _as_row(tensor).copy_(torch.from_numpy(array))
        plain: dict[str, Any] = pickle.loads(self._plain.tobytes())  # what follows the pickle is padding
        return plain

    def _tensors(self, state: dict[str, Any]) -> list[Tensor]:
        moments = state["optimizer"]
        return [self._flat, *(tensor for name in sorted(moments) for tensor in moments[name])]


def _as_row(tensor: Tensor) -> Tensor:
    """Every number of a dense tensor, in the order of memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _as_array(tensor: Tensor) -> NDArray[Any]:
    """The numbers of a tensor: its own memory on the CPU, a copy elsewhere."""
    return _as_row(tensor).cpu().numpy()
