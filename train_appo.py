"""Train a policy: `python train_appo.py --env=CartPole-v1 --experiment=first`. `--help` lists every option."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from algorithms.config import ResolvedConfig
    from envs.api import EnvProfile, EnvSpec


def main(argv: list[str]) -> int:
    """Parse, resolve the configuration, run the driver; its exit code."""
    from utils.signals import StopSignals

    stop = StopSignals()  # before everything that takes time
    from algorithms.config import resolve
    from utils.options import ConfigError

    def profile(unfitted: ResolvedConfig) -> tuple[EnvSpec, EnvProfile]:
        from algorithms.training.session import profile_environment  # imported late: --help is quick without it

        return profile_environment(unfitted, stop)

    try:
        resolved = resolve(argv[1:], profile=profile)
        from algorithms.training.session import train

        return train(resolved, argv, stop)
    except ConfigError as error:
        if stop.received is not None:
            return stop.exit_code
        print(f"train_appo.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    from utils.processes import keep_standard_streams

    keep_standard_streams()
    sys.exit(main(sys.argv))
