"""Layers of options from files, above those of a resumed experiment and below what is typed: `--preset`, `--config`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.familiar_words import HINTS, SYNONYMS
from appo.algorithms.saved_config import LOCATION, parse_saved, read_options, text_of
from appo.algorithms.train_config import groups_for, place_of
from appo.utils import cli
from appo.utils.options import ConfigError, nearest_names, to_text

PRESETS = Path(__file__).resolve().parent / "presets"
MEASURED = "measured"  # of a preset: the table of what it has reached
_FILES = ("preset", "config")  # the options that name them; later wins
_OF_PLANS = ("base", "grid", "random", "search", "slurm")  # tables of a plan for a sweep


def preset_names() -> list[str]:
    """The presets that there are."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def with_files(argv: Sequence[str], evaluation: Mapping[str, type] | None = None) -> tuple[list[str], dict[str, str]]:
    """The words of a command line with those of its preset and its file before them; option -> where it is from.

    Raises:
        ConfigError: one of them cannot be read, or sets what cannot be set: it is named as the layer.
    """
    layers: dict[str, dict[str, Any]] = {}
    if name := cli.typed_word(argv, "preset"):
        layers[f"preset {name}"] = _read_preset(name)
    if file := cli.typed_word(argv, "config"):
        layers[file] = _read_file(file)
    named = {name: _first_text(argv, layers, name) for name in ("env", "auxiliary_loss")}
    if layers and not all(named.values()):  # options that depend on them are known only then
        before = _options_of_experiment(argv, layers)
        named = {name: value or text_of(before, name) for name, value in named.items()}
    if name and (its_env := layers[f"preset {name}"]["env"]) != named["env"]:
        raise ConfigError(f"--preset={name} is for --env={its_env} and not for {named['env']}; leave out one of them")
    options = cli.declared_options(dict(evaluation or {}) | groups_for(named["env"], named["auxiliary_loss"]))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, found in layers.items():
        values |= (checked := _checked(found, options, layer))
        origins |= dict.fromkeys(checked, layer)
    typed = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv if word.startswith("--")}
    kept = [name for name in values if not typed & {name, *options[name].rule.aliases}]
    return [*(f"--{name}={to_text(values[name])}" for name in kept), *argv], {name: origins[name] for name in kept}


def _read_preset(name: str) -> dict[str, Any]:
    if name not in preset_names():
        nearest = nearest_names(name, preset_names())
        meant = f"did you mean {' or '.join(nearest)}? There" if nearest else "there"
        raise ConfigError(f"there is no preset {name!r}; {meant} are {', '.join(preset_names())} (docs/presets.md)")
    found = read_options(PRESETS / f"{name}.toml")
    return {option: value for option, value in found.items() if option != MEASURED}


def _read_file(file: str) -> dict[str, Any]:
    sections = groups_for("", "").keys()
    found: dict[str, Any] = {}
    for name, value in read_options(Path(file).expanduser()).items():
        for word, set_to in value.items() if name in sections and isinstance(value, dict) else [(name, value)]:
            option = SYNONYMS.get(word, word)
            if option in found:
                raise ConfigError(f"{file} sets {option} twice; leave one of them out")
            found[option] = set_to
    return found


def _options_of_experiment(argv: Sequence[str], layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Options of the experiment that words and files name; none without one, or where it is damaged: told later."""
    words = [f"--{name}={to_text(found[name])}" for found in layers.values() for name in LOCATION if name in found]
    try:
        return parse_saved(place_of([*words, *argv]).config_file.read_text(encoding="utf-8"), "").options
    except (OSError, ValueError, ConfigError):
        return {}


def _first_text(argv: Sequence[str], layers: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """An option that is needed before all are known, from the command line or the highest layer that has it."""
    given = [text_of(found, name) for found in reversed(list(layers.values()))]
    return next(filter(None, [cli.typed_word(argv, name), *given]), "")


def _checked(found: Mapping[str, Any], options: Mapping[str, cli.Declared], layer: str) -> dict[str, Any]:
    for name in _FILES:
        if name in found:
            raise ConfigError(f"{layer} sets {name}; that is for the command line: leave it out")
    texts = {name for name, entry in options.items() if entry.kind is str}
    plain = {name: _typed_text(value) if name in texts else value for name, value in found.items()}
    return dict(cli.check_layer(plain, options, layer, _hint))


def _hint(name: str) -> str:
    return "this is a plan of another command: appo-tools sweep" if name in _OF_PLANS else HINTS.get(name, "")


def _typed_text(value: Any) -> Any:
    """A table as JSON and a list with commas, as they would be typed; anything else as it is."""
    if isinstance(value, list):
        return ",".join(str(entry) for entry in value)
    return json.dumps(value) if isinstance(value, dict) else value
