"""The guardian: outlives its parent by a moment, only to take the parent's process group down.

Run as a script, with the standard library alone: `python guardian.py`, standard input a pipe that the parent holds
open. The script makes itself leader of a new process group, prints its id, and waits. When the pipe closes, which
happens however the parent ends, it kills the whole group, itself included: also processes that a simulator started.
"""

import os
import signal
import sys


def main() -> None:
    """Wait for the end of standard input, then kill the group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    while os.read(0, 1):
        continue
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
