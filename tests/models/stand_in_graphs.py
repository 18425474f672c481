"""A stand-in for CUDA graphs: results stay where they are, and the next replay overwrites them."""

import torch
from torch.utils._pytree import tree_leaves

from appo.algorithms.cuda_graphs import CannotBeCapturedError


class CalledAgain:
    """Does the work anew each time, after it was tried out as for a capture."""

    made = 0
    pool = None
    weights: tuple[torch.nn.Parameter, ...] = ()  # whose gradients a graph does not put in their place

    def __init__(self, work, device, *, generators=(), pool=None):
        for _ in range(2):
            work()
        self._work, self.result = work, work()
        type(self).made += 1

    def replay(self):
        for mine, new in zip(self._tensors(self.result), self._tensors(self._work()), strict=True):
            mine.copy_(new)
        for weight in self.weights:
            weight.grad = None
        return self.result

    @staticmethod
    def _tensors(result):
        """Those that the work has made."""
        return [leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def count_graphs(monkeypatch, module):
    """Let a module of the program use `CalledAgain`; its `made` tells how many there were."""

    class Counted(CalledAgain):
        made = 0

    monkeypatch.setattr(module, "CapturedGraph", Counted)
    return Counted


class WaitsAtTheEnd:
    """Work that waits for its device when most of it is done."""

    weights: tuple[torch.nn.Parameter, ...] = ()

    def __init__(self, work, device, **_options):
        work()
        raise CannotBeCapturedError("called a synchronizing CUDA operation")


class Refused:
    """Work that waits for its device."""

    weights: tuple[torch.nn.Parameter, ...] = ()

    def __init__(self, work, device, **_options):
        raise CannotBeCapturedError("called a synchronizing CUDA operation")
