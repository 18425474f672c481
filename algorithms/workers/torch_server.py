"""A second forkserver, which has imported torch: processes that compute with it are forked in milliseconds.

Importing torch takes more than a second of CPU time. Here it is imported once, while the environment is being probed,
instead of once by every policy worker and learner, and 50 MB of each are shared with the others. The server computes
nothing, starts no thread and touches no CUDA, so its children may. It holds 220 MB, and ends when the workers have been
started (`ProcessLauncher.forget_torch`). When one of them is lost it starts again (`ProcessLauncher.prepare_start`),
and stays until none has been lost for some minutes.

multiprocessing knows one forkserver per process, in a module variable; this is another object of the same class.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from typing import Any

from appo.utils import processes

PRELOAD = [
    "torch",
    "faster_fifo",
    "setproctitle",
    "appo.algorithms.workers.learner_worker",
    "appo.algorithms.workers.policy_worker",
    "appo.algorithms.workers.model_check",
]


log = logging.getLogger(__name__)


class TorchServer:
    """Forks processes that need not import torch."""

    def __init__(self) -> None:
        """Not started yet."""
        self.is_waited_for = True
        """Callers may wait until torch is imported, as at the start of a run."""
        self.server: Any = _Server()
        self.server.set_forkserver_preload(PRELOAD)

    @property
    def pid(self) -> int:
        """Of the server; 0 before it is started."""
        return self.server._forkserver_pid or 0

    def start(self) -> None:
        """Let the server import torch; returns at once."""
        self.server.is_dismissed = False
        self.server.ensure_running()

    def serves(self) -> bool:
        """A process may be asked for: the server runs, and has imported torch unless that is waited for."""
        return processes.is_running(self.pid) and (self.is_waited_for or self._has_imported())

    def is_importing(self) -> bool:
        """It runs, and will serve in a moment."""
        return processes.is_running(self.pid) and not self._has_imported()

    def dismiss(self) -> None:
        """Mark the server as ending: requests that are pending fail, instead of asking the other server."""
        self.server.is_dismissed = True

    def end(self) -> None:
        """Give its memory back; does nothing where it does not run."""
        self.dismiss()
        end_forkserver(self.server)

    def process(self, target: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> BaseProcess:
        """A process to be started, as `multiprocessing.Process` makes it."""
        return _TorchProcess(self.server, target=target, args=arguments, name=name)

    def _has_imported(self) -> bool:
        """A server begins to handle the ends of its children when everything is imported."""
        return processes.handles_signal(self.pid, signal.SIGCHLD)


def end_forkserver(server: Any) -> None:
    """Kill a server, which may be stopped, or import.

    By itself it ends once no process holds its pipe any more, and a daemon that an environment left behind may hold it
    for ever.
    """
    if server._forkserver_pid is None:
        return
    kill_and_wait(server._forkserver_pid)
    os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def kill_and_wait(child: int) -> None:
    """End a child of this process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # reaped by other code
        os.waitpid(child, 0)


class _Server(forkserver.ForkServer):
    """A forkserver that is started by `TorchServer.start` only, and not by a request for a process."""

    is_dismissed = False

    def connect_to_new_process(self, fds: Any) -> Any:
        server: Any = self
        if not processes.is_alive(server._forkserver_pid or 0):
            raise ConnectionError("it has ended")
        return super().connect_to_new_process(fds)


class _TorchProcess(ForkServerProcess):
    """Asks its own server for a process, not the one of the module."""

    def __init__(self, server: Any, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._server = server

    def _Popen(self, process: Any) -> Any:  # type: ignore[override]  # noqa: N802
        server = self.__dict__.pop("_server")  # this object travels to the new process, which has no use for it
        return _Popen(process, server)


class _Popen(popen_forkserver.Popen):
    """Asks the usual server where its own has ended."""

    def __init__(self, process: Any, server: Any) -> None:
        self._server = server
        super().__init__(process)

    def _launch(self, process: Any) -> None:
        usual = forkserver.connect_to_new_process
        forkserver.connect_to_new_process = self._server.connect_to_new_process
        try:
            super()._launch(process)  # type: ignore[misc]
            return
        except (EOFError, OSError) as error:
            if self._server.is_dismissed:
                raise
            log.warning("the server that has torch does not answer (%r); %s imports it itself", error, process.name)
        finally:
            forkserver.connect_to_new_process = usual
        self._fds: list[int] = []
        super()._launch(process)  # type: ignore[misc]
