"""Work for a GPU that is recorded once and from then on handed over as a whole: a CUDA graph.

A step of a network is tens to hundreds of kernels. To hand over one takes a processor core 10 to 30 us, most are done
in less, and so the GPU waits for the core. Played from a recording, all of them cost one call.

What is recorded reads and writes the same memory each time: its inputs are copied into place before, its results are
overwritten by the next play. It must not depend on numbers on the GPU in Python, which would be asked for once only.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")
_WARM_UPS = 3  # in which libraries choose their kernels and take their memory


class CannotBeRecordedError(RuntimeError):
    """The work waits for the GPU. The message says where."""


class Recording(Generic[Result]):
    """One piece of work, ready to be played again and again on one GPU."""

    result: Result
    """What the work returned; its tensors hold what the newest play computed."""

    def __init__(
        self,
        work: Callable[[], Result],
        device: torch.device,
        *,
        generators: Sequence[torch.Generator] = (),
        pool: Any = None,
    ) -> None:
        """Do the work a few times, and record it; the results are those of the first `play`.

        Args:
            work: returns tensors that it has made, in any structure.
            device: the GPU.
            generators: those of the device that the work draws random numbers from.
            pool: of another recording, whose results nobody reads any more when this one is played; None: a new one.

        Raises:
            CannotBeRecordedError: the work waits for numbers of the GPU.
        """
        _warm_up(work, device)
        self._graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self._graph.register_generator_state(generator)
        # Other threads of the process may go on allocating memory.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self.result = work()

    @property
    def pool(self) -> Any:
        """The memory of everything in it."""
        return self._graph.pool()

    def play(self) -> Result:
        """Hand all of the work over; does not wait for it."""
        self._graph.replay()
        return self.result


def _warm_up(work: Callable[[], object], device: torch.device) -> None:
    """On a stream of its own, as recordings demand; the last time, waiting for the GPU is an error."""
    here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    aside.wait_stream(here)
    before = torch.cuda.get_sync_debug_mode()
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UPS):
            work()
        try:
            _forbid_waiting("error")
            work()
        except RuntimeError as error:
            raise CannotBeRecordedError(str(error).splitlines()[0]) from error
        finally:
            _forbid_waiting(before)
            here.wait_stream(aside)


def _forbid_waiting(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses some ways to wait; what it finds is enough
        torch.cuda.set_sync_debug_mode(mode)
