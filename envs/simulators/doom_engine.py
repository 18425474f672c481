"""Starting a Doom engine so that it disturbs no other process and leaves nothing behind.

ViZDoom runs each engine as a process that shares memory with ours. Left to itself that process outlives a killed
parent, its shared memory outlives both, and it writes `_vizdoom.ini` and a folder where the user happens to be. On
Linux a launcher of a few lines stands between: it asks the kernel to kill the engine with us, moves to a folder of its
own, leaves the terminal's process group (Ctrl+C is ours to answer), and becomes the engine. Once the engine runs, the
names of the folder and of the shared memory are removed; what is mapped stays mapped until both processes are gone.
What is left of a start that a kill cut off, `doom_leftovers` removes when the run is over.

An engine that dies while it starts, for example of a damaged WAD file, takes this process with it: ViZDoom 1.3 crashes
there itself. Only failures that it reports can be tried again.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
import tempfile
import time
from pathlib import Path

import vizdoom

from appo.envs.simulators.doom_leftovers import PARTS, SHARED_MEMORY, folder_prefix

_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.5  # doubled every time: many engines starting at once ask much of a machine for a second or two

_POLL_S = 0.005
PID_FILE = "pid"
_LAUNCHER = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
parent, folder, engine = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if os.getppid() != parent:
    sys.exit("the parent died before its engine had started")
os.setpgid(0, 0)
os.chdir(folder)
with open("pid", "w") as file:
    file.write(str(os.getpid()))
os.execv(engine, [engine, *sys.argv[4:]])
"""


def start_engine(game: vizdoom.DoomGame) -> None:
    """`game.init()`, tried again a few times when it fails.

    Raises:
        RuntimeError: it kept failing; the last failure is the cause.
    """
    pause = _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with tempfile.TemporaryDirectory(prefix=folder_prefix()) as folder:
                start_once(game, Path(folder))
            return
        except vizdoom.ViZDoomErrorException as error:
            game.close()
            if attempt == _ATTEMPTS:
                raise RuntimeError(f"the Doom engine did not start in {_ATTEMPTS} attempts: {error}") from error
        time.sleep(pause * random.uniform(0.5, 1.5))  # neighbours that failed together should not try together
        pause *= 2


def start_once(game: vizdoom.DoomGame, folder: Path) -> None:
    """`game.init()`, with the engine in a folder of its own, which it does not need any more once it runs.

    Raises:
        ViZDoomErrorException: it failed.
    """
    game.set_doom_config_path(os.devnull)  # settings come from the scenario; engines must not share a file of them
    if not sys.platform.startswith("linux"):
        game.init()
        return
    launcher = _write_launcher(folder)
    if os.access(launcher, os.X_OK):  # not where temporary files may not be run: there the engine starts directly
        game.set_vizdoom_path(str(launcher))
    game.init()
    for part in PARTS:
        (SHARED_MEMORY / f"ViZDoom{part}{game.get_instance_id()}").unlink(missing_ok=True)


def engine_of(folder: Path) -> int | None:
    """The process id of the engine that is being started in a folder; None before it exists."""
    try:
        return int((folder / PID_FILE).read_text() or 0) or None
    except FileNotFoundError:
        return None


def await_ends(folder: Path, seconds: float) -> None:
    """Wait until the engines that were being started below a folder use no memory any more: they have been killed."""
    engines = [engine for path in folder.rglob(PID_FILE) if (engine := engine_of(path.parent)) is not None]
    deadline = time.monotonic() + seconds
    while any(map(_has_memory, engines)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _has_memory(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/maps").read_text())
    except OSError:  # it is gone
        return False


def _write_launcher(folder: Path) -> Path:
    """A program that takes the engine's place and then becomes it; gone from disk when the engine runs."""
    engine = Path(vizdoom.__file__).parent / "vizdoom"
    command = [sys.executable, "-IS", "-c", _LAUNCHER, str(os.getpid()), str(folder), str(engine)]
    launcher = folder / "launch"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    launcher.chmod(0o700)
    return launcher
