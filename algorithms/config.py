"""How layers of values become the one configuration of a run.

Layers, later wins: declared defaults < the environment's defaults < config.json of a resumed experiment < the preset
< the file of `--config` < what the user typed. For an environment without family defaults, options that no layer set
are chosen after a moment of random play (`fitted`). Each layer is checked in the same way, and the origin of every
value is known. Where a run is, and what to do with what lies there (`LOCATION`), is never taken from config.json: the
folder may have been moved.

Nothing here imports torch, unless an auxiliary loss is chosen, and nothing imports Gymnasium before an environment is.
`python -m appo.algorithms.config` writes the reference page docs/options.md from the declarations.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.config_file import with_files
from appo.algorithms.evaluation.config import EvaluationConfig
from appo.algorithms.familiar_words import check_words
from appo.algorithms.fitted_defaults import Choice, choose
from appo.algorithms.option_hints import hint_of, last_hint_of
from appo.algorithms.run.config import CONFIG_FILE
from appo.algorithms.saved_config import (
    NOT_RESTORED,
    OR_BEGIN_ANEW,
    REPAIR,
    Saved,
    parse_saved,
    read_saved,
    text_of,
)
from appo.algorithms.train_config import (
    TrainConfig,
    auxiliary_type,
    compose,
    family_of,
    groups_for,
    groups_of,
    instance_of,
    place_of,
    values_of,
    with_values,
)
from appo.envs.api import EnvProfile, EnvSpec
from appo.utils import cli
from appo.utils.options import ConfigError, to_text
from appo.utils.processes import core_count

FAMILY_DEFAULTS = "family defaults"
CHOSEN = "chosen for this run"  # the origin of what a default of -1 left open
AUTOTUNED = "autotune"  # the origin of what --autotune has found
FITTED = "fitted"  # the origin of what follows from its spaces and random play
_DESCRIPTION = "Train a policy with asynchronous PPO."
_NO_ENV = "--env is required; for example --env=CartPole-v1, --env=doom_basic or --env=my_package.my_module:make_env"


class ResolvedConfig(NamedTuple):
    """A configuration that can be run, and where it comes from."""

    config: TrainConfig
    origins: dict[str, str]  # option -> layer, for every option that a layer set
    typed: tuple[str, ...]  # options that the user typed, now or in an earlier start of this experiment
    resumed: bool  # config.json was read
    needs_fitting: bool = False
    """The environment has no family defaults, and combinations are unchecked: call `fitted` before using it."""
    changed: tuple[tuple[str, Any, Any], ...] = ()
    """Option, its value before and now, where what is typed differs from config.json."""


class ResolvedEvaluation(NamedTuple):
    """How a policy was trained, and how it is to be watched."""

    config: TrainConfig
    evaluation: EvaluationConfig
    typed: frozenset[str]  # options that were typed, in a file or when it was trained, too
    of_files: frozenset[str]  # those of them that files of this start set


class _Layers(NamedTuple):
    """All layers merged."""

    groups: dict[str, type]
    values: dict[str, Any]
    origins: dict[str, str]
    typed: tuple[str, ...]
    resumed: bool
    changed: tuple[tuple[str, Any, Any], ...]


def resolve(
    argv: Sequence[str],
    *,
    prog: str = "train_appo.py",
    profile: Callable[[ResolvedConfig], tuple[EnvSpec, EnvProfile]] | None = None,
) -> ResolvedConfig:
    """The configuration that a command line asks for. Reads config.json of an experiment to resume; writes nothing.

    `--help` prints and raises SystemExit(0).

    Args:
        argv: the words after the program's name.
        prog: the program's name.
        profile: measures an environment without family defaults, so that `--help` shows the defaults chosen for it.

    Raises:
        ConfigError: something cannot be run; the message says what would.
    """
    choices: dict[str, Choice] = {}
    argv, of_file = with_files(argv)
    if profile is not None and cli.asks_for_help(argv) and _has_no_defaults(cli.typed_word(argv, "env") or ""):
        words = [word for word in argv if not cli.asks_for_help([word])]
        unfitted = _resolved(_merge_layers(words, prog, _DESCRIPTION, begins_anew=True))
        choices = _choices(unfitted, *profile(unfitted))
    resolved = _resolved(_merge_layers(argv, prog, _DESCRIPTION, choices=choices, of_file=of_file))
    resolved.config.run.check_machine()
    return resolved


def _resolved(layers: _Layers) -> ResolvedConfig:
    origins = layers.origins | dict.fromkeys(_settle(layers.values), CHOSEN)
    config = compose(layers.groups, layers.values)
    _require_no_family_options(config, layers.typed)
    needs_fitting = not layers.resumed and _has_no_defaults(config.env.env)
    if not needs_fitting:
        config.check_combinations()
    return ResolvedConfig(config, origins, layers.typed, layers.resumed, needs_fitting, layers.changed)


def _require_no_family_options(config: TrainConfig, typed: Sequence[str]) -> None:
    """Refuse what a family does around single environments, where Gymnasium's vectorised form takes their place."""
    if config.sampling.env_backend != "native" or ":" in config.env.env:  # a factory decides itself what it builds
        return
    for name in typed:
        if name in vars(config.family):
            raise ConfigError(
                f"{name} is an option of environments that this program puts together, and --env_backend=native takes "
                f"Gymnasium's vectorised form of {config.env.env}; leave it out, type an argument of that form "
                "(--env_kwargs), or take --env_backend=serial"
            )


