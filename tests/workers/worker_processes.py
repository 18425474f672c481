"""What child processes of the tests of doorbells and launch pads do; a module that a child can import."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from appo.utils.doorbells import DescriptorParcel, Doorbell
from appo.utils.options import ConfigError


def wait_and_tell(parcel: DescriptorParcel, pipe: Any) -> None:
    """Wait for the bell whose descriptors were sent, once, and tell whether it rang."""
    bell = Doorbell(parcel.unpack())
    pipe.send("waiting")
    pipe.send(bell.wait(30.0))


def ring_often(parcel: DescriptorParcel, count: int) -> None:
    bell = Doorbell(parcel.unpack())
    for _ in range(count):
        bell.ring()


def add(first: int, second: int) -> int:
    return first + second


def fail(word: str) -> None:
    raise ValueError(f"{word} is no number")


def die(code: int) -> None:
    os._exit(code)


def own_pid() -> int:
    return os.getpid()


def torch_and_parent() -> tuple[bool, int]:
    """Whether this process has torch, and who forked it."""
    return "torch" in sys.modules, os.getppid()


def refuse() -> None:
    raise ConfigError("this cannot be; nearest: that")


def take_long(pid_file: Path) -> None:
    """Leave the process id behind."""
    written = pid_file.with_suffix(".new")
    written.write_text(str(os.getpid()))
    written.replace(pid_file)
    time.sleep(1000)


def end_with(error: str) -> None:
    """Raise something that is no Exception."""
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[error](0)


def fork_and(who: str, pid_file: Path) -> str:
    """Fork; then one of the two ends at once, while the other lives for long or goes on as if nothing had been."""
    child = os.fork()
    if child:
        pid_file.write_text(str(child))
    if who == "parent ends":
        if child:
            os._exit(7)
        time.sleep(1000)
    elif who == "child ends":
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    elif who == "child goes on" and child:
        time.sleep(0.5)  # the child would be first
    return "parent" if child else "child"


def print_and_import_from_the_search_path() -> str:
    """Only importable where the search path of the launch launcher is in force."""
    print("this goes nowhere")
    import broken_workers

    return str(broken_workers.__name__)
