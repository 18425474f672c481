"""Where processes come from: two servers that fork them, and a guardian that kills them when the driver has ended.

The first server and the guardian start before torch, threads or CUDA are touched. The second server imports torch.
Functions that may not take the driver with them run in a process of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.workers.torch_server import TorchServer, end_forkserver, kill_and_wait
from appo.envs.api import UnsupportedSpaceError
from appo.utils import guardian, processes
from appo.utils.files import allow_large_files, cut_text
from appo.utils.options import ConfigError
from appo.utils.signals import leave_to_main_process, withheld_from_new_processes

# Every child needs these; imported once in the server, they cost a child neither time nor memory.
PRELOAD = ["numpy", "gymnasium", "faster_fifo", "setproctitle", "threadpoolctl", "appo.algorithms.workers.actor_worker"]

# How soon a signal is noticed while the environment is being looked at.
CANCEL_CHECK_S = 0.1
CLEAR_UP_S = 5.0
# The server may have to import everything first, from a slow disk; the guardian ends at once.
START_S, GUARDIAN_S = 120.0, 3.0
# How long torch stays imported for the next worker that is lost.
TORCH_KEPT_S = 300.0
# Free bytes, twice what the server holds, below which a lost worker's successor imports torch itself.
MEMORY_FOR_TORCH = 500 * 2**20
_MAX_SOCKET_FOLDER_BYTES = 70


class RunFailed(RuntimeError):
    """The run cannot go on. The message ends with the cause; where it is too long, its middle is left out."""

    def __init__(self, message: str) -> None:
        super().__init__(cut_text(message))


class ProcessEnded(RunFailed):
    """A process that was to give a result ended without any."""


class _Home(NamedTuple):
    """Where a process that runs one function belongs."""

    process_group: int
    driver: int  # pid
    mark: str
    search_path: list[str]


class TimeLimit(NamedTuple):
    """How long something may take, and the option that says so, if there is one."""

    seconds: float
    option: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:g} s" + (f" ({self.option})" if self.option else "")


class ProcessLauncher:
    """The server that forks children and the guardian that outlives us; started before anything else."""

    def __init__(self, search_path: list[str]) -> None:
        """Start both. `search_path`: folders of the user's own modules."""
        self.search_path = search_path
        self._clear_up = ""
        # For the forkservers' sockets. multiprocessing would make a folder itself, which stays when we are killed.
        self._sockets = _socket_folder()
        self.mark = Path(self._sockets).name
        """What tells this run's processes from all others, see `guardian`."""
        this_process: Any = multiprocessing.current_process()
        this_process._config["tempdir"] = self._sockets
        self._adopted_before = processes.adopt_orphans()
        processes.allow_many_descriptors()
        allow_large_files()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self._torch_server = TorchServer()
        self._torch_needed_at = self._torch_expected_by = 0.0
        self._owns_tracker = _tracker_pid() is None
        with withheld_from_new_processes():
            resource_tracker.ensure_running()  # first: it lets some of them through again
        with withheld_from_new_processes():
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, self._sockets],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            with self._for_servers():
                forkserver.ensure_running()
        assert self._guardian.stdout is not None
        self.process_group = int(self._guardian.stdout.readline())

    def import_torch(self) -> None:
        """Let a server import torch, meanwhile, for those processes that will need it."""
        with withheld_from_new_processes(), self._for_servers():
            self._torch_server.start()

    @contextlib.contextmanager
    def _for_servers(self) -> Iterator[None]:
        """What a server is started with: the run's mark, where it finds what it is to import ahead, how threads wait.

        Threads that wait for each other sleep, those of torch and of every other library that uses OpenMP, if the user
        has not said otherwise. By default they spin first, and where processes have more threads than there are cores,
        they spin for one that has no core.
        """
        variables = {
            processes.MARK_VARIABLE: self.mark,
            "PYTHONPATH": os.pathsep.join(filter(None, [processes.import_root(), os.environ.get("PYTHONPATH")])),
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        }
        with contextlib.ExitStack() as changed:
            for name, value in variables.items():
                changed.enter_context(_in_environment(name, value))
            yield

    def mark_own_children(self) -> None:
        """For a run without workers, whose environments live in this process: what they start ends with the run."""
        os.environ[processes.MARK_VARIABLE] = self.mark

    def forget_torch(self, unused_for_s: float = 0.0) -> None:
        """End the server, which holds memory, once no process has needed it for so long.

        Where the ends of its children are not seen without it, it stays.
        """
        if processes.can_watch() and time.monotonic() - self._torch_needed_at >= unused_for_s:
            self._torch_server.is_waited_for = False
            self._torch_server.end()

    def prepare_start(self, *, uses_torch: bool) -> bool:
        """Whether a process can be started now; False while the server, once ended, imports torch for it again.

        The server then serves those that follow as well: what ends one worker may end others. Where it dies or hangs,
        or memory is short, the process is to import torch itself.
        """
        server = self._torch_server
        if not uses_torch or server.is_waited_for:
            return True
        now = self._torch_needed_at = time.monotonic()
        is_late = now > self._torch_expected_by
        if processes.is_alive(server.pid):
            return is_late or not server.is_importing()
        if is_late and processes.available_memory() > MEMORY_FOR_TORCH:
            self._torch_expected_by = now + START_S
            with contextlib.suppress(OSError):  # no memory or no descriptors
                self.import_torch()
                return False
        return True

    def process(
        self, target: Callable[..., Any], arguments: tuple[Any, ...], name: str, *, uses_torch: bool = False
    ) -> BaseProcess:
        """A process to be started, with torch imported if it uses that and the server for it runs."""
        if uses_torch and self._torch_server.serves():
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
        pids = (self._guardian.pid, _forkserver()._forkserver_pid, self._torch_server.pid, _tracker_pid())
        return {pid for pid in pids if pid}

    def dead(self) -> str:
        """The name of a helper process that has ended, empty while all live."""
        if self._guardian.poll() is not None:
            return "appo guardian"
        return "" if processes.is_alive(_forkserver()._forkserver_pid or 0) else "the forkserver"

    def run_once(
        self,
        function: Callable[..., Any] | str,
        arguments: tuple[Any, ...],
        limit: TimeLimit,
        is_cancelled: Callable[[], bool],
        *,
        uses_torch: bool = False,
    ) -> Any:
        """The result of a function that runs in a process of its own and may not take the driver with it.

        Nothing that it started outlives the call, and only that process itself gives the result.

        Args:
            function: importable by its name, or "package.module:function", so that the driver need not import it.
            arguments: of the function; they travel by pickle.
            limit: how long it may take.
            is_cancelled: looked at now and then; the result is None when it holds.
            uses_torch: see `process`.

        Raises:
            ProcessEnded: the process died.
            RunFailed: it hung, or the function raised; with its traceback.
            ConfigError: the function raised it, or refused a space.
        """
        receiver, sender = self.context.Pipe(duplex=False)
        home = _Home(self.process_group, os.getpid(), self.mark, self.search_path)
        once = (sender, home, function, arguments)
        child = self.process(_run_once, once, "appo probe", uses_torch=uses_torch)
        if not self.launch(child, is_cancelled):
            return None
        sender.close()
        name = function.partition(":")[2] if isinstance(function, str) else function.__name__
        try:
            deadline = time.monotonic() + limit.seconds
            # Its exit counts, not the end of the pipe: a process that it forked may hold that open.
            while not connection.wait([receiver, child.sentinel], CANCEL_CHECK_S):
                if is_cancelled():
                    return None
                if time.monotonic() > deadline:
                    raise RunFailed(f"{name} did not finish within {limit}")
            if not receiver.poll():
                raise EOFError
            result, refusal, failure = receiver.recv()
        except EOFError:
            child.join(1.0)
            raise ProcessEnded(f"{name} {processes.describe_exit(child.exitcode)}") from None
        finally:
            child.kill()
            child.join(1.0)
            processes.kill_orphans(self.pids, processes.worker_mark(self.mark, child.pid or 0))
            receiver.close()
        if refusal:
            raise ConfigError(refusal) from RunFailed(failure)
        if failure:
            raise RunFailed(failure)
        return result

    def launch(
        self, process: BaseProcess, is_cancelled: Callable[[], bool] = lambda: False, patience_s: float = 0.0
    ) -> bool:
        """Start a process; False when it is not wanted any more and has not come for `patience_s`.

        The server may be stopped, or hang in an import, and a caller that asks it for a process then waits for ever. So
        a thread asks, and this one goes on.

        Raises:
            RunFailed: the server does not answer, or cannot start the process.
        """
        failure: list[BaseException] = []

        def start() -> None:
            try:
                process.start()
            except BaseException as error:  # told below
                failure.append(error)

        thread = threading.Thread(target=start, name="start of a process", daemon=True)
        thread.start()
        began = time.monotonic()
        while thread.is_alive():
            thread.join(CANCEL_CHECK_S)
            waited_s = time.monotonic() - began
            if thread.is_alive() and is_cancelled() and waited_s > patience_s:
                return False
            if thread.is_alive() and waited_s > START_S:
                raise RunFailed(f"the forkserver did not start {process.name} within {START_S:g} s")
        if failure:  # no descriptors, no memory, or no server any more
            raise RunFailed(f"{process.name} could not be started: {failure[0]!r}") from failure[0]
        return True

    def kill_everything(self) -> None:
        """Nothing of ours is left after this call, which never waits for long."""
        self._torch_server.dismiss()
        guardian_process = self._guardian
        assert guardian_process.stdin is not None and guardian_process.stdout is not None
        guardian_process.stdin.close()  # the guardian kills the run's processes, itself included
        with contextlib.suppress(subprocess.TimeoutExpired):  # it is stopped
            guardian_process.wait(GUARDIAN_S)
        guardian_process.stdout.close()
        self._torch_server.end()
        end_forkserver(_forkserver())
        if self._owns_tracker:
            _end_resource_tracker()
        this_process: Any = multiprocessing.current_process()
        this_process._config.pop("tempdir", None)  # it is deleted
        if os.environ.get(processes.MARK_VARIABLE) == self.mark:
            del os.environ[processes.MARK_VARIABLE]
        guardian.kill_run(self.process_group, self.mark)  # what is left where the guardian could not
        guardian_process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)  # where the guardian was killed itself
        if self._clear_up:  # the guardian has started it as well, unless it was killed itself
            command = [sys.executable, "-I", "-S", self._clear_up, str(self.process_group)]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, timeout=CLEAR_UP_S, check=False)
            processes.wait_for_orphans(command, CLEAR_UP_S)
        processes.adopt_orphans(is_on=self._adopted_before)
        processes.reap_orphans(self.pids)  # last: what becomes an orphan from here on is not ours


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