def fitted(resolved: ResolvedConfig, spec: EnvSpec, profile: EnvProfile) -> ResolvedConfig:
    """Choose every option that no layer set, where the environment has no family defaults.

    Raises:
        ConfigError: what was set cannot be run.
    """
    if not resolved.needs_fitting:
        return resolved
    choices = _choices(resolved, spec, profile)
    config = with_values(resolved.config, {name: choice.value for name, choice in choices.items()}, layer=FITTED)
    origins = resolved.origins | {name: f"{FITTED}: {choice.reason}" for name, choice in choices.items()}
    return resolved._replace(config=config, origins=origins, needs_fitting=False)


def _choices(resolved: ResolvedConfig, spec: EnvSpec, profile: EnvProfile) -> dict[str, Choice]:
    values = values_of(resolved.config)
    given = {name: values[name] for name, origin in resolved.origins.items() if origin != CHOSEN}
    workers, lag = resolved.config.sampling.num_workers, resolved.config.learning.max_policy_lag
    return choose(spec, profile, given, num_workers=workers, usual_policy_lag=lag)


def _has_no_defaults(env: str) -> bool:
    """No family has defaults for this environment."""
    family = family_of(env)
    return family is not None and not family.defaults(env)


def resolve_evaluation(argv: Sequence[str], *, prog: str = "enjoy_appo.py") -> ResolvedEvaluation:
    """The configuration of a trained policy, with what is typed in force, and how to watch it.

    Raises:
        ConfigError: there is no such experiment, or something cannot be run; the message says what would.
    """
    evaluation = {"evaluation": EvaluationConfig}
    argv, of_files = with_files(argv, evaluation)
    argv = _with_env(argv)
    layers = _merge_layers(argv, prog, "Watch, record or score a trained policy.", evaluation)
    _settle(layers.values)
    config = compose(layers.groups, layers.values)
    config.check_combinations()
    if not layers.resumed:
        raise ConfigError(f"there is no experiment in {config.run.folder}{config.run.neighbours()}")
    watched = instance_of(EvaluationConfig, layers.values)
    watched.check_combinations()
    if watched.policy_index >= config.sampling.num_policies:
        last = config.sampling.num_policies - 1
        raise ConfigError(f"policy_index={watched.policy_index}, but the policies end at {last}; nearest: {last}")
    return ResolvedEvaluation(config, watched, frozenset(layers.typed), frozenset(of_files))


