"""Work for a GPU that is captured once as a CUDA graph, and from then on launched as a whole.

A step of a network is tens to hundreds of kernels. To launch one takes a processor core 10 to 30 us, most are done in
less, and so the GPU waits for the core. A graph is one launch for all of them.

A graph reads and writes the same memory each time: its inputs are copied into place before, its results are overwritten
by the next replay. Python code in it runs while it is captured and never again. While that happens, no other thread of
the process may wait for the GPU: none of the program's own does.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")
_WARM_UPS = 3  # in which libraries choose their kernels and take their memory
_TORCH = Path(torch.__file__).parent


class CannotBeCapturedError(RuntimeError):
    """The work can be done, but not captured: it waits for the GPU, or memory is short. The message says where."""


class CaptureFailedError(RuntimeError):
    """The process cannot use its GPU any more, since something in the work broke the capture."""

    retryable = False


class CapturedGraph(Generic[Result]):
    """One piece of work, ready to be done again and again on one GPU."""

    result: Result
    """What the work returned; tensors that it made hold what the newest replay computed."""

    def __init__(
        self,
        work: Callable[[], Result],
        device: torch.device,
        *,
        generators: Sequence[torch.Generator] = (),
        pool: Any = None,
    ) -> None:
        """Do the work a few times, and capture it; there are results from the first `replay` on.

        Args:
            work: returns tensors, in any structure.
            device: the GPU.
            generators: those of the device that the work draws random numbers from; they go on by some draws.
            pool: of another graph, whose results nobody reads any more when this one is replayed; None: a new one.

        Raises:
            CannotBeCapturedError: see there; nothing is changed but by the work itself.
            CaptureFailedError: see there.
        """
        with torch.cuda.device(device):
            stream = _side_stream(device)
            _warm_up(work, stream)
            self._graph = torch.cuda.CUDAGraph()
            for generator in generators:
                self._graph.register_generator_state(generator)
            try:
                # Other threads of the process may go on allocating memory.
                with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self.result = work()
            except torch.OutOfMemoryError as error:
                raise CannotBeCapturedError(_told(error)) from error
            except RuntimeError as error:
                raise CaptureFailedError(
                    f"a step cannot be captured as a CUDA graph ({_told(error)}); start again with --cuda_graphs=False"
                ) from error

    @property
    def pool(self) -> Any:
        """The memory of everything in it."""
        return self._graph.pool()

    def replay(self) -> Result:
        """Launch all of the work; does not wait for it."""
        self._graph.replay()
        return self.result


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where work is captured, for it must not be the default stream; one, since libraries keep memory for each."""
    return torch.cuda.Stream(device)


def _warm_up(work: Callable[[], object], stream: torch.cuda.Stream) -> None:
    """Do the work until nothing is done for the first time; the last time, waiting for the GPU is an error."""
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    before = torch.cuda.get_sync_debug_mode()
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            work()
        try:
            _forbid_waiting("error")
            work()
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            raise CannotBeCapturedError(_told(error)) from error
        finally:
            _forbid_waiting(before)
            here.wait_stream(stream)


def _forbid_waiting(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses some ways to wait; these break the capture
        torch.cuda.set_sync_debug_mode(mode)


def _told(error: RuntimeError) -> str:
    """The error's first line, and the last place outside of torch that it came through."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _TORCH not in Path(frame.filename).parents
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    return place + (str(error).splitlines() or [type(error).__name__])[0]
