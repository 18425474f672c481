"""Train a policy: `python train_appo.py --env=CartPole-v1 --experiment=first`. `--help` lists every option."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from appo.algorithms.config import ResolvedConfig
    from appo.envs.api import EnvProfile, EnvSpec
    from appo.utils.signals import StopSignals


def main(argv: list[str]) -> int:
    """Parse, resolve the configuration, run the driver; its exit code."""
    from appo.utils.processes import end_with_caller
    from appo.utils.signals import StopSignals

    stop = StopSignals()  # before everything that takes time
    end_with_caller()
    from appo.algorithms.config import fitted, resolve, with_env_of_experiment
    from appo.algorithms.familiar_words import understood
    from appo.algorithms.run.folder_lock import require_free
    from appo.utils.cli import refuse
    from appo.utils.options import ConfigError

    def profile(unfitted: ResolvedConfig) -> tuple[EnvSpec, EnvProfile]:
        from appo.algorithms.run.session import profile_environment  # imported late: --help is quick without it

        return profile_environment(unfitted, stop)

    program = Path(argv[0]).name  # as an installation starts it: appo-train
    words = understood(argv[1:], program)
    if words is None:
        return 0
    argv = [argv[0], *words]
    try:
        argv[1:] = with_env_of_experiment(argv[1:])
        resolved = resolve(argv[1:], prog=program, profile=profile)
        if not resolved.config.run.benchmark:  # which has a folder of its own
            require_free(resolved.config.run.folder)
        if resolved.config.run.autotune:
            if resolved.needs_fitting:  # the search begins where the run would
                resolved = fitted(resolved, *profile(resolved))
            argv, resolved = _tuned(argv, resolved, stop, profile)
        if resolved.config.run.benchmark:
            from appo.algorithms.run.benchmark import measure

            code = measure(argv[1:], resolved, stop)
            return code if stop.received is None else stop.exit_code
        from appo.algorithms.run.session import train

        return train(resolved, argv, stop)
    except ConfigError as error:
        if stop.received is not None:
            return stop.end_before_start()
        refuse(program, argv, error)
        return 2


def _tuned(
    argv: list[str],
    resolved: ResolvedConfig,
    stop: StopSignals,
    profile: Callable[[ResolvedConfig], tuple[EnvSpec, EnvProfile]],
) -> tuple[list[str], ResolvedConfig]:
    """The command line with what --autotune has found in its place, and what it comes to."""
    from appo.algorithms.config import AUTOTUNED, resolve
    from appo.algorithms.run.autotune import tuned_words
    from appo.algorithms.run.controllers.callbacks import load_callback
    from appo.algorithms.run.trial import without
    from appo.algorithms.run.wandb_mirror import require_package
    from appo.utils.processes import core_count

    run = resolved.config.run
    if run.callback:  # the search uses neither: what would be refused afterwards is refused now
        load_callback(run.callback)
    if run.with_wandb:
        require_package()
    found = tuned_words(argv[1:], resolved, core_count(), stop)
    argv = [argv[0], *without(argv[1:], ("autotune",)), *found]
    resolved = resolve(argv[1:], profile=profile)
    names = [word.partition("=")[0].removeprefix("--") for word in found]
    origins = resolved.origins | dict.fromkeys(names, AUTOTUNED)
    typed = tuple(name for name in resolved.typed if name not in names)  # so that it can be tuned anew
    return argv, resolved._replace(origins=origins, typed=typed)


def command() -> int:
    """What a shell starts, here and as `appo-train`."""
    from appo.utils.processes import keep_standard_streams

    keep_standard_streams()
    return main(sys.argv)


if __name__ == "__main__":
    # Python looks into the folder of a program first. In this one, packages would hide a user's own of their names.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [str(folder / "src"), *(entry for entry in sys.path if entry != str(folder))]
    sys.exit(command())
