"""Experiments as they are found on disk: their names, their options, and the options in which they differ."""

from __future__ import annotations

import contextlib
import fnmatch
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.familiar_words import SYNONYMS
from appo.algorithms.run.config import (
    COMMAND_LINES_FILE,
    CONFIG_FILE,
    METRICS_FILE,
    MOVED_ASIDE,
    STATUS_FILE,
    RunConfig,
)
from appo.algorithms.saved_config import Saved, parse_saved
from appo.tools.arguments import Refused, nearest
from appo.utils.cli import typed_word
from appo.utils.options import ConfigError, to_text

# Any of these makes a folder an experiment's; config.json comes only with the first optimizer step.
_MARKS = (CONFIG_FILE, METRICS_FILE, STATUS_FILE, COMMAND_LINES_FILE)
# --experiments_root may group experiments. Deeper folders are not looked at: links may lead in circles.
_DEEPEST = 4
# Where a run lies, how it was begun, and the random numbers of it.
PLACE = ("experiment", "train_dir", "experiments_root", "restart_behavior")
ENV, SEED = "env", "seed"
_MISSING = "-"


class Found(NamedTuple):
    """One experiment."""

    name: str  # path below the folder that was searched
    folder: Path
    options: dict[str, Any]  # of config.json; empty as long as there is none
    typed: frozenset[str]  # those that its user typed
    problem: str  # why there are no options; else empty


def place_of(word: str) -> Path:
    """The folder that a word of a command line names: its path, or its name below ./train_dir."""
    path = Path(word)
    with contextlib.suppress(OSError, ValueError):  # it is no name of a file: told where it is read
        if not path.exists() and _below_train_dir(path).is_dir():
            return _below_train_dir(path)
    return path


def _below_train_dir(path: Path) -> Path:
    return Path(RunConfig().train_dir) / path


def similar_to(folder: Path) -> str:
    """`; nearest: ...` for a folder that is not there, of those beside it and in ./train_dir, or `; there are ...`."""
    try:
        if folder.exists():
            return ""
    except OSError:  # it is no name of a folder
        return ""
    beside = [path for of in (folder, _below_train_dir(folder)) for path in _folders(of.parent)]
    if alike := nearest(folder.name, (path.name for path in beside), else_first=False):
        return alike
    return nearest(folder.name, (path.name for path in beside if _is_experiment(path)))


def find_experiments(places: Sequence[Path]) -> list[Found]:
    """Every experiment that is one of these folders, or lies in one of them.

    Raises:
        Refused: one of them does not exist, or is and holds no experiment.
    """
    found: dict[Path, Found] = {}
    for place in places:
        if not place.is_dir():
            told = "is no folder" if place.exists() else "does not exist"
            raise Refused(f"{place} {told}{similar_to(place)}; name the --train_dir of runs, or folders in it")
        folders = list(_experiments_below(place, 0))
        if not folders:
            raise Refused(f"{place} holds no experiment; name the --train_dir of a run, or folders in it")
        for folder in folders:
            name = folder.resolve().name if folder == place else folder.relative_to(place).as_posix()
            found.setdefault(folder.resolve(), Found(name, folder, *_saved(folder)))
    return list(found.values())


def _experiments_below(folder: Path, depth: int) -> Iterator[Path]:
    if _is_experiment(folder):
        yield folder
    elif depth <= _DEEPEST:
        for inside in _folders(folder):
            yield from _experiments_below(inside, depth + 1)


def _is_experiment(folder: Path) -> bool:
    try:
        return any((folder / mark).is_file() for mark in _MARKS)
    except OSError:  # not ours to read
        return False


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError:  # none, or not ours to read
        return []


def _saved(folder: Path) -> tuple[dict[str, Any], frozenset[str], str]:
    """Options and problem; one damaged experiment is no reason to refuse all others."""
    path = folder / CONFIG_FILE
    try:
        saved = parse_saved(path.read_text(encoding="utf-8", errors="replace"), str(path))
    except FileNotFoundError:
        return {}, frozenset(), f"there is no {CONFIG_FILE} yet, which tells the options"
    except (OSError, ConfigError) as error:
        told = " ".join((error.message if isinstance(error, ConfigError) else str(error)).split())
        return {}, frozenset(), f"{CONFIG_FILE} cannot be read ({told})"
    return saved.options, _typed_by_hand(folder, saved, frozenset()), ""


