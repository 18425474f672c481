"""Where processes come from: a server that forks them, a guardian that outlives us, and calls in a process of its own.

Both are started before torch, threads or CUDA are touched. The guardian takes the whole process group down when the
driver ends, however it ends.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from algorithms.workers.torch_server import TorchServer
from envs.api import UnsupportedSpaceError
from utils import guardian, processes
from utils.options import ConfigError

# Every child needs these; imported once in the server, they cost a child neither time nor memory.
PRELOAD = ["numpy", "gymnasium", "faster_fifo", "setproctitle", "threadpoolctl", "algorithms.workers.actor_worker"]

# How soon a signal is noticed while the environment is being looked at.
CANCEL_CHECK_S = 0.1
CLEAR_UP_S = 5.0
_MAX_SOCKET_FOLDER_BYTES = 70


class RunFailed(RuntimeError):
    """The run cannot go on. The message ends with the cause."""


class LaunchPad:
    """The server that forks children and the guardian that outlives us; started before anything else."""

    def __init__(self, search_path: list[str]) -> None:
        """Start both. `search_path`: folders of the user's own modules."""
        self.search_path = search_path
        self._clear_up = ""
        # For the forkservers' sockets. multiprocessing would make a folder itself, which stays when we are killed.
        self._sockets = _socket_folder()
        this_process: Any = multiprocessing.current_process()
        this_process._config["tempdir"] = self._sockets
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self._sockets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.adopt_orphans()
        processes.allow_many_descriptors()
        processes.allow_large_files()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self._torch_server = TorchServer()
        forkserver.ensure_running()
        assert self._guardian.stdout is not None
        self.process_group = int(self._guardian.stdout.readline())

    def import_torch(self) -> None:
        """Let a server import torch, meanwhile, for those processes that will need it."""
        self._torch_server.start()

    def process(
        self, target: Callable[..., Any], arguments: tuple[Any, ...], name: str, *, uses_torch: bool = False
    ) -> BaseProcess:
        """A process to be started, with torch imported if it uses that and `import_torch` was called."""
        if uses_torch and self._torch_server.pid:
            return self._torch_server.process(target, arguments, name)
        process: BaseProcess = self.context.Process(target=target, args=arguments, name=name)
        return process

    def clear_up_with(self, script: str) -> None:
        """Let a script run when all processes have been killed, however we end; see `EnvFamily.clear_up`."""
        assert self._guardian.stdin is not None
        self._clear_up = script
        self._guardian.stdin.write(f"{script}\n".encode())
        self._guardian.stdin.flush()

    @property
    def pids(self) -> set[int]:
        """Children of the driver that are no workers."""
        server = _forkserver()
        tracker: Any = resource_tracker._resource_tracker
        pids = (self._guardian.pid, server._forkserver_pid, self._torch_server.pid, tracker._pid)
        return {pid for pid in pids if pid}

    def dead(self) -> str:
        """The name of a helper process that has ended, empty while all live."""
        if self._guardian.poll() is not None:
            return "appo guardian"
        torch_pid = self._torch_server.pid
        servers = [_forkserver()._forkserver_pid, *([torch_pid] if torch_pid else [])]
        return "" if all(pid and _is_alive(pid) for pid in servers) else "the forkserver"

    def run_once(
        self,
        function: Callable[..., Any] | str,
        arguments: tuple[Any, ...],
        timeout_s: float,
        is_cancelled: Callable[[], bool],
        *,
        uses_torch: bool = False,
    ) -> Any:
        """The result of a function that runs in a process of its own and may not take the driver with it.

        Args:
            function: importable by its name, or "package.module:function", so that the driver need not import it.
            arguments: of the function; they travel by pickle.
            timeout_s: how long it may take.
            is_cancelled: looked at now and then; the result is None when it holds.
            uses_torch: see `process`.

        Raises:
            RunFailed: the process died, hung, or the function raised; with its traceback.
            ConfigError: the function raised it, or refused a space.
        """
        receiver, sender = self.context.Pipe(duplex=False)
        once = (sender, self.process_group, self.search_path, function, arguments)
        child = self.process(_run_once, once, "appo probe", uses_torch=uses_torch)
        child.start()
        sender.close()
        name = function.partition(":")[2] if isinstance(function, str) else function.__name__
        try:
            deadline = time.monotonic() + timeout_s
            while not receiver.poll(CANCEL_CHECK_S):
                if is_cancelled():
                    return None
                if time.monotonic() > deadline:
                    raise RunFailed(f"{name} did not finish within {timeout_s:g} s")
            result, refusal, failure = receiver.recv()
        except EOFError:
            child.join(1.0)
            raise RunFailed(f"{name} {describe_exit(child.exitcode)}") from None
        finally:
            child.kill()
            child.join(1.0)
        if refusal:
            raise ConfigError(refusal)
        if failure:
            raise RunFailed(failure)
        return result

    def kill_everything(self) -> None:
        """Nothing of ours is left after this call."""
        guardian_process = self._guardian
        assert guardian_process.stdin is not None and guardian_process.stdout is not None
        guardian_process.stdin.close()  # the guardian kills its whole group, itself included
        guardian_process.wait()
        guardian_process.stdout.close()
        self._torch_server.kill()
        with contextlib.suppress(FileNotFoundError):  # its socket went with the guardian
            _forkserver()._stop()
        this_process: Any = multiprocessing.current_process()
        this_process._config.pop("tempdir", None)  # the guardian has deleted it
        processes.kill_strangers(self.pids)
        shutil.rmtree(self._sockets, ignore_errors=True)  # where the guardian was killed itself
        if self._clear_up:  # the guardian has started it as well, and it went with the strangers
            command = [sys.executable, "-I", "-S", self._clear_up, str(self.process_group)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, timeout=CLEAR_UP_S, check=False)


def _socket_folder() -> str:
    """A new folder whose path leaves room for the name of a socket, which systems allow about 100 bytes.

    Raises:
        ConfigError: there is none.
    """
    for parent in (None, "/tmp"):  # where TMPDIR says, if that is short enough
        try:
            folder = tempfile.mkdtemp(prefix="appo-", dir=parent)
        except OSError as error:
            raise ConfigError(f"no folder for temporary files can be used: {error}; set TMPDIR to one") from error
        if len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER_BYTES:
            return folder
        Path(folder).rmdir()
    raise AssertionError("a folder in /tmp has a short path")


def _run_once(
    sender: Any, group: int, search_path: list[str], function: Callable[..., Any] | str, arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.die_with_parent(os.getppid())
    processes.join_group(group)
    processes.set_title("appo probe")
    processes.redirect_output(Path(os.devnull))
    sys.path += [folder for folder in search_path if folder not in sys.path]
    result, refusal, failure = None, "", ""
    try:
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        result = function(*arguments)  # type: ignore[operator]  # no text any more
    except (ConfigError, UnsupportedSpaceError) as error:
        refusal = str(error)
    except Exception as error:
        failure = "".join(traceback.format_exception(error))
    sender.send((result, refusal, failure))
    sender.close()
    os._exit(0)


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "did not end"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (kill -9, or the system ran out of memory)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _forkserver() -> Any:
    """The one server of this process, which multiprocessing keeps to itself."""
    return forkserver._forkserver
