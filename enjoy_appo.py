"""Watch, record or score a trained policy: `python enjoy_appo.py --env=CartPole-v1 --experiment=first`.

`--no_render --max_num_episodes=100` scores, `--save_video --max_num_episodes=3` records; `--help` lists every option.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appo.algorithms.evaluation.player import EvaluationJob

log = logging.getLogger(__name__)

EXIT_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: list[str]) -> int:
    """Parse, resolve the configuration, play; the exit code."""
    from appo.algorithms.familiar_words import understood
    from appo.envs.api import EnvError, UnsupportedSpaceError
    from appo.envs.own_code import raised_at
    from appo.envs.vector.errors import VecEnvError
    from appo.utils.cli import refuse, typed_flag
    from appo.utils.logs import say_error
    from appo.utils.options import ConfigError

    program = Path(argv[0]).name  # as an installation starts it: appo-enjoy
    words = understood(argv[1:], program)
    if words is None:
        return 0
    try:
        job = job_of(words, prog=program)
        from appo.algorithms.evaluation.player import play

        return play(job)
    except (ConfigError, UnsupportedSpaceError) as error:
        refuse(program, argv, error)
        return EXIT_REFUSED
    except (EnvError, VecEnvError) as error:
        reason = str(error).partition("\n")[0]  # a traceback may follow, from another process
        where = raised_at("".join(traceback.format_exception(error)))
        if typed_flag(argv, "debug"):
            traceback.print_exception(error)
        say_error(program, f"{reason} ({where})" if where else reason)
        return EXIT_FAILED
    except KeyboardInterrupt:  # before there was anything to end in order
        return EXIT_INTERRUPTED


def job_of(argv: Sequence[str], *, prog: str = "enjoy_appo.py") -> EvaluationJob:
    """What a command line asks to play.

    Raises:
        ConfigError: it cannot be played; the message says what could.
    """
    from appo.algorithms.config import resolve_evaluation
    from appo.algorithms.models.encoder_registry import require_encoder
    from appo.algorithms.run.config import torch_device
    from appo.algorithms.train_config import with_values
    from appo.envs.option_wrappers import env_of
    from appo.utils.options import ConfigError

    _require_options(argv)
    try:
        config, options, typed, of_files = resolve_evaluation(argv, prog=prog)
    except ConfigError as error:
        raise ConfigError(error.message) from error
    device = torch_device(config.run.device)
    require_encoder(config.model)
    env = env_of(config.env)
    now = of_files | {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv}
    changes = {name: value for name, value in env.family.evaluation.items() if name not in now}
    config = with_values(config, changes, layer="the family's values for evaluation")
    from appo.algorithms.evaluation.player import EvaluationJob

    return EvaluationJob(
        options=options,
        env=env,
        family_options=config.family,
        model=config.model,
        folder=config.run.folder.absolute(),  # environments may change the directory
        checkpoint_kind=config.run.load_checkpoint_kind,
        best_metric=config.run.save_best_metric,
        device=device,
        seed=config.run.seed,
        sampling=config.sampling,
        wrap_action_repeat=config.env.wrap_action_repeat,
        ends_unwatched="max_num_episodes" not in typed,
        is_policy_typed="policy_index" in typed,
    )


def _require_options(argv: Sequence[str]) -> None:
    """Refuse words that belong to no option before an experiment is looked for, which they may have meant to name.

    Raises:
        ConfigError: with the experiment of that name, or in that folder.
    """
    from appo.algorithms.evaluation.config import EvaluationConfig
    from appo.algorithms.train_config import groups_for
    from appo.utils.cli import BOOLEANS, COMMAND_LINE, asks_for_help, declared_options, parse
    from appo.utils.options import ConfigError

    if asks_for_help(argv):
        return
    evaluation: dict[str, type] = {"evaluation": EvaluationConfig}
    switches = {f"--{name}" for name, each in declared_options(evaluation).items() if each.kind is bool}
    for flag, word in zip(["", *argv], argv, strict=False):
        is_switch = f"--{flag.removeprefix('--').replace('-', '_')}" in switches and word.lower() not in BOOLEANS
        if word.startswith("-") or (flag.startswith("--") and "=" not in flag and not is_switch):
            continue
        if meant := _experiment_named(word, argv):
            raise ConfigError(f"{COMMAND_LINE} holds {word!r}, which belongs to no option; did you mean {meant}?")
        parse([word], evaluation | groups_for("", ""), prog="enjoy_appo.py")  # refuses it


def _experiment_named(word: str, argv: Sequence[str]) -> str:
    """What to type for an experiment of this name, or in this folder; empty where there is none."""
    from appo.algorithms.run.config import CONFIG_FILE
    from appo.algorithms.train_config import place_of

    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no name of a file, or of nobody's home
        root = place_of(argv).folder.parent
        for folder in (root / word, Path(word)):
            if (folder / CONFIG_FILE).is_file():
                place, name = folder.resolve().parent, f"--experiment={folder.resolve().name}"
                return name if place == root.resolve() else shlex.join([f"--train_dir={folder.parent}", name])
    return ""


def command() -> int:
    """What a shell starts, here and as `appo-enjoy`."""
    from appo.utils.logs import log_to_terminal
    from appo.utils.processes import keep_standard_streams

    keep_standard_streams()
    log_to_terminal()
    return main(sys.argv)


if __name__ == "__main__":
    # Python looks into the folder of a program first. In this one, packages would hide a user's own of their names.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [str(folder / "src"), *(entry for entry in sys.path if entry != str(folder))]
    sys.exit(command())