def print_origins(resolved: ResolvedConfig, console: Any = None) -> None:
    """A table of every option that was fitted or differs from a default, and of the layer that set it."""
    from rich.table import Table
    from rich.text import Text  # unlike plain text, what a user has typed is not read as markup or emojis

    from appo.utils.logs import terminal

    title = f"{resolved.config.env.env}: options other than their defaults"
    table = Table(title=Text(title, style="table.title"))
    table.add_column("option", no_wrap=True)
    table.add_column("value")
    table.add_column("set by")
    if any(origin.startswith(FITTED) for origin in resolved.origins.values()):
        table.caption = (
            "fitted: from the environment's spaces and a moment of random play; docs/environments.md explains"
        )
    values = values_of(resolved.config)
    for name in _options_to_show(resolved):
        table.add_row(name, Text(to_text(values[name])), Text(resolved.origins.get(name, "")))
    (console or terminal()).print(table)


def _options_to_show(resolved: ResolvedConfig) -> list[str]:
    """The options of `print_origins`: also those whose declared default stands instead of what would be here."""
    options = cli.declared_options(groups_of(resolved.config))
    family = family_of(resolved.config.env.env)
    of_family = cli.check_layer(family.defaults(resolved.config.env.env) if family else {}, options, FAMILY_DEFAULTS)
    usual = {name: entry.default for name, entry in options.items()} | of_family
    values, origins = values_of(resolved.config), resolved.origins
    told = {name for name, value in values.items() if value != options[name].default or value != usual[name]}
    told |= {name for name, _, _ in resolved.changed}
    if fitted := {name for name, origin in origins.items() if origin.startswith(FITTED)}:
        told |= fitted | {name for name, origin in origins.items() if origin not in (CHOSEN, FAMILY_DEFAULTS)}
    return [name for name in values if name in told]


def _merge_layers(
    argv: Sequence[str],
    prog: str,
    description: str,
    evaluation: Mapping[str, type] | None = None,
    choices: Mapping[str, Choice] | None = None,
    *,
    begins_anew: bool = False,
    of_file: Mapping[str, str] | None = None,
) -> _Layers:
    cli.require_text(argv)
    cli.require_working_directory()
    env = cli.typed_word(argv, "env") or ""
    family = family_of(env)
    defaults = dict(family.defaults(env)) if family else {}
    saved = Saved({}, ()) if begins_anew else _saved_for(argv, env, only_resume=evaluation is None)
    auxiliary = cli.typed_word(argv, "auxiliary_loss")
    if auxiliary is None:
        auxiliary = text_of(saved.options, "auxiliary_loss") or text_of(defaults, "auxiliary_loss")
    groups = dict(evaluation or {}) | groups_for(env, auxiliary)
    options = cli.declared_options(groups)
    layers = {
        FAMILY_DEFAULTS: cli.check_layer(defaults, options, FAMILY_DEFAULTS),
        CONFIG_FILE: _restored(saved, options, auxiliary),
    }
    lower = {name: value for layer in layers.values() for name, value in layer.items()}
    for name, choice in (choices or {}).items():
        lower.setdefault(name, choice.value)
    reasons = dict.fromkeys(layers[FAMILY_DEFAULTS], FAMILY_DEFAULTS)
    reasons |= {name: f"{FITTED}: {choice.reason}" for name, choice in (choices or {}).items()}
    check_words(argv)
    takes_kwargs = family is not None and family.takes_kwargs
    parsed = cli.parse(
        argv,
        groups,
        lower,
        prog=prog,
        description=description,
        reasons=reasons,
        hint=lambda name: hint_of(name, env, takes_kwargs),
        last_hint=lambda name: last_hint_of(name, env, takes_kwargs),
    )
    if not env:
        raise ConfigError(_NO_ENV)
    layers[cli.COMMAND_LINE] = dict.fromkeys(parsed.typed)
    before = layers[CONFIG_FILE]
    changed = tuple(
        (name, before[name], parsed.values[name])
        for name in sorted(parsed.typed & before.keys())
        if parsed.values[name] != before[name]
    )
    origins = {name: layer for layer, values in layers.items() for name in values} | dict(of_file or {})
    for name, value in layers[FAMILY_DEFAULTS].items():  # config.json holds them as well
        if origins[name] == CONFIG_FILE and name not in saved.typed and before[name] == value:
            origins[name] = FAMILY_DEFAULTS
    typed = tuple(sorted(parsed.typed.union(saved.typed) & options.keys()))
    return _Layers(groups, parsed.values, origins, typed, resumed=bool(saved.options), changed=changed)


