"""What a run says when it has ended: what came of it, and the commands to go on with."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from appo.algorithms.checkpoint_names import list_best, list_named, policy_folder
from appo.algorithms.reporting.snapshot import RunSnapshot
from appo.algorithms.run.config import RunConfig
from appo.algorithms.train_config import TrainConfig


def lines(
    config: TrainConfig, folder: Path, last: RunSnapshot, reason: str, program: str = "", unsaved: Sequence[str] = ()
) -> list[str]:
    """Best and last return, frames, time, and the commands to go on with.

    Args:
        config: of the run.
        folder: of the experiment, absolute: environments may have changed the directory.
        last: how it ended.
        reason: why it ended, as the driver tells.
        program: what was started; empty: this program.
        unsaved: what was typed, where `config.json` does not keep it.
    """
    commands = _commands(config, folder, last, reason, program or sys.argv[0], unsaved)
    return [*_results(config, folder, last), "", *commands]


def _results(config: TrainConfig, folder: Path, last: RunSnapshot) -> Iterator[str]:
    several = len(last.policies) > 1
    for policy, numbers in enumerate(last.policies):
        name = f"policy {policy}: " if several else ""
        if numbers.avg_reward is None:
            yield f"{name}no episode has ended yet, so there is no return"
            continue
        episodes = min(numbers.episodes, config.run.stats_avg)
        told = f"{name}mean return of the last {episodes} episodes {numbers.avg_reward:.4g}"
        if not numbers.has_new_episodes:
            told += " (of earlier starts: none has ended since)"
        best = list_best(policy_folder(folder, policy), config.run.save_best_metric)
        if best and best[0].value > float("-inf"):
            told += f"; best checkpoint {best[0].value:.4g} ({best[0].label}) after {best[0].steps[1]:,} frames"
        yield told
    seconds = max(last.train_seconds, 1e-9)
    duration = timedelta(seconds=round(seconds))
    yield f"{last.env_frames:,} env frames in {duration}, {last.env_frames / seconds:,.0f} per second"
    if last.bottleneck is not None:
        yield f"bottleneck: {last.bottleneck.said}"


def _commands(
    config: TrainConfig, folder: Path, last: RunSnapshot, reason: str, program: str, unsaved: Sequence[str]
) -> Iterator[str]:
    run = config.run
    place = [f"--experiment={run.experiment}"]
    place += [f"--{name}={value}" for name in ("train_dir", "experiments_root") if (value := _other(run, name))]
    typed = unsaved or [f"--env={config.env.env}", *place, *_more(config, reason)]
    yield f"train on:  {_words(program, 'train', typed)}"
    saved = [policy for policy in range(len(last.policies)) if list_named(policy_folder(folder, policy), "latest")]
    if saved:
        best = max(saved, key=lambda policy: _return_of(last, policy))
        which = [f"--policy_index={best}"] if len(last.policies) > 1 else []
        yield f"watch:     {_words(program, 'enjoy', [*place, *which])}"
    yield f"curves:    tensorboard --logdir {shlex.quote(str(run.folder))}"


def _return_of(last: RunSnapshot, policy: int) -> float:
    value = last.policies[policy].avg_reward
    return -math.inf if value is None else value


def _more(config: TrainConfig, reason: str) -> list[str]:
    """What has to be typed for a run to go on that has ended for this reason."""
    run = config.run
    larger = {
        "reached train_for_env_steps": f"--train_for_env_steps={_round(2 * run.train_for_env_steps)}",
        "reached train_for_seconds": f"--train_for_seconds={2 * run.train_for_seconds:g}",
        "reached stop_when": "--stop_when=",
        "reached stop_after_no_progress": "--stop_after_no_progress=0",
        "callback": "--callback=",
    }
    return [words for start, words in larger.items() if reason.startswith(start)]


def _other(run: RunConfig, name: str) -> str:
    """The value of an option of the place, where it is not the default."""
    value = str(getattr(run, name))
    return "" if value == getattr(RunConfig(), name) else value


def _words(program: str, what: str, options: Sequence[str]) -> str:
    """A command line of the program's own kind: from a checkout, or installed."""
    path = Path(program)
    if path.suffix != ".py":
        start = [f"appo-{what}"]
    elif (path.parent / "__init__.py").exists():  # a module of the package, as `train()` of an installed one starts it
        is_found = _is_found(Path(sys.executable).with_name(f"appo-{what}"))
        start = [f"appo-{what}"] if is_found else [_python(), "-m", f"appo.{what}_appo"]
    else:
        start = [_python(), str(path.with_name(f"{what}_appo.py"))]
    return shlex.join([*start, *options])


def _is_found(program: Path, name: str = "") -> bool:
    """A shell finds this program by its name, or by another one."""
    found = shutil.which(name or program.name)
    return found is not None and Path(found).absolute() == program.absolute()


def _python() -> str:
    """The interpreter as it can be typed: that of a virtual environment which is not active by its path."""
    path = Path(sys.executable)
    if _is_found(path, "python"):
        return "python"
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _round(frames: int) -> int:
    """Two leading digits, rounded up."""
    unit = 10 ** max(0, len(str(frames)) - 2)
    return -(-frames // unit) * unit
