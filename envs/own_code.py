"""A user's own code: how it is imported, and what it raised where, in one line."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
import types
from pathlib import Path

_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in ', re.MULTILINE)
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_PYTHON = f"{Path(contextlib.__file__).parent}{os.sep}"
# Of this program, as installed or linked to; a user's own files may lie beside these.
_PARTS = (*(f"{room}{os.sep}" for room in ("algorithms", "envs", "utils", "tools")), "train_appo.py", "enjoy_appo.py")
_ROOTS = (Path(__file__).parent.parent, Path(__file__).resolve().parent.parent)
_OURS = tuple(f"{root}{os.sep}{part}" for root in _ROOTS for part in _PARTS)


def import_own(name: str, folder: Path | None = None) -> types.ModuleType:
    """A module that a user names, which may be a file of a folder. Raises whatever the module raises, SystemExit too.

    Args:
        name: of the module.
        folder: that it is looked for in first; None: the working directory.
    """
    where = str(Path.cwd() if folder is None else folder)
    if where not in sys.path:
        sys.path.insert(0, where)
    with contextlib.chdir(Path.cwd()):  # a module that changes directory must not move what is relative to ours
        return importlib.import_module(name)


def told(error: BaseException) -> str:
    """An exception in one line, with the place in the user's own code where it was raised."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    where = raised_at("".join(traceback.format_exception(error)))
    return f"{text} ({where})" if where else text


def is_of_own_code(error: BaseException) -> bool:
    """Some of the user's own code was at work when it was raised."""
    own, _ = _places("".join(traceback.format_exception(error)))
    return bool(own)


def raised_at(trace: str) -> str:
    """`my_env.py, line 12`: the innermost place of a traceback's text in the user's own code.

    Where there is none, the innermost in an installed package; empty where all is ours or Python's.
    """
    own, installed = _places(trace)
    found = own or installed
    return f"{found[-1][0]}, line {found[-1][1]}" if found else ""


def _places(trace: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(file, line) in the user's own code, and in installed packages; innermost last."""
    frames = [(Path(file), line) for file, line in _FRAME.findall(trace) if not file.startswith(("<", *_OURS))]
    installed = [(path.name, line) for path, line in frames if _INSTALLED & set(path.parts)]
    others = [(path, line) for path, line in frames if not _INSTALLED & set(path.parts)]
    own = [(_from_here(path), line) for path, line in others if not str(path).startswith(_PYTHON)]
    return own, installed


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
