"""Words of a command around runs: what is wrong with them is told in one line, and the exit code is 2."""

from __future__ import annotations

import argparse
import difflib
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

EXIT_OK, EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130


class Refused(ValueError):
    """What was asked for cannot be done. The message says why, and what would work, in one line."""


class OneLineParser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `Refused` where another prints its usage and ends the process."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise Refused(f"{message}; --help tells what there is")


def as_program(main: Callable[[Sequence[str]], int]) -> int:
    """Run a command as what a shell has started; its exit code.

    A reader that has seen enough, as in `appo-tools runs | head`, is no error: what nobody takes is lost. What a disk
    does not take is told at the end.
    """
    from appo.utils.processes import keep_standard_streams

    keep_standard_streams()
    output = _Output(1, "w", closefd=False)
    of_text: dict[str, Any] = {"encoding": sys.stdout.encoding, "errors": sys.stdout.errors, "line_buffering": True}
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(output), **of_text)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    if output.problem:
        print(f"the output is not whole: {output.problem}", file=sys.stderr)
        return code or EXIT_FAILED
    return code


class _Output(io.FileIO):
    """Takes everything; what the system refuses is gone, and why is remembered unless nobody reads."""

    problem: str | None = None

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or len(content)
        except BrokenPipeError:
            return len(content)
        except OSError as error:
            self.problem = error.strerror
            return len(content)


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
