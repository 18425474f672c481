"""The guardian: outlives its parent by a moment, only to take everything down that the parent's run started.

Run as a script, with the standard library alone: `python guardian.py FOLDER`, standard input a pipe that the parent
holds open. The script makes itself leader of a new process group, prints its id, and waits. The pipe closes however the
parent ends. Then the script deletes the folder with its files, kills the run's processes, starts the scripts whose
paths came through the pipe, a line each, with the group's id, and kills its group, itself included. The scripts are no
part of the group.

The run's processes are those of the group, those that bear the run's mark, and all below them, whatever session or
group they moved to. The mark is the name of the folder, which is unique. A process bears it in its environment, which
whatever it executes inherits, or as the name of a mapping, which whatever it forks inherits.
"""

import contextlib
import os
import signal
import sys
import time

# Processes may fork while they are killed; more rounds than this find nothing new.
KILL_S = 1.5
ROUND_S = 0.01


def main() -> None:
    """Wait for the end of standard input, then end everything."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    try:
        scripts = b""
        while piece := os.read(0, 4096):
            scripts += piece
        folder = sys.argv[1]
        _delete(folder)
        kill_run(os.getpid(), os.path.basename(folder))  # noqa: PTH119 - pathlib would triple what this process needs
        for script in scripts.decode().splitlines():
            _start(script)
    finally:
        os.killpg(0, signal.SIGKILL)


def kill_run(group: int, mark: str) -> None:
    """Kill `run_processes` until there are none, or until a second and a half have passed."""
    _kill(run_processes(group, ""))  # nearly all of them, found without a look into each process of the machine
    deadline, unmarked = time.monotonic() + KILL_S, set[tuple[int, int]]()
    while (pids := run_processes(group, mark, unmarked)) and time.monotonic() < deadline:
        _kill(pids)
        time.sleep(ROUND_S)


def run_processes(group: int, mark: str, unmarked: set[tuple[int, int]] | None = None) -> set[int]:
    """Processes that run, belong to the group or bear the mark, and all below them; without the caller.

    Empty where the system has no /proc. `unmarked`, (pid, time of its start) of processes without the mark, is added
    to: a second look at them would cost as much as the first, and find nothing. A process that is just executing
    another program shows nothing for a moment, so it is looked at again.
    """
    unmarked = set() if unmarked is None else unmarked
    children: dict[int, list[int]] = {}
    members = []
    for pid, parent, group_of, started in _processes():
        children.setdefault(parent, []).append(pid)
        if group_of == group or ((pid, started) not in unmarked and bears(pid, mark)):
            members.append(pid)
        elif mark and _content(f"/proc/{pid}/environ"):
            unmarked.add((pid, started))
    found: set[int] = set()
    while members:
        pid = members.pop()
        if pid not in found:
            found.add(pid)
            members += children.get(pid, [])
    return found - {os.getpid()}


def bears(pid: int, mark: str) -> bool:
    """The process, or one that forked or executed it, was marked; False where this user may not look."""
    return bool(mark) and any(mark.encode() in _content(f"/proc/{pid}/{name}") for name in ("environ", "maps"))


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _processes() -> list[tuple[int, int, int, int]]:
    """(pid, parent, process group, time of its start) of every process that has not ended."""
    found = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
            # The title, in brackets, may hold anything.
            words = _content(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(words) > 19 and words[0] not in (b"Z", b"X"):
                found.append((int(name), int(words[1]), int(words[2]), int(words[19])))
    return found


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # it has ended, or belongs to another user
        return b""


def _start(script: str) -> None:
    """A process of its own session, which outlives the group."""
    group = str(os.getpid())
    with contextlib.suppress(OSError):
        os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", script, group], dict(os.environ), setsid=True)


def _delete(folder: str) -> None:
    """The folder and its files; what is gone already is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))  # noqa: PTH108, PTH118
        os.rmdir(folder)  # noqa: PTH106


if __name__ == "__main__":
    main()
