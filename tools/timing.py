"""Where the time of a run goes: `python -m appo.tools.timing train_dir/first`, while it goes on or afterwards.

Reads `timing.json` of an experiment, which is replaced with every point of the curves, and prints for each kind of
process its stages and their parts: seconds over all processes of the kind since the last start, share of their time,
how often. What is marked as in parallel is done by other processes or threads meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from appo.algorithms.reporting.timing import TIMING_FILE, TimingNode, in_lines, read_tree
from appo.tools.arguments import EXIT_OK, EXIT_REFUSED, OneLineParser, Refused, as_program
from appo.tools.experiments import place_of, similar_to


class TimingError(Refused):
    """There is nothing to print. The message says why."""


def read_timing(folder: Path) -> tuple[TimingNode, ...]:
    """The tree of an experiment.

    Raises:
        TimingError: the folder is not an experiment's, or the file is not whole.
    """
    path = folder / TIMING_FILE
    try:
        return read_tree(path)
    except OSError as error:
        raise TimingError(
            f"{path} cannot be read ({error.strerror}){similar_to(folder)}; name the folder of an experiment, such as "
            "train_dir/first; the file comes with its first point"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise TimingError(f"{path} is not what a run writes ({error!r})") from error


def main(argv: Sequence[str]) -> int:
    """Print the tree; the exit code."""
    parser = OneLineParser(
        prog="python -m appo.tools.timing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=place_of, help="of an experiment, or its name")
    try:
        tree = read_timing(parser.parse_args(argv).folder)
    except Refused as error:
        print(f"timing: {error}", file=sys.stderr)
        return EXIT_REFUSED
    for line in in_lines(tree):
        print(line)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(as_program(main))
