"""What a process asks of its operating system: a name, cores, an end with its parent.

Linux first, harmless elsewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import math
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from appo.utils import guardian

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
# A real-time signal: no other program sends or catches it, and a process without a handler ends by it.
_PARENT_ENDED = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else 0

MARK_VARIABLE = "APPO_RUN"  # in the environment of every process of a run
_CALLER_VARIABLE = "APPO_CALLER"  # in the environment of a program that ends with the one that started it: its pid

log = logging.getLogger(__name__)


def import_root() -> str:
    """The folder in which Python finds this program and nothing else; empty where it is installed like any package."""
    folder = Path(__file__).resolve().parents[1] / "src"
    return str(folder) if folder.is_dir() else ""


def set_title(title: str) -> None:
    """The name that `ps` and `top` show."""
    import setproctitle

    setproctitle.setproctitle(title)
    setproctitle.setthreadtitle(title[:15])


def die_with_parent(expected_parent: int, heir: int = 0) -> None:
    """Be killed when the parent ends, however it ends.

    Args:
        expected_parent: pid of the parent now; when it is another one, this process ends at once.
        heir: a process that adopts orphans; when the parent ends before it, this process lives on until the heir ends.
    """
    if sys.platform != "linux":
        return
    if not heir:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    else:

        def look(number: int, frame: FrameType | None) -> None:
            del number, frame
            if os.getppid() != heir:
                os._exit(1)

        signal.signal(_PARENT_ENDED, look)
        signal.siginterrupt(_PARENT_ENDED, False)
        _prctl(_PR_SET_PDEATHSIG, int(_PARENT_ENDED))
    if os.getppid() not in (expected_parent, heir):  # it ended before the call took effect
        os._exit(1)


def ends_with_caller() -> dict[str, str]:
    """The environment of a program that this process starts and that is to end with it: `end_with_caller`."""
    return os.environ | {_CALLER_VARIABLE: str(os.getpid())}


def end_with_caller() -> None:
    """Get SIGTERM when the program ends that has started this one and wants that, however it ends; Linux only."""
    caller = os.environ.pop(_CALLER_VARIABLE, None)
    if caller is None or sys.platform != "linux":
        return
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(caller):  # it ended before the call took effect
        os.kill(os.getpid(), signal.SIGTERM)


def adopt_orphans(*, is_on: bool = True) -> bool:
    """Become the parent of descendants whose own parent ends, so that they can be found and reaped; or cease to.

    Whoever adopts must reap: otherwise, what has ended stays in the table of processes until this process ends.

    Returns:
        Whether this process did so before; False where the system lets none adopt.
    """
    if sys.platform != "linux":
        return False
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_on))
    return bool(before.value)


def join_group(group: int) -> None:
    """Become a member of a process group, which the guardian kills as one."""
    os.setpgid(0, group)


def redirect_output(path: Path) -> None:
    """Send stdout and stderr of this process and its future children to the end of a file.

    What the disk does not take is lost, and the code that prints, an environment for example, gets no error.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
    except OSError:
        descriptor = os.open(os.devnull, flags)
    for standard in (sys.stdout, sys.stderr):
        standard.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout, sys.stderr = _text_to(1), _text_to(2)


def keep_standard_streams() -> None:
    """Let the program print for good, whatever has become of its stdout and stderr: what they do not take is lost.

    A stream that was closed before the start becomes one to nowhere; its number would otherwise go to the next file
    that is opened, and that would be given what is printed. To be called before anything is opened.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
            os.set_inheritable(nowhere, True)
    sys.stdout = _text_to(1, getattr(sys.stdout, "encoding", "utf-8"))
    sys.stderr = _text_to(2, getattr(sys.stderr, "encoding", "utf-8"))


def pin_to_cores(cores: Iterable[int]) -> None:
    """Run only on these cores, where the system allows it."""
    wanted = set(cores)
    if wanted and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, wanted)


def move_to_cores(cores: Iterable[int]) -> None:
    """Run only on these cores from now on, with all threads and all descendants, where the system allows it."""
    wanted = set(cores)
    if not wanted or not hasattr(os, "sched_setaffinity"):
        return
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        # Processes and threads end while they are listed; and one that is not ours to move stays where it is.
        with contextlib.suppress(psutil.Error):
            for thread in process.threads():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread.id, wanted)


def usable_cores(pid: int = 0) -> list[int]:
    """The cores that a process may use; 0: this one."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(pid))
    return list(range(os.cpu_count() or 1))


def core_count(root: Path = Path("/")) -> int:
    """How many cores this process can keep busy: those that it may use, or the CPU quota of its container, rounded up.

    `root`: where the system's folders `proc` and `sys` are.
    """
    return max(1, min([len(usable_cores()), *map(math.ceil, _cpu_quotas(root))]))


