"""Signals to a run: noted by the main process, and acted on by its loop. Every other process of a run ignores them.

SIGINT, SIGTERM, SIGHUP and SIGUSR2 ask it to end after saving, SIGUSR1 to save and go on. A second Ctrl+C ends
at once.
A terminal, a batch system or a service manager may send any of them to every process of a run at the same time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

# SIGUSR2 is what a batch system is told to send before the time is up, so that the job can be queued again.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
SAVING = signal.SIGUSR1
MAIN_PROCESS_DECIDES = (*ENDING, SAVING)
# A launcher may send its signal to the program and then to its group: that is one request.
TOGETHER_S = 0.25
# What a simulator's own launcher may send to its processes, which must not inherit that it is ignored.
_LEFT_TO_SIMULATORS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Remembers the first signal that asks for the end, and counts those that ask for a checkpoint."""

    def __init__(self, end_at_once: Callable[[], None] | None = None) -> None:
        """Install the handlers.

        Args:
            end_at_once: called by a SIGINT that comes `TOGETHER_S` or more after the first signal; must not return.
                None: the process ends.
        """
        self.received: signal.Signals | None = None
        self.saves_requested = 0
        self._received_at = 0.0
        self.end_at_once = end_at_once or (lambda: os._exit(128 + signal.SIGINT))
        # Under nohup a closed terminal is no reason to end.
        noted = [number for number in ENDING if number != signal.SIGHUP or not _is_ignored(number)]
        self._earlier = {number: signal.signal(number, self._note) for number in noted}
        self._earlier[SAVING] = signal.signal(SAVING, self._note_save)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that this signal ended; 0 without one."""
        return 0 if self.received is None else 128 + self.received

    @property
    def reason(self) -> str:
        """Why a run ends that a signal ends: `stopped by SIGINT`."""
        assert self.received is not None
        return f"stopped by {self.received.name}"

    def end_before_start(self) -> int:
        """Say that a signal came before the run started; the exit code."""
        print(f"{self.reason} before the start", flush=True)
        return self.exit_code

    def restore(self) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is None:
            self.received, self._received_at = signal.Signals(number), time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._received_at >= TOGETHER_S:
            self.end_at_once()

    def _note_save(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.saves_requested += 1


@contextlib.contextmanager
def withheld_from_new_processes() -> Iterator[None]:
    """Processes that are started within do not receive these signals from their first instruction on; main thread only.

    They inherit that the signals are blocked. This process misses none: what arrives meanwhile is delivered afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, MAIN_PROCESS_DECIDES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_main_process() -> None:
    """Ignore the signals of a run, in a process that environments run in.

    SIGINT and SIGTERM get a handler that does nothing instead, so that what an environment executes can be ended by
    them as usual.
    """
    for number in MAIN_PROCESS_DECIDES:
        if number in _LEFT_TO_SIMULATORS:
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)
        else:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, MAIN_PROCESS_DECIDES)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN
