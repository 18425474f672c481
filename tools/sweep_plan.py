"""What a sweep tries: a plan read from TOML or Python, and the trials that follow from it. Starts no process.

A plan has options of `train_appo.py` that all trials share (`[base]`), options of which each value is tried (`[grid]`),
options that are drawn (`[random]`), and seeds. Trials are all combinations: grid x draws x seeds. A plan in Python
defines `PLAN`, a dict of the same shape, or `trials()`, which yields a dict of options per trial, or both.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import json
import math
import random
import re
import runpy
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from appo.algorithms.familiar_words import SYNONYMS
from appo.algorithms.train_config import groups_for
from appo.utils.cli import declared_options
from appo.utils.options import ConfigError, to_text

_SETTINGS = ("name", "train_dir", "objective", "direction", "parallel", "cores_per_run", "gpus", "retries", "seeds")
_TABLES = ("base", "grid", "random", "search", "slurm")
_RANGES = ("uniform", "log_uniform", "int")
_OPTION = re.compile(r"[A-Za-z]\w*(\.\w+)*")
# What the launcher sets for each trial, or what leaves no experiment to go on with.
_NOT_FOR_TRIALS = (
    *("experiment", "experiments_root", "train_dir", "restart_behavior", "benchmark"),
    *("help", "version", "completion"),
)
_UNFIT_FOR_A_FOLDER = re.compile(r"[^A-Za-z0-9_.+=@,-]")
_MOST_OF_NAME = 120  # characters; a folder's name may have 255 bytes, and others are made of it
_DIGITS = 4  # significant ones of a number that is drawn: names of trials stay short
_DRAWS_PER_TRIAL = 20  # a draw that repeats another is replaced by the next one
METHODS = ("optuna",)
COSTS = ("minutes", "frames")  # of training, as the table of trials has them
DIRECTIONS = ("maximize", "minimize")
OBJECTIVES = ("reward", "true_reward", "best", "env_frames", "train_seconds")


class Distribution(NamedTuple):
    """Where the values of an option come from."""

    kind: str  # uniform, log_uniform, int or choice
    values: tuple[Any, ...]  # lowest and highest, both included; of a choice, all there are

    def draw(self, numbers: random.Random) -> Any:
        """One value; that of a range has four significant digits at most."""
        if self.kind == "choice":
            return numbers.choice(self.values)
        low, high = self.values
        if self.kind == "int":
            return numbers.randint(low, high)
        if self.kind == "uniform":
            value = numbers.uniform(low, high)
        else:
            value = math.exp(numbers.uniform(math.log(low), math.log(high)))
        return self.rounded(value)

    def rounded(self, value: Any) -> Any:
        """A number of a range with as many digits as a name of a trial should have; anything else as it is."""
        if self.kind in ("choice", "int"):
            return value
        low, high = self.values
        return min(max(float(f"{value:.{_DIGITS}g}"), low), high)


class Search(NamedTuple):
    """Trials that are chosen one after another, by what the earlier ones have reached."""

    method: str
    trials: int
    seed: int
    space: dict[str, Distribution]
    cost: str = ""  # one of `COSTS`, to be kept small as well; empty: none


class Trial(NamedTuple):
    """One run."""

    name: str  # of its folder
    options: dict[str, Any]  # all that are typed for it


@dataclass(frozen=True)
class Plan:
    """A sweep as its author wants it."""

    name: str
    base: dict[str, Any]  # options of all trials, by our names
    varied: tuple[dict[str, Any], ...]  # of each trial, what it has beyond those, by the names that the author wrote
    train_dir: str = "./train_dir"
    objective: str = "reward"
    direction: str = "maximize"
    parallel: int | None = None  # trials at the same time; None: as many as the cores allow
    cores_per_run: int | None = None
    gpus: tuple[int, ...] = ()
    retries: int = 2
    search: Search | None = None
    slurm: dict[str, Any] | None = None  # trials are jobs with these parameters; None: processes of this machine

    def trials(self) -> list[Trial]:
        """All trials in order, but for those of a search.

        Raises:
            ConfigError: two of them are the same.
        """
        found: dict[str, Trial] = {}
        names: dict[str, str] = {}  # what makes a trial different, by our names of options -> its own name
        for varied in self.varied:
            trial = self.trial(varied, found)
            first = names.setdefault(json.dumps(list(by_our_names(varied).items())), trial.name)
            if trial.name in found or first != trial.name:
                also = f", also as {first}" if first != trial.name else ""
                raise ConfigError(f"the plan asks for the trial {trial.name} twice{also}; leave one out")
            found[trial.name] = trial
        return list(found.values())

    def trial(self, varied: Mapping[str, Any], others: Mapping[str, Trial]) -> Trial:
        """The trial with these options beside the common ones, named so that it is none of `others`.

        Its name is that of one of `others` where that has the same options.
        """
        options = self.base | by_our_names(varied)
        name = name_of(varied)
        if name in others and others[name].options != options:
            name = f"{name[: _MOST_OF_NAME - 9]}-{_digest(options)}"
        return Trial(name, options)


def typed(value: Any) -> str:
    """A value of a plan as a command line has it: a list with commas, a table as JSON."""
    if isinstance(value, dict):
        return json.dumps(value)
    return to_text(tuple(value) if isinstance(value, list) else value)


def our_name(name: str) -> str:
    """The option that a name means: it may be another program's word for it, or its second name here."""
    return _other_names().get(name, name)


