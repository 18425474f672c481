"""Watch, record or score a trained policy: `python enjoy_appo.py --env=CartPole-v1 --experiment=first`.

`--no_render --max_num_episodes=100` scores, `--save_video --max_num_episodes=3` records; `--help` lists every option.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from algorithms.evaluation.player import EvaluationJob

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: list[str]) -> int:
    """Parse, resolve the configuration, play; the exit code."""
    from envs.api import EnvError, UnsupportedSpaceError
    from utils.options import ConfigError

    try:
        job = job_of(argv[1:])
        from algorithms.evaluation.player import play

        return play(job)
    except (ConfigError, UnsupportedSpaceError) as error:
        print(f"enjoy_appo.py: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except EnvError as error:
        print(f"enjoy_appo.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:  # before there was anything to end in order
        return EXIT_INTERRUPTED


def job_of(argv: Sequence[str]) -> EvaluationJob:
    """What a command line asks to play.

    Raises:
        ConfigError: it cannot be played; the message says what could.
    """
    from algorithms.config import resolve_evaluation, with_values
    from algorithms.training.config import torch_device
    from envs.registry import resolve

    config, options = resolve_evaluation(argv)
    device = torch_device(config.run.device)
    env = resolve(config.env.env)
    changes = {name: value for name, value in env.family.evaluation.items() if not _is_typed(argv, name)}
    config = with_values(config, changes, layer="the family's values for evaluation")
    from algorithms.evaluation.player import EvaluationJob

    return EvaluationJob(
        options=options,
        env=env,
        family_options=config.family,
        model=config.model,
        folder=config.run.folder,
        checkpoint_kind=config.run.load_checkpoint_kind,
        best_metric=config.run.save_best_metric,
        device=device,
        seed=config.run.seed,
    )


def _is_typed(argv: Sequence[str], option: str) -> bool:
    return any(word.partition("=")[0].replace("-", "_") == f"__{option}" for word in argv)


if __name__ == "__main__":
    from utils.logs import log_to_terminal
    from utils.processes import keep_standard_streams

    keep_standard_streams()
    log_to_terminal()
    sys.exit(main(sys.argv))
