"""Training from Python: `train(...)` for notebooks and scripts, with the checks of the command line.

A run is started as a program of its own: it forks servers, handles signals and ends with everything that it has
started, none of which may touch the process that asks for it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.run.config import SUMMARY_FILE
from appo.utils.cli import COMMAND_LINE
from appo.utils.options import ConfigError, to_text
from appo.utils.processes import ends_with_caller

_REFUSED = 2
_ERROR = "train_appo.py: error: "  # what the line begins with that refuses a run
_KEPT_LINES = 200


class TrainingResult(NamedTuple):
    """How a run ended."""

    folder: Path  # of the experiment
    summary: dict[str, Any]  # as in summary.json; empty where nothing was left to do, or it ended before it began
    exit_code: int  # 0: the stop condition was met; 130 or 143: a signal ended it, and it can go on


class TrainingFailed(RuntimeError):
    """A run failed; the message has its last lines."""


def train(
    env: str | Callable[..., Any],
    experiment: str = "default_experiment",
    *,
    train_dir: str | Path = "train_dir",
    quiet: bool = False,
    **options: Any,
) -> TrainingResult:
    """Train, or go on with an experiment that exists, until the budget is spent.

    Ctrl+C, or the stop button of a notebook, ends the run after it has saved; `train` then returns as well.
    So it ends when the calling program is killed or ends, on Linux.

    Args:
        env: as in --env; or a function of an importable module that gives an environment.
        experiment: its name.
        train_dir: the folder of its folder.
        quiet: print nothing.
        options: any of the command line, by name: `train_for_env_steps=100_000, mlp_layers=[64, 64]`.

    Raises:
        ConfigError: the command line would refuse it; nothing was started.
        TrainingFailed: the run failed.
    """
    name = env if isinstance(env, str) else _name_of(env)
    words = [f"--env={name}", f"--experiment={experiment}", f"--train_dir={train_dir}"]
    words += [f"--{option}={_typed(value)}" for option, value in options.items()]
    place = Path(train_dir)
    with contextlib.suppress(RuntimeError):  # no home folder of that user: refused below
        place = place.expanduser()
    folder = Path(place, str(options.get("experiments_root", "")), experiment)
    path = folder / SUMMARY_FILE
    before = _stamp(path)  # of an earlier start
    code, lines = _run(words, quiet)
    if code == _REFUSED:
        refusal = lines[-1].removeprefix(_ERROR) if lines else "refused"
        raise ConfigError(re.sub(f"^{COMMAND_LINE} ", "train(...) ", refusal))
    if code == 1 or code < 0:
        said = list(lines)[-20:]
        raise TrainingFailed("\n".join([said[-1], "", "Its last lines:", *said]) if said else "it said nothing")
    is_new = _stamp(path) not in (before, None)  # none: it was removed at the start, and the run ended before its own
    return TrainingResult(folder, json.loads(path.read_text()) if is_new else {}, code)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file is replaced; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _run(words: list[str], quiet: bool) -> tuple[int, collections.deque[str]]:
    found = util.find_spec("appo.train_appo")
    assert found is not None and found.origin is not None
    command = [sys.executable, str(Path(found.origin).resolve()), *words]
    lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    # A session of its own: a Ctrl+C reaches it once, from here.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",  # an environment may print anything
        start_new_session=True,
        env=ends_with_caller(),
    ) as process:
        assert process.stdout is not None
        while True:
            try:
                for line in process.stdout:
                    lines.append(line.rstrip())
                    if not quiet and not line.startswith(_ERROR):  # which is raised
                        print(line, end="", flush=True)
                return process.wait(), lines
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
            except BaseException:
                process.terminate()  # else leaving this block would wait for the whole training
                raise


def _typed(value: Any) -> str:
    """A value as a command line has it: a dict, such as `env_kwargs`, as JSON, a list as what commas divide."""
    if isinstance(value, dict):
        return json.dumps(value)
    return to_text(tuple(value) if isinstance(value, list) else value)


def _name_of(factory: Callable[..., Any]) -> str:
    module, name = (getattr(factory, key, None) for key in ("__module__", "__qualname__"))
    if module is None or name is None:  # a `functools.partial`, for example
        raise ConfigError(
            f"env={factory!r} has no name that the processes of a run could import; define a function in a module of "
            "its own and give its name, for example env='my_envs:make_env'"
        )
    if module == "__main__" or "." in name or "<" in name:
        raise ConfigError(
            f"env={name} of {module} cannot be imported by the processes of a run; put it into a module of its own and "
            "give its name, for example env='my_envs:make_env'"
        )
    return f"{module}:{name}"
