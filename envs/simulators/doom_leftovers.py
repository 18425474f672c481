"""What a Doom engine leaves when the process that starts it is killed meanwhile: a folder, and names in shared memory.

An engine that runs has neither any more; see `doom_engine`. Run as a script, `python doom_leftovers.py GROUP`, with the
standard library alone: when the run's driver is killed, the guardian starts it on its own way out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PARTS = ("SM", "MQCtr", "MQDoom")
# Between the making of a name and its mapping lie microseconds.
_SECOND_LOOK_S = 0.05
_ENDS_WITHIN_S = 2.0  # a group that was killed
# A folder is needed for as long as an engine starts.
_OLD_S = 60.0


def folder_prefix() -> str:
    """How the names of folders begin in which this process starts engines: with its process group, one for each run."""
    return f"doom_{os.getpgrp()}_"


def clear_up(group: int) -> None:
    """Remove what the processes of a group, all of which have ended, left behind; and what others did long ago."""
    for folder in Path(tempfile.gettempdir()).glob("doom_*_*"):
        owner = folder.name.split("_")[1]
        if owner == str(group) or (owner.isdigit() and _is_old(folder) and not _lives(int(owner))):
            shutil.rmtree(folder, ignore_errors=True)
    remove_unused_memory()


def remove_unused_memory() -> None:
    """Remove the names of shared memory that engines left and that no living process uses."""
    unused = _own_names() - _mapped()
    if unused:
        time.sleep(_SECOND_LOOK_S)
        for name in unused & (_own_names() - _mapped()):
            (SHARED_MEMORY / name).unlink(missing_ok=True)


def _own_names() -> set[str]:
    """Shared memory of engines that belongs to this user."""
    names = set()
    for part in PARTS:
        for path in SHARED_MEMORY.glob(f"ViZDoom{part}*"):
            with contextlib.suppress(OSError):
                if path.stat().st_uid == os.getuid():
                    names.add(path.name)
    return names


def _mapped() -> set[str]:
    """Shared memory of engines that a living process uses."""
    names: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            names.update(re.findall(rf"{SHARED_MEMORY}/(ViZDoom\w+)", maps.read_text(errors="replace")))
    return names


def _is_old(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_mtime > _OLD_S
    return False


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main() -> None:
    """Clear up behind the group that is named on the command line, once it has ended."""
    group = int(sys.argv[1])
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while _lives(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    clear_up(group)


if __name__ == "__main__":
    main()