def _typed_by_hand(folder: Path, saved: Saved, seen: frozenset[Path]) -> frozenset[str]:
    """Options that somebody typed, in a command line or a file.

    All that `--config` has taken from the config.json of another experiment are recorded as typed: of those, the ones
    that were typed there.
    """
    config = str(saved.options.get("config", "")) or _config_of_earlier_starts(folder)
    if not config.endswith(".json"):
        return frozenset(saved.typed)
    try:
        source = Path(config).expanduser()
        place = source.resolve()
        other = parse_saved(source.read_text(encoding="utf-8", errors="replace"), str(source))
    except ConfigError:  # a file that somebody wrote
        return frozenset(saved.typed)
    except (OSError, ValueError, RuntimeError):  # gone, named from another folder or by nobody's name, or no name
        # That most of all options are recorded as typed shows that it was an experiment's.
        is_whole = 2 * len(saved.typed) > len(saved.options)
        return frozenset(saved.typed) & _words_of(folder) if is_whole else frozenset(saved.typed)
    there = frozenset() if place in seen else _typed_by_hand(source.parent, other, seen | {place})
    return frozenset(
        name
        for name in saved.typed
        if name in there or name not in other.options or saved.options.get(name) != other.options[name]
    )


def _config_of_earlier_starts(folder: Path) -> str:
    """The newest file of `--config`: what it has set stays typed when a later start goes on without it."""
    return next((file for line in reversed(_command_lines(folder)) if (file := typed_word(line, "config"))), "")


def _words_of(folder: Path) -> frozenset[str]:
    """Options on the command lines with which an experiment was started."""
    words = [word for line in _command_lines(folder) for word in line if word.startswith("--")]
    names = (word.removeprefix("--").partition("=")[0].replace("-", "_") for word in words)
    return frozenset(SYNONYMS.get(name, name) for name in names)


def _command_lines(folder: Path) -> list[list[str]]:
    """The words of each start of an experiment, oldest first; none where the record is damaged."""
    try:
        lines = (folder / COMMAND_LINES_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        return [shlex.split(line) for line in lines]
    except (OSError, ValueError):
        return []


def env_of(experiment: Found) -> str:
    """Its environment, from the newest command line as long as there is no config.json; a dash where none tells."""
    if ENV in experiment.options:
        return text_of(experiment.options, ENV)
    started = _command_lines(experiment.folder)
    return (typed_word(started[-1], ENV) if started else None) or _MISSING


def without_moved_aside(experiments: Sequence[Found], named: Sequence[Path]) -> list[Found]:
    """Without those that `--restart_behavior=restart` moved aside for one that is there, but for what is in `named`."""
    folders = {experiment.folder.resolve() for experiment in experiments}
    kept = {place.resolve() for place in named}
    return [
        experiment
        for experiment in experiments
        if (place := experiment.folder.resolve()) in kept or _in_whose_way(place) not in folders
    ]


def _in_whose_way(folder: Path) -> Path | None:
    """The experiment for which this one was moved aside, as its name says."""
    name = MOVED_ASIDE.fullmatch(folder.name)
    return folder.with_name(name["name"]) if name else None


def of_env(experiments: Sequence[Found], pattern: str | None) -> list[Found]:
    """Those whose environment has this name, in which * stands for anything; all without a pattern.

    Raises:
        Refused: there is none.
    """
    if pattern is None:
        return list(experiments)
    envs = [env_of(experiment) for experiment in experiments]
    found = [each for each, env in zip(experiments, envs, strict=True) if fnmatch.fnmatchcase(env, pattern)]
    if not found:
        raise Refused(f"no run has --env={pattern}{nearest(pattern.strip('*'), envs)}")
    return found


def named(experiments: Sequence[Found], name: str) -> Found:
    """The experiment of this name, or with this path.

    Raises:
        Refused: there is none.
    """
    for experiment in experiments:
        if experiment.name == name or Path(name).resolve() == experiment.folder.resolve():
            return experiment
    raise Refused(f"there is no experiment {name!r}{nearest(name, (each.name for each in experiments))}")


def differing(configurations: Sequence[dict[str, Any]]) -> list[str]:
    """Options that have not the same value in all of them, in the order of declaration; an absent one differs."""
    names = dict.fromkeys(name for options in configurations for name in options)
    return [name for name in names if len({text_of(options, name) for options in configurations}) > 1]


def text_of(options: dict[str, Any], name: str) -> str:
    """The value of an option as a user would type it; a dash where another version did not have it."""
    return to_text(options[name]) if name in options else _MISSING
