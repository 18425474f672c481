"""The guardian: outlives its parent by a moment, only to take the parent's process group down.

Run as a script, with the standard library alone: `python guardian.py [FOLDER]`, standard input a pipe that the parent
holds open. The script makes itself leader of a new process group, prints its id, and waits. When the pipe closes, which
happens however the parent ends, it deletes the files of the folder with the folder, starts the scripts whose paths came
through the pipe, a line each, with the group's id, and kills the whole group, itself included: also processes that a
simulator started. The scripts are no part of the group.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Wait for the end of standard input, then delete the folder and kill the group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    scripts = b""
    while piece := os.read(0, 4096):
        scripts += piece
    for folder in sys.argv[1:]:
        _delete(folder)
    for script in scripts.decode().splitlines():
        _start(script)
    os.killpg(0, signal.SIGKILL)


def _start(script: str) -> None:
    """A process of its own session, which outlives the group."""
    group = str(os.getpid())
    with contextlib.suppress(OSError):
        os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", script, group], dict(os.environ), setsid=True)


def _delete(folder: str) -> None:
    """The folder and its files; what is gone already is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - pathlib would triple what this process needs
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))  # noqa: PTH108, PTH118
        os.rmdir(folder)  # noqa: PTH106


if __name__ == "__main__":
    main()
