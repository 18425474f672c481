"""Where the time of a run goes: `python -m appo.tools.timing train_dir/first`, while it goes on or afterwards.

Reads `timing.json` of an experiment, which is replaced with every point of the curves, and prints for each kind of
process its stages and their parts: seconds over all processes of the kind since the last start, share of their time,
how often. What is marked as in parallel is done by other processes or threads meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from appo.algorithms.reporting.timing import TIMING_FILE, TimingNode, in_lines, read_tree

EXIT_OK, EXIT_REFUSED = 0, 2


class TimingError(ValueError):
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
            f"{path} cannot be read ({error.strerror}); name the folder of an experiment, such as train_dir/first; the "
            "file comes with its first point"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise TimingError(f"{path} is not what a run writes ({error!r})") from error


def main(arguments: Sequence[str]) -> int:
    """Print the tree; the exit code."""
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return EXIT_OK if "-h" in arguments or "--help" in arguments else EXIT_REFUSED
    try:
        tree = read_timing(Path(arguments[0]))
    except TimingError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    for line in in_lines(tree):
        print(line)
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
