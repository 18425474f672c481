"""The file of `--config`: a layer of options between those of a resumed experiment and those that are typed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appo.algorithms.familiar_words import HINTS, SYNONYMS
from appo.algorithms.saved_config import LOCATION, read_options, text_of
from appo.algorithms.train_config import groups_for
from appo.utils import cli
from appo.utils.options import ConfigError, to_text


def with_file(argv: Sequence[str], evaluation: Mapping[str, type] | None = None) -> tuple[list[str], dict[str, str]]:
    """The words of a command line with those of its `--config` file before them; option -> file, for these.

    Raises:
        ConfigError: the file cannot be read, or sets what cannot be set: it is named as the layer.
    """
    file = cli.typed_word(argv, "config")
    if not file:
        return list(argv), {}
    found, is_saved = read_options(Path(file).expanduser())
    if is_saved:  # of another experiment, which has a place of its own
        found = {name: value for name, value in found.items() if name not in LOCATION}
    sections = {name for name in groups_for("", "") if isinstance(found.get(name), dict)}
    for name in sections:
        found = found | found[name]
    found = {name: value for name, value in found.items() if name not in sections}
    env, auxiliary = (cli.typed_word(argv, name) or text_of(found, name) for name in ("env", "auxiliary_loss"))
    options = cli.declared_options(dict(evaluation or {}) | groups_for(env, auxiliary))
    for name in (found.keys() - options.keys()) & (SYNONYMS.keys() | HINTS.keys()):
        says = f"did you mean {SYNONYMS[name]}?" if name in SYNONYMS else HINTS[name]
        raise ConfigError(f"{file} sets unknown option {name!r}; {says}")
    if "config" in found:
        raise ConfigError(f"{file} sets config; one file can be read: leave it out")
    texts = {name for name, entry in options.items() if entry.kind is str}
    plain = {name: _typed_text(value) if name in texts else value for name, value in found.items()}
    values = cli.check_layer(plain, options, file)
    typed = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv if word.startswith("--")}
    kept = {name: value for name, value in values.items() if not typed & {name, *options[name].rule.aliases}}
    return [*(f"--{name}={to_text(value)}" for name, value in kept.items()), *argv], dict.fromkeys(kept, file)


def _typed_text(value: Any) -> Any:
    """A table as JSON and a list with commas, as they would be typed; anything else as it is."""
    if isinstance(value, list):
        return ",".join(str(entry) for entry in value)
    return json.dumps(value) if isinstance(value, dict) else value
