"""Files of options before the options are known: config.json of an experiment, and the file of `--config`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from appo.utils.options import ConfigError

LOCATION = ("experiment", "train_dir", "experiments_root", "restart_behavior", "preset", "config")  # of an experiment
# The next start may have another terminal; --autotune has chosen sizes, which are kept, and need not run again; and one
# start from the best checkpoint does not mean that all later ones throw away what came after it.
NOT_RESTORED = (*LOCATION, "debug", "view", "autotune", "load_checkpoint_kind")
CHOSEN_ANEW = ("seed", "num_workers")  # for each experiment and machine, unless somebody typed them
REPAIR = "repair it"
OR_BEGIN_ANEW = ", or type --restart_behavior=restart to move the experiment aside and begin anew"


class Saved(NamedTuple):
    """What config.json of an experiment holds."""

    options: dict[str, Any]
    typed: tuple[str, ...]
    source: str = ""  # where it was read, for errors


def read_saved(path: Path, env: str) -> Saved | None:
    """What the config.json at `path` holds; None where no experiment has begun.

    Raises:
        ConfigError: it is damaged, belongs to checkpoints but is gone, or its experiment trained another environment.
    """
    if not _exists(path):
        if any(path.parent.glob("checkpoint_p*/*.pth")):
            raise ConfigError(
                f"{path.parent} holds checkpoints but no {path.name}; put it back, or type another --experiment",
                ", or move the folder aside with --restart_behavior=restart",
            )
        return None
    try:
        saved = parse_saved(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {REPAIR}", OR_BEGIN_ANEW) from error
    if saved.options.get("env") != env:
        raise ConfigError(
            f"experiment {path.parent.name!r} was trained with env={saved.options.get('env')!r}, not {env!r}; type "
            "another --experiment",
            ", or --restart_behavior=restart to begin anew",
        )
    return saved


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be used: {error}; type another --train_dir") from error


def parse_saved(text: str, source: str) -> Saved:
    """What the text of a config.json holds.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, or what only an attacker writes
        raise ConfigError(f"{source} is not JSON: {error}; {REPAIR}", OR_BEGIN_ANEW) from error
    options = document.get("options") if isinstance(document, dict) else None
    typed = document.get("typed", []) if isinstance(document, dict) else None
    if not isinstance(options, dict) or not options or not isinstance(typed, list):
        raise ConfigError(f'{source} holds no {{"options": {{...}}, "typed": [...]}}; {REPAIR}', OR_BEGIN_ANEW)
    return Saved(options, tuple(str(name) for name in typed), source)


def read_options(path: Path) -> dict[str, Any]:
    """Names and values of a file of options.

    Of the config.json of an experiment without what belongs to its place, its terminal and its machine: the next
    experiment has its own.

    Raises:
        ConfigError: it cannot be read, or is neither TOML nor JSON with names and values.
    """
    readers = {".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in readers:
        raise ConfigError(f"config={path} is no file of options: write plan.toml with lines such as gamma = 0.99")
    try:
        document = readers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config={path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no text, no TOML, no JSON
        raise ConfigError(f"{path} is no {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f'{path} holds no names and values; for example {{"gamma": 0.99}}')
    if document.keys() == {"options", "typed"} and isinstance(document["options"], dict):
        typed = document["typed"] if isinstance(document["typed"], list) else []
        left_out = {*NOT_RESTORED, *(name for name in CHOSEN_ANEW if name not in typed)}
        return {name: value for name, value in document["options"].items() if name not in left_out}
    return document


def text_of(options: Mapping[str, Any], name: str) -> str:
    """The value of an option that is text; empty if it is not set, or damaged."""
    value = options.get(name, "")
    return value if isinstance(value, str) else ""