def by_our_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options, however their author called them."""
    return {our_name(name): value for name, value in options.items()}


@functools.cache
def _other_names() -> dict[str, str]:
    declared = declared_options(groups_for("", ""))
    return SYNONYMS | {alias: name for name, entry in declared.items() for alias in entry.rule.aliases}


def name_of(varied: Mapping[str, Any]) -> str:
    """The name of a trial's folder, from the options that make it different from others."""
    text = ",".join(f"{name}={typed(value)}" for name, value in varied.items()) or "trial"
    name = _UNFIT_FOR_A_FOLDER.sub("_", text)
    return name if len(name) <= _MOST_OF_NAME else f"{name[: _MOST_OF_NAME - 9]}-{_digest(varied)}"


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    Raises:
        ConfigError: it cannot be read, or is no plan.
    """
    if path.suffix not in (".toml", ".py"):
        raise ConfigError(f"{path} is no plan; a plan is a file of TOML, or of Python, such as plan.toml or plan.py")
    try:
        if path.suffix == ".py":
            return _from_python(path)
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:  # of TOML, and of UTF-8
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return parse_plan(document, path.stem)


def parse_plan(document: Mapping[str, Any], name: str, listed: Sequence[Mapping[str, Any]] | None = None) -> Plan:
    """The plan that a document describes.

    Args:
        document: its content, as TOML is read.
        name: of the sweep, where the document has none.
        listed: options of each trial, instead of a grid and draws.

    Raises:
        ConfigError: it is no plan; the message names the entry.
    """
    _require_known(document, (*_SETTINGS, *_TABLES), "the plan")
    for table in _TABLES:
        if not isinstance(document.get(table, {}), dict):
            raise ConfigError(f"{table} should be a table, [{table}]")
    shared = checked_options(document.get("base", {}), "[base]")
    base = by_our_names(shared)
    seeds = _whole_numbers(document, "seeds")
    search = _search(document["search"]) if "search" in document else None
    rows = [] if listed is None else [checked_options(each, "trials()") for each in listed]
    parts: list[list[dict[str, Any]]] = [] if listed is None else [rows]
    if listed is None:
        parts = [_grid(document.get("grid", {})), _draws(document["random"]) if "random" in document else [{}]]
    elif "grid" in document or "random" in document:
        raise ConfigError("trials() takes the place of [grid] and [random]; leave one of them out")
    parts.append([{"seed": seed} for seed in seeds] or [{}])
    if search is not None and ("grid" in document or "random" in document or seeds or listed is not None):
        raise ConfigError("[search] chooses all trials; leave out [grid], [random], seeds and trials()")
    names = [_joined(part) for part in parts]  # all that the part sets
    if listed is not None:  # what a trial says wins over what is common to all
        names[0] = {name: None for option, name in _written(names[0]).items() if option not in base}
    _require_once([shared, *names, search.space if search else {}])
    varied = tuple(_joined(row) for row in itertools.product(*parts)) if search is None else ()
    if search is None and not varied:
        raise ConfigError("the plan has no trial")
    return Plan(
        name=_name(document.get("name", name)),
        base=base,
        varied=varied,
        train_dir=_text(document.get("train_dir", "./train_dir"), "train_dir"),
        objective=_objective(document.get("objective", "reward")),
        direction=_one_of(document.get("direction", "maximize"), DIRECTIONS, "direction"),
        parallel=_count(document, "parallel", 1),
        cores_per_run=_count(document, "cores_per_run", 1),
        gpus=tuple(_whole_numbers(document, "gpus")),
        retries=2 if (retries := _count(document, "retries", 0)) is None else retries,
        search=search,
        slurm=dict(document["slurm"]) if "slurm" in document else None,
    )


def checked_options(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options of trials as they are kept: each value is one that `sweep.json` gives back as it was.

    Whether there is such an option, and whether it has such a value, the trainer says.

    Args:
        options: as a file or a program gives them.
        where: they stand, for errors.

    Raises:
        ConfigError: a name that no option of a trial has, two that mean the same option, or a value that no option has.
    """
    _check_names(options, where)
    return {name: _plain(value, f"{where} {name}") for name, value in options.items()}


