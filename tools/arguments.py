"""Words of a command around runs: what is wrong with them is told in one line, and the exit code is 2."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn

EXIT_OK, EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130


class Refused(ValueError):
    """What was asked for cannot be done. The message says why, and what would work, in one line."""


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `Refused` where another prints its usage and ends the process."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise Refused(f"{message}; --help tells what there is")


def nearest(name: str, known: Iterable[str], *, else_first: bool = True) -> str:
    """`; nearest: ...` for a message that refuses a name.

    Args:
        name: what was typed.
        known: what would have worked.
        else_first: tell the first of them where none is spelled alike; else nothing.
    """
    names = sorted(set(known))
    inside = [each for each in names if name.lower() in each.lower()]
    alike = list(dict.fromkeys([*difflib.get_close_matches(name, names, n=3, cutoff=0.5), *inside]))[:4]
    if alike:
        return "; nearest: " + ", ".join(alike)
    return "; there are " + ", ".join(names[:4]) if names and else_first else ""
