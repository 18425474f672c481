"""A stand-in for recordings on a GPU: results stay where they are, and the next play overwrites them."""

import torch
from torch.utils._pytree import tree_leaves

from appo.algorithms.recording import CannotBeRecordedError


class CalledAgain:
    """Does the work anew each time, after it was tried out as for a recording."""

    made = 0
    pool = None

    def __init__(self, work, device, *, generators=(), pool=None):
        for _ in range(2):
            work()
        self._work, self.result = work, work()
        type(self).made += 1

    def play(self):
        for mine, new in zip(self._tensors(self.result), self._tensors(self._work()), strict=True):
            mine.copy_(new)
        return self.result

    @staticmethod
    def _tensors(result):
        """Those that the work has made."""
        return [leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


class WaitsAtTheEnd:
    """Work that waits for its device when most of it is done."""

    def __init__(self, work, device, **_options):
        work()
        raise CannotBeRecordedError("called a synchronizing CUDA operation")


class Refused:
    """Work that waits for its device."""

    def __init__(self, work, device, **_options):
        raise CannotBeRecordedError("called a synchronizing CUDA operation")