def available_memory(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process and its children can still take: of the machine, or of the container it runs in.

    `group`: folder of what the system tells of a container.
    """
    available = int(psutil.virtual_memory().available)
    limit, used = (_read_number(group / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return available
    return min(available, limit - used + _reclaimable(group / "memory.stat"))


def _reclaimable(stat_file: Path) -> int:
    """Bytes of a container that count as used and are given back when they are needed: files that were read or written.

    Files in shared memory are not: they are nowhere else.
    """
    try:
        numbers = dict(line.split() for line in stat_file.read_text().splitlines())
        return max(0, int(numbers["file"]) - int(numbers["shmem"]) - int(numbers.get("file_dirty", 0)))
    except (OSError, ValueError, KeyError):
        return 0


def allow_many_descriptors() -> None:
    """Raise the limit of open files as far as this user may: every worker needs a handful of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lower_priority(niceness: int) -> None:
    """Raise the niceness; lowering it needs rights that a user lacks, which is said and survived."""
    if niceness == 0:
        return
    try:
        os.nice(niceness)
    except PermissionError:
        log.warning("niceness %d needs more rights than this user has; going on without it", niceness)


def worker_mark(run_mark: str, pid: int) -> str:
    """What tells the processes that one worker started from those of the others of its run."""
    return f"{run_mark}.{pid};"


def mark_descendants(mark: str) -> mmap.mmap | None:
    """Let everything that this process forks or executes from now on bear a mark, see `guardian`.

    What it executes inherits the environment; what it only forks, the mapping that is returned: hold it.
    """
    os.environ[MARK_VARIABLE] = mark
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create(mark)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    mapping = mmap.mmap(descriptor, mmap.PAGESIZE)
    os.close(descriptor)
    return mapping


def is_alive(pid: int) -> bool:
    """The process runs: it has neither vanished nor ended without being waited for. 0 is no process."""
    return _status(pid) not in ("", psutil.STATUS_ZOMBIE)


def is_running(pid: int) -> bool:
    """The process is alive and not stopped (SIGSTOP)."""
    return is_alive(pid) and _status(pid) != psutil.STATUS_STOPPED


def handles_signal(pid: int, number: int) -> bool:
    """The process has a handler of its own for a signal. False where that cannot be seen, as outside Linux."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith("SigCgt:"))


def can_watch() -> bool:
    """This system tells of the end of any process, and lets this one adopt orphans; see `watch` and `adopt_orphans`."""
    descriptor = watch(os.getpid())
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def watch(pid: int) -> int | None:
    """A descriptor that becomes readable when a process ends, whatever its parent; None where there is no such."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox
        return None


def exit_code_of_child(pid: int) -> int | None:
    """How a child of this process ended, as `subprocess` tells it; None while it runs, or when it is no child."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended else None


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "did not end"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (kill -9, or the system ran out of memory)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def reap_orphans(known: set[int]) -> None:
    """Let children of this process that have ended vanish from the table of processes, but for those in `known`.

    What a worker had started becomes a child of the process that adopts orphans once the worker is gone, or once what
    stood between the two has ended.
    """
    for child in psutil.Process().children():
        if child.pid not in known and not is_alive(child.pid):
            _reap(child.pid)


def wait_for_orphans(command: list[str], limit_s: float) -> None:
    """Wait so long at most until no child of this process with that command line is alive."""
    same = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended
            if child.cmdline() == command:
                same.append(child)
    psutil.wait_procs(same, limit_s)


def kill_orphans(known: set[int], mark: str) -> list[int]:
    """Kill the children of this process that bear a mark, with all below them; the pids killed.

    Args:
        known: process ids that are left alone.
        mark: of a whole run, or of what one worker had started; see `mark_descendants`.
    """
    reap_orphans(known)
    killed = []
    for child in psutil.Process().children():
        if child.pid in known or not guardian.bears(child.pid, mark):
            continue
        family = [child]
        with contextlib.suppress(psutil.Error):  # whether or not what is below it can be listed
            family += child.children(recursive=True)
        for process in family:
            _kill(process)
            killed.append(process.pid)
        _reap(child.pid)
    return killed


def limit_native_threads() -> None:
    """Keep every numerical library that is loaded by now from using threads of its own, for good."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    if "cv2" in sys.modules:  # has its own pool, which threadpoolctl does not know
        sys.modules["cv2"].setNumThreads(1)


def keep_freed_memory() -> None:
    """Let this process reuse large blocks of memory instead of giving them back and asking for them anew.

    glibc maps every block above 32 MB when it is asked for and unmaps it when it is freed; a network's activations are
    such blocks, and touching their fresh pages took up to a quarter of a training step. Harmless elsewhere.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def show_one_gpu(index: int) -> None:
    """Let simulators that render on a GPU use this one only; before any of them is loaded."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["MUJOCO_EGL_DEVICE_ID"] = str(index)


class _Lossy(io.FileIO):
    """Takes everything; what the system refuses is gone."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or len(content)
        except OSError:
            return len(content)


def _text_to(descriptor: int, encoding: str = "utf-8") -> io.TextIOWrapper:
    raw = _Lossy(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)


def _status(pid: int) -> str:
    """What the system says of a process; empty when there is none."""
    try:
        return str(psutil.Process(pid).status()) if pid > 0 else ""
    except psutil.NoSuchProcess:
        return ""


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time that each control group may use which this process is in, up to the top of what is mounted.

    In a container that top is its own group, while the process's place may be told as the host sees it.
    """
    for line in _text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        mounts = ["cpu", "cpu,cpuacct"] if "cpu" in controllers.split(",") else [] if controllers else [".", "unified"]
        names = [name for name in place.split("/") if name not in ("", "..")]
        for mount in mounts:
            for depth in range(len(names) + 1):
                group = root.joinpath("sys/fs/cgroup", mount, *names[:depth])
                # Version 2 has one file, version 1 one for each number; "max" and -1 are no limit.
                told = _text_of(group / "cpu.max").split()
                told = told or [_text_of(group / f"cpu.cfs_{of}_us").strip() for of in ("quota", "period")]
                if all(number.isdigit() and int(number) for number in told):
                    yield int(told[0]) / int(told[1])


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    text = _text_of(path).strip()
    return int(text) if text.isdigit() else None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error as error:
        log.debug("process %d was not killed: %s", process.pid, error)


def _reap(pid: int) -> None:
    deadline = time.monotonic() + 0.5  # a process in the middle of a system call may take its time to go
    try:
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.005)
    except ChildProcessError:
        log.debug("process %d was reaped by other code", pid)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