def _check_names(options: Mapping[str, Any], where: str) -> None:
    seen: dict[str, str] = {}
    for name in options:
        if not isinstance(name, str) or not _OPTION.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of an option; write learning_rate, without hyphens")
        option = our_name(name)
        if option in _NOT_FOR_TRIALS:
            here = name if name == option else f"{name}, here {option}"
            raise ConfigError(f"a trial cannot set {here}; the sweep decides where its trials are and how they go on")
        if option in seen:
            raise ConfigError(f"{where} sets {option} as {seen[option]} and as {name}; leave one out")
        seen[option] = name


def _plain(value: Any, where: str) -> Any:
    """A value that JSON holds exactly, and for which the same word is typed.

    A number of numpy becomes Python's, a path text, and infinity, which JSON has no number for, the text that is typed
    for it, as in config.json.
    """
    if isinstance(value, list | tuple):
        return [_plain(each, where) for each in value]
    if isinstance(value, dict):
        table = _plain_table(value, where)
        try:
            json.dumps(table, allow_nan=False)
        except ValueError:  # infinity in a table is not the text "inf"; so what is typed for the whole table is kept
            return json.dumps(table)
        return table
    value = _scalar(value, where)
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where} holds a zero byte, which no command line can have; write it without")
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain_table(table: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """What JSON makes of a table, but for infinity."""

    def inside(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [inside(each) for each in value]
        return _plain_table(value, where) if isinstance(value, dict) else _scalar(value, where)

    for key in table:
        if not isinstance(key, str):
            raise ConfigError(f"{where} has the key {key!r}, and JSON has text only; write {str(key)!r}")
    return {key: inside(value) for key, value in table.items()}


def _scalar(value: Any, where: str) -> Any:
    """A single value as Python has it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PurePath):
        value = str(value)
    # Not a class derived from these, such as an enum: what is typed for it and what JSON holds are two things.
    if value is not None and type(value) not in (bool, int, float, str):
        raise ConfigError(
            f"{where} is a {type(value).__name__}, which no option has; write a number, text, true or false, or a list "
            "or table of these"
        )
    return value


def read_injected(path: Path) -> list[dict[str, Any]]:
    """Options of the trials in an inject.toml, `[[trials]]`, or in an inject.jsonl, one per line; unchecked.

    Raises:
        ConfigError: it is neither.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8 ({error.reason}); save it as UTF-8") from error
    try:
        found: Any
        if path.suffix == ".jsonl":
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            found = tomllib.loads(text).get("trials")
    except (ValueError, RecursionError) as error:  # the latter: nested without end
        raise ConfigError(f"{path} cannot be understood: {error}") from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigError(f"{path} should hold a table [[trials]] of options per trial, or JSON, one object per line")
    return found


def _from_python(path: Path) -> Plan:
    path.open().close()  # an OSError here is one of the plan, later it is one of its code
    try:
        defined = runpy.run_path(str(path))
        listed = list(defined["trials"]()) if "trials" in defined else None
    except Exception as error:
        raise ConfigError(f"{path} raised {type(error).__name__}: {error}") from error
    document = defined.get("PLAN", {})
    if listed is None and "PLAN" not in defined:
        raise ConfigError(f"{path} defines neither PLAN nor trials()")
    if not isinstance(document, dict) or not all(isinstance(each, dict) for each in listed or ()):
        raise ConfigError(f"{path}: PLAN should be a dict, and what trials() yields dicts of options")
    return parse_plan(document, path.stem, listed)


def _grid(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    for name, values in table.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"[grid] {name} should be a list of values, such as {name} = [1, 2]")
    lists = checked_options(table, "[grid]")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _draws(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Draws that differ; fewer than asked for where there are no more.

    Each depends on the seed and its number only, so that more trials begin with the same ones.
    """
    count, seed = _drawn(table, "[random]")
    space = _space(table, "[random]")
    found: list[dict[str, Any]] = []
    for index in range(_DRAWS_PER_TRIAL * count):
        numbers = random.Random(f"{seed}/{index}")
        drawn = {name: source.draw(numbers) for name, source in space.items()}
        if drawn not in found:
            found.append(drawn)
        if len(found) == count:
            break
    return found


def _search(table: Mapping[str, Any]) -> Search:
    if "method" not in table:
        raise ConfigError(f"[search] has no method; known: {', '.join(METHODS)}")
    method = _one_of(table["method"], METHODS, "[search] method")
    count, seed = _drawn(table, "[search]")
    cost = _one_of(table["cost"], COSTS, "[search] cost") if "cost" in table else ""
    return Search(method, count, seed, _space(table, "[search]"), cost)


def _drawn(table: Mapping[str, Any], where: str) -> tuple[int, int]:
    """How many trials, and the seed of the draws."""
    count = _count(table, "trials", 1)
    if count is None:
        raise ConfigError(f"{where} does not say how many trials; add trials = 20")
    return count, _count(table, "seed", 0) or 0


def _space(table: Mapping[str, Any], where: str) -> dict[str, Distribution]:
    found = {name: entry for name, entry in table.items() if name not in ("trials", "seed", "method", "cost")}
    if not found:
        raise ConfigError(f"{where} names no option; add learning_rate = {{log_uniform = [1e-4, 1e-2]}}")
    _check_names(found, where)
    return {name: _distribution(f"{where} {name}", entry) for name, entry in found.items()}


def _distribution(where: str, entry: Any) -> Distribution:
    kinds = (*_RANGES, "choice")
    if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in kinds:
        raise ConfigError(f"{where} should be {{uniform = [0, 1]}}; instead of uniform also {', '.join(kinds[1:])}")
    ((kind, values),) = entry.items()
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"{where}: {kind} should be a list of values")
    values = _plain(values, where)
    if kind in _RANGES:
        numbers = int if kind == "int" else (int, float)
        fits = len(values) == 2 and all(isinstance(v, numbers) and not isinstance(v, bool) for v in values)
        if not fits or not -math.inf < values[0] < values[1] < math.inf or (kind == "log_uniform" and values[0] <= 0):
            above = ", above 0" if kind == "log_uniform" else ""
            whole = "whole " if kind == "int" else ""
            raise ConfigError(f"{where}: {kind} should be two {whole}numbers{above}, the lower one first")
    return Distribution(kind, tuple(values))


def _written(options: Iterable[str]) -> dict[str, str]:
    """Our name of an option -> how its author wrote it."""
    return {our_name(name): name for name in options}


def _require_once(parts: Iterable[Iterable[str]]) -> None:
    """Refuse an option that two parts of a plan set, under whatever names."""
    seen: dict[str, str] = {}
    for part in parts:
        for option, name in _written(part).items():
            if option in seen:
                told = name if name == seen[option] else f"{option} as {seen[option]} and as {name}"
                raise ConfigError(f"the plan sets {told} in two places; leave one out")
            seen[option] = name


def _require_known(document: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in document:
        if name not in known:
            nearest = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "options of trials belong below [base] or [grid]"
            raise ConfigError(f"{where} has an unknown entry {name!r}; {hint}")


def _joined(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip(".-") or _UNFIT_FOR_A_FOLDER.search(name) or name[0] in ".-":
        raise ConfigError(f"the sweep's name {name!r} is no name of a folder; write letters, digits, _ and -")
    return name


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}={value!r}; expected text")
    return value


def _objective(value: Any) -> str:
    if not isinstance(value, str) or ("/" not in value and value not in OBJECTIVES):
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"objective={value!r} is unknown; {known}, or a tag of docs/metrics.md such as eval/reward")
    return value


def _one_of(value: Any, known: Sequence[str], where: str) -> str:
    if value not in known:
        raise ConfigError(f"{where}={value!r}; allowed: {', '.join(known)}")
    return str(value)


def _count(document: Mapping[str, Any], name: str, least: int) -> int | None:
    value = document.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ConfigError(f"{name}={value!r}; a whole number, at least {least}")
    return value


def _whole_numbers(document: Mapping[str, Any], name: str) -> list[int]:
    values = document.get(name, [])
    if not isinstance(values, list | tuple) or any(not isinstance(v, int) or isinstance(v, bool) for v in values):
        raise ConfigError(f"{name} should be a list of whole numbers, such as {name} = [0, 1]")
    if any(value < 0 for value in values) or len(set(values)) < len(values):
        raise ConfigError(f"{name}={list(values)}: numbers from 0, each once")
    return list(values)


def _digest(options: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode()).hexdigest()[:8]
