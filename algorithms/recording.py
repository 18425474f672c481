"""Work for a GPU that is recorded once and from then on handed over as a whole: a CUDA graph.

A step of a network is tens to hundreds of kernels. To hand over one takes a processor core 10 to 30 us, most are done
in less, and so the GPU waits for the core. Played from a recording, all of them cost one call.

What is recorded reads and writes the same memory each time: its inputs are copied into place before, its results are
overwritten by the next play. Python code in it runs while it is recorded and never again. While that happens, no other
thread of the process may wait for the GPU: none of the program's own does.

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


class CannotBeRecordedError(RuntimeError):
    """The work can be done, but not recorded: it waits for the GPU, or memory is short. The message says where."""


class RecordingFailedError(RuntimeError):
    """The process cannot use its GPU any more, since something in the work broke the recording."""

    retryable = False


class Recording(Generic[Result]):
    """One piece of work, ready to be played again and again on one GPU."""

    result: Result
    """What the work returned; tensors that it made hold what the newest play computed."""

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
            work: returns tensors, in any structure.
            device: the GPU.
            generators: those of the device that the work draws random numbers from; they go on by some draws.
            pool: of another recording, whose results nobody reads any more when this one is played; None: a new one.

        Raises:
            CannotBeRecordedError: see there; nothing is changed but by the work itself.
            RecordingFailedError: see there.
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
                raise CannotBeRecordedError(_told(error)) from error
            except RuntimeError as error:
                raise RecordingFailedError(
                    f"a step cannot be recorded as a CUDA graph ({_told(error)}); start again with --cuda_graphs=False"
                ) from error

    @property
    def pool(self) -> Any:
        """The memory of everything in it."""
        return self._graph.pool()

    def play(self) -> Result:
        """Hand all of the work over; does not wait for it."""
        self._graph.replay()
        return self.result


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where work is recorded, as recordings demand; one for all, since libraries keep memory for each stream."""
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
            raise CannotBeRecordedError(_told(error)) from error
        finally:
            _forbid_waiting(before)
            here.wait_stream(stream)


def _forbid_waiting(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses some ways to wait; these break the recording
        torch.cuda.set_sync_debug_mode(mode)


def _told(error: RuntimeError) -> str:
    """The error's first line, and the last place outside of torch that it came through."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if _TORCH not in Path(frame.filename).parents
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    return place + (str(error).splitlines() or [type(error).__name__])[0]