def with_env_of_experiment(argv: Sequence[str]) -> list[str]:
    """A command line to train with; one that names an experiment that has begun, and no environment, gets that one.

    Raises:
        ConfigError: the experiment's name or its config.json is damaged.
    """
    if cli.typed_word(argv, "experiment") is None or cli.asks_for_help(argv):
        return list(argv)
    cli.require_text(argv)
    if cli.typed_word(with_files(argv)[0], "env") is not None:
        return list(argv)
    run = place_of(argv)
    run.check_combinations()
    try:
        has_begun = run.config_file.is_file()
    except OSError:  # told where the experiment is opened
        has_begun = False
    return list(_with_env(argv)) if has_begun else list(argv)


def _with_env(argv: Sequence[str]) -> Sequence[str]:
    """Words that name an experiment and no environment, with the environment that it was trained with.

    Raises:
        ConfigError: there is no such experiment.
    """
    if cli.typed_word(argv, "env") is not None or cli.asks_for_help(argv):
        return argv
    run = place_of(argv)
    run.check_combinations()
    path = run.config_file
    try:
        env = text_of(parse_saved(path.read_text(encoding="utf-8"), str(path)).options, "env")
    except FileNotFoundError:
        raise ConfigError(f"there is no experiment in {run.folder}{run.neighbours()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {REPAIR}", OR_BEGIN_ANEW) from error
    if not env:
        raise ConfigError(f"{path} names no environment; {REPAIR}", OR_BEGIN_ANEW)
    return [f"--env={env}", *argv]


def _saved_for(argv: Sequence[str], env: str, *, only_resume: bool) -> Saved:
    """config.json of the experiment that the command line names; nothing when there is none to go on from."""
    run = place_of(argv)
    if not env or cli.asks_for_help(argv) or (only_resume and run.restart_behavior != "resume"):
        return Saved({}, ())
    if only_resume and cli.typed_flag(argv, "benchmark") and cli.typed_word(argv, "experiment") is None:
        return Saved({}, ())  # what is measured is no experiment, unless one is named
    run.check_combinations()
    return read_saved(run.config_file, env) or Saved({}, ())


def _restored(saved: Saved, options: Mapping[str, cli.Declared], auxiliary: str) -> dict[str, Any]:
    """What a resumed run takes over: all but its location, its view, and the options of a loss it no longer uses."""
    before = text_of(saved.options, "auxiliary_loss")
    dropped = cli.declared_options({"auxiliary": auxiliary_type(before)}) if before and before != auxiliary else {}
    kept = {name: value for name, value in saved.options.items() if name in options or name not in dropped}
    try:
        checked = cli.check_layer(kept, options, saved.source)
    except ConfigError as error:
        raise ConfigError(f"{error}; {REPAIR}", OR_BEGIN_ANEW) from error
    return {name: value for name, value in checked.items() if name not in NOT_RESTORED}


def _settle(values: dict[str, Any]) -> list[str]:
    """Choose, in place, what a default of -1 leaves open; the names of what was chosen."""
    chosen: dict[str, int] = {}
    if values["num_workers"] == -1:
        chosen["num_workers"] = core_count()
    if values["seed"] == -1:
        chosen["seed"] = secrets.randbelow(2**31)  # short enough to type
    values.update(chosen)
    return list(chosen)


def reference() -> str:
    """The reference page of every option, those of each family of environments included."""
    from appo.envs.registry import families

    groups = groups_for("", "") | {"evaluation": EvaluationConfig}
    of_families = {f"--env={name}_...": family.config for name, family in families().items()}
    return cli.reference_page(groups, of_families, "python -m appo.algorithms.config")


def main() -> None:
    """Write the reference page."""
    page = Path(__file__).resolve().parent.parent / "docs" / "options.md"
    page.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