def _run_once(sender: Any, home: _Home, function: Callable[..., Any] | str, arguments: tuple[Any, ...]) -> None:
    leave_to_main_process()
    processes.die_with_parent(os.getppid(), heir=home.driver)
    processes.join_group(home.process_group)
    processes.set_title("appo probe")
    processes.redirect_output(Path(os.devnull))
    _held = processes.mark_descendants(processes.worker_mark(home.mark, os.getpid()))
    sys.path += [folder for folder in home.search_path if folder not in sys.path]
    result, refusal, failure = None, "", ""
    own_pid = os.getpid()
    try:
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        result = function(*arguments)  # type: ignore[operator]  # no text any more
    except (ConfigError, UnsupportedSpaceError) as error:
        refusal, failure = str(error), "".join(traceback.format_exception(error))
    except BaseException as error:  # also one that would end the process, with a code that says that all is well
        failure = "".join(traceback.format_exception(error))
    if os.getpid() != own_pid:
        os._exit(0)  # forked by the function, whose result is its parent's to give
    sender.send((result, refusal, failure))
    sender.close()
    os._exit(0)


@contextlib.contextmanager
def _in_environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _forkserver() -> Any:
    """The one server of this process, which multiprocessing keeps to itself."""
    return forkserver._forkserver


def _tracker_pid() -> Any:
    tracker: Any = resource_tracker._resource_tracker
    return tracker._pid


def _end_resource_tracker() -> None:
    """Kill what watches over named shared memory, of which a run has none; a daemon may hold its pipe."""
    tracker: Any = resource_tracker._resource_tracker
    if tracker._pid is None:
        return
    os.close(tracker._fd)
    kill_and_wait(tracker._pid)
    tracker._fd = tracker._pid = None
