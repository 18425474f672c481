"""Send an experiment to Weights & Biases: `python -m appo.tools.wandb train_dir/first`, while it goes on or afterwards.

    python -m appo.tools.wandb train_dir/first [train_dir/second ...] [--project=appo] [--user=...] [--tags=a,b]

Only points that were not sent before are sent; runs that go on are followed until they end, one after the other.
WANDB_MODE=offline keeps them on disk for `wandb sync`.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence

from appo.algorithms.run.wandb_mirror import INSTALL, Mirror, MirrorError, account_of, add_words, follow
from appo.tools.arguments import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REFUSED,
    OneLineParser,
    Refused,
    as_program,
)
from appo.tools.experiments import Found, find_experiments, place_of
from appo.tools.run_status import STARTING, TRAINING, status_of
from appo.utils.options import ConfigError


def main(argv: Sequence[str]) -> int:
    """Send; the exit code."""
    try:
        words = OneLineParser(prog="appo-tools wandb", description=(__doc__ or "").splitlines()[0])
        words.add_argument("experiments", nargs="+", type=place_of, help="folders, or folders that hold some")
        add_words(words)
        given = words.parse_args(argv)
        if importlib.util.find_spec("wandb") is None:
            raise Refused(f"the package wandb is missing: {INSTALL}")
        for experiment in find_experiments(given.experiments):
            if experiment.problem:
                raise Refused(f"{experiment.name} cannot be sent: {experiment.problem}")
            _send(experiment, Mirror(experiment.folder, account_of(given), print))
    except Refused as error:
        print(f"wandb: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except (MirrorError, ConfigError, OSError) as error:
        print(f"wandb: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("\nwandb: interrupted; the same command sends the rest", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_OK


def _send(experiment: Found, mirror: Mirror) -> None:
    try:
        follow(mirror, lambda seconds: _has_ended(experiment, seconds))
    except KeyboardInterrupt:
        mirror.finish()  # of what was sent, or lies on disk
        raise


def _has_ended(experiment: Found, seconds: float) -> bool:
    if status_of(experiment).state not in (STARTING, TRAINING):
        return True
    time.sleep(seconds)
    return False


if __name__ == "__main__":
    sys.exit(as_program(main))
