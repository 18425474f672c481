"""Train a policy: `python train_appo.py --env=CartPole-v1 --experiment=first`. `--help` lists every option."""

from __future__ import annotations

import sys


def main(argv: list[str]) -> int:
    """Parse, resolve the configuration, run the driver; its exit code."""
    from utils.signals import StopSignals

    stop = StopSignals()  # before everything that takes time
    from algorithms.config import resolve
    from utils.options import ConfigError

    try:
        from algorithms.training.session import look, train

        resolved = resolve(argv[1:], look=lambda opened: look(opened, stop))
        return train(resolved, argv, stop)
    except ConfigError as error:
        print(f"train_appo.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    from utils.processes import keep_standard_streams

    keep_standard_streams()
    sys.exit(main(sys.argv))
