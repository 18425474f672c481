"""Where processes come from: a server that forks them, a guardian that outlives us, and calls in a process of its own.

Both are started before torch, threads or CUDA are touched. The guardian takes the whole process group down when the
driver ends, however it ends.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Any

import psutil

from envs.api import UnsupportedSpaceError
from utils import guardian, processes
from utils.files import cut_text
from utils.options import ConfigError

# Every child needs these; imported once in the server, they cost a child neither time nor memory.
PRELOAD = ["numpy", "gymnasium", "faster_fifo", "setproctitle", "threadpoolctl", "algorithms.workers.actor_worker"]

# How soon a signal is noticed while the environment is being looked at.
CANCEL_CHECK_S = 0.1
CLEAR_UP_S = 5.0


class RunFailed(RuntimeError):
    """The run cannot go on. The message ends with the cause; where it is too long, its middle is left out."""

    def __init__(self, message: str) -> None:
        super().__init__(cut_text(message))


class LaunchPad:
    """The server that forks children and the guardian that outlives us; started before anything else."""

    def __init__(self, search_path: list[str]) -> None:
        """Start both. `search_path`: folders of the user's own modules."""
        self.search_path = search_path
        self._clear_up = ""
        # For the forkserver's socket. multiprocessing would make a folder itself, which stays when we are killed.
        self._sockets = tempfile.mkdtemp(prefix="appo-")
        this_process: Any = multiprocessing.current_process()
        this_process._config["tempdir"] = self._sockets
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self._sockets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.adopt_orphans()
        processes.allow_many_descriptors()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        forkserver.ensure_running()
        assert self._guardian.stdout is not None
        self.process_group = int(self._guardian.stdout.readline())

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
        return {pid for pid in (self._guardian.pid, server._forkserver_pid, tracker._pid) if pid}

    def dead(self) -> str:
        """The name of a helper process that has ended, empty while all live."""
        if self._guardian.poll() is not None:
            return "appo guardian"
        server = _forkserver()
        pid = server._forkserver_pid
        return "" if pid and _is_alive(pid) else "the forkserver"

    def run_once(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout_s: float,
        is_cancelled: Callable[[], bool],
    ) -> Any:
        """The result of a function that runs in a process of its own and may not take the driver with it.

        Args:
            function: importable by its name.
            arguments: of the function; they travel by pickle.
            timeout_s: how long it may take.
            is_cancelled: looked at now and then; the result is None when it holds.

        Raises:
            RunFailed: the process died, hung, or the function raised; with its traceback.
            ConfigError: the function raised it, or refused a space.
        """
        receiver, sender = self.context.Pipe(duplex=False)
        once = (sender, self.process_group, self.search_path, function, arguments)
        child = self.context.Process(target=_run_once, args=once, name="appo probe")
        child.start()
        sender.close()
        name = getattr(function, "__name__", str(function))
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


def _run_once(
    sender: Any, group: int, search_path: list[str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.die_with_parent(os.getppid())
    processes.join_group(group)
    processes.set_title("appo probe")
    processes.redirect_output(Path(os.devnull))
    sys.path += [folder for folder in search_path if folder not in sys.path]
    result, refusal, failure = None, "", ""
    try:
        result = function(*arguments)
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
