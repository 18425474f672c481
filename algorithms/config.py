"""A run's whole configuration: every room's options composed, and how layers of values become one.

Layers, later wins: declared defaults < the environment's defaults < config.json of a resumed experiment < the file of
`--config` < what the user typed. For an environment without family defaults, options that no layer set are chosen after
a moment of random play (`fitted`). Each layer is checked in the same way, and the origin of every value is known. Where
a run is, and what to do with what lies there (`LOCATION`), is never taken from config.json: the folder may have been
moved.

Nothing here imports torch, unless an auxiliary loss is chosen, and nothing imports Gymnasium before an environment is.
`python -m appo.algorithms.config` writes the reference page docs/options.md from the declarations.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from appo.algorithms.evaluation.config import EvaluationConfig
from appo.algorithms.familiar_words import HINTS, SYNONYMS
from appo.algorithms.fitted_defaults import Choice, choose
from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.population.config import PopulationConfig
from appo.algorithms.run.config import CONFIG_FILE, RunConfig
from appo.algorithms.sampling.config import RANDOM, SamplingConfig
from appo.algorithms.saved_config import REPAIR, Saved, parse_saved, read_options, read_saved
from appo.algorithms.workers.config import WorkersConfig
from appo.envs.api import EnvFamily, EnvProfile, EnvSpec
from appo.envs.config import EnvConfig
from appo.utils import cli
from appo.utils.options import ConfigError, to_text
from appo.utils.processes import core_count

FAMILY_DEFAULTS = "family defaults"
CHOSEN = "chosen for this run"  # the origin of what a default of -1 left open
LOCATION = ("experiment", "train_dir", "experiments_root", "restart_behavior", "config")
NOT_RESTORED = (*LOCATION, "debug", "view")  # the next start may have another terminal
FITTED = "fitted"  # the origin of what follows from its spaces and random play
_DESCRIPTION = "Train a policy with asynchronous PPO."
_NO_ENV = "--env is required; for example --env=CartPole-v1, --env=doom_basic or --env=my_package.my_module:make_env"


@dataclass(frozen=True)
class NoOptions:
    """The options of an environment family or an auxiliary loss that has none."""


@dataclass(frozen=True)
class TrainConfig:
    """Every option of a run, by the room that uses it. Immutable: `with_values` makes a changed one."""

    run: RunConfig
    env: EnvConfig
    sampling: SamplingConfig
    workers: WorkersConfig
    learning: LearningConfig
    model: ModelConfig
    population: PopulationConfig
    family: Any  # an instance of `EnvFamily.config`
    auxiliary: Any  # an instance of the auxiliary loss's options, or NoOptions

    def check_combinations(self) -> None:
        """Refuse options that are fine alone but not together.

        Raises:
            ConfigError: names the options, their values and the nearest that work.
        """
        for room in (self.run, self.env, self.sampling, self.workers, self.model, self.learning, self.population):
            room.check_combinations()
        if self.run.save_best_metric.startswith("eval_") and not self.workers.eval_every_sec:
            raise ConfigError(
                f"save_best_metric={self.run.save_best_metric} needs evaluations beside training: "
                "--eval_every_sec=60, for example"
            )
        if "eval/" in self.run.stop_when and not self.workers.eval_every_sec:
            raise ConfigError(
                f"stop_when={self.run.stop_when!r} needs evaluations beside training: --eval_every_sec=60, for example"
            )
        if self.workers.eval_every_sec and self.sampling.agent_policy_map:
            raise ConfigError(
                "eval_every_sec lets a policy play all agents, agent_policy_map gives each its own: leave one out"
            )
        if self.workers.serial_mode and self.sampling.env_backend == "subproc":
            raise ConfigError(
                "serial_mode=True runs everything in one process, env_backend=subproc environments in others; nearest: "
                "--env_backend=serial"
            )
        policies, population = self.sampling.num_policies, self.population
        if population.with_pbt and policies < 2:
            raise ConfigError("with_pbt=True needs a population; nearest: --num_policies=2, usual are 4 to 8")
        if self.run.sampler_only and (population.with_pbt or population.schedule_file):
            name = "with_pbt=True" if population.with_pbt else "schedule_file"
            raise ConfigError(f"{name} has nothing to tune with sampler_only=True; leave one out")
        if self.sampling.policy == "random" and not self.run.sampler_only:
            raise ConfigError("policy=random plays actions that nothing is learned from; add --sampler_only=True")
        if self.sampling.policy == "random" and self.workers.serial_mode:
            raise ConfigError("policy=random measures actor workers, which serial_mode=True has none of; leave one out")
        if self.sampling.policy == "random" and self.workers.eval_every_sec:
            raise ConfigError("policy=random leaves nothing to evaluate; leave eval_every_sec out")
        if self.run.sampler_only and self.sampling.self_play:
            raise ConfigError("self_play=True needs policies that learn, which none does with sampler_only=True")


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
    argv, of_file = _with_file(argv)
    if profile is not None and cli.asks_for_help(argv) and _has_no_defaults(cli.typed_word(argv, "env") or ""):
        words = [word for word in argv if not cli.asks_for_help([word])]
        unfitted = _resolved(_merge_layers(words, prog, _DESCRIPTION, begins_anew=True))
        choices = _choices(unfitted, *profile(unfitted))
    resolved = _resolved(_merge_layers(argv, prog, _DESCRIPTION, choices=choices, of_file=of_file))
    resolved.config.run.check_machine()
    return resolved


def _resolved(layers: _Layers) -> ResolvedConfig:
    origins = layers.origins | dict.fromkeys(_settle(layers.values), CHOSEN)
    config = _compose(layers.groups, layers.values)
    needs_fitting = not layers.resumed and _has_no_defaults(config.env.env)
    if not needs_fitting:
        config.check_combinations()
    return ResolvedConfig(config, origins, layers.typed, layers.resumed, needs_fitting, layers.changed)


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
    family = _family(env)
    return family is not None and not family.defaults(env)


def resolve_evaluation(argv: Sequence[str], *, prog: str = "enjoy_appo.py") -> ResolvedEvaluation:
    """The configuration of a trained policy, with what is typed in force, and how to watch it.

    Raises:
        ConfigError: there is no such experiment, or something cannot be run; the message says what would.
    """
    evaluation = {"evaluation": EvaluationConfig}
    argv, _ = _with_file(argv, evaluation)
    argv = _with_env(argv)
    layers = _merge_layers(argv, prog, "Watch, record or score a trained policy.", evaluation)
    _settle(layers.values)
    config = _compose(layers.groups, layers.values)
    config.check_combinations()
    if not layers.resumed:
        raise ConfigError(f"there is no experiment in {config.run.folder}{config.run.neighbours()}")
    watched = _instance(EvaluationConfig, layers.values)
    watched.check_combinations()
    if watched.policy_index >= config.sampling.num_policies:
        last = config.sampling.num_policies - 1
        raise ConfigError(f"policy_index={watched.policy_index}, but the policies end at {last}; nearest: {last}")
    return ResolvedEvaluation(config, watched)


def with_values(config: TrainConfig, changes: Mapping[str, Any], *, layer: str = "program") -> TrainConfig:
    """The same configuration with some options changed, checked like any other layer.

    Raises:
        ConfigError: an unknown option, a value out of range, or a combination that cannot run.
    """
    groups = _groups_of(config)
    values = values_of(config) | cli.check_layer(changes, cli.declared_options(groups), layer)
    changed = _compose(groups, values)
    changed.check_combinations()
    return changed


def to_json(config: TrainConfig, typed: Sequence[str] = ()) -> str:
    """The text of config.json: every option's value, and which were typed."""
    options = {name: _plain(value) for name, value in values_of(config).items()}
    return json.dumps({"options": options, "typed": sorted(typed)}, indent=2) + "\n"


def from_json(text: str, *, source: str = CONFIG_FILE) -> TrainConfig:
    """The configuration that `to_json` wrote. Options that did not exist then take their defaults.

    Raises:
        ConfigError: the text is damaged, or holds what no option allows.
    """
    saved = parse_saved(text, source)
    groups = _groups(_text_of(saved.options, "env"), _text_of(saved.options, "auxiliary_loss"))
    options = cli.declared_options(groups)
    defaults = {name: entry.default for name, entry in options.items()}
    config = _compose(groups, defaults | cli.check_layer(saved.options, options, CONFIG_FILE))
    config.check_combinations()
    return config


def print_origins(resolved: ResolvedConfig, console: Any = None) -> None:
    """A table of every option that was fitted or differs from its declared default, and of the layer that set it."""
    from rich.table import Table

    from appo.utils.logs import terminal

    table = Table(title=f"{resolved.config.env.env}: options other than their defaults")
    table.add_column("option", no_wrap=True)
    table.add_column("value")
    table.add_column("set by")
    if any(origin.startswith(FITTED) for origin in resolved.origins.values()):
        table.caption = (
            "fitted: from the environment's spaces and a moment of random play; docs/environments.md explains"
        )
    options = cli.declared_options(_groups_of(resolved.config))
    for name, value in values_of(resolved.config).items():
        origin = resolved.origins.get(name, "")
        if value != options[name].default or origin.startswith(FITTED):
            table.add_row(name, to_text(value), origin)
    (console or terminal()).print(table)


def check_with_spec(config: TrainConfig, spec: EnvSpec) -> None:
    """Refuse what cannot run with this environment: the check that needs to know how many agents it has.

    Raises:
        ConfigError: players that the environment has no seats or scripts for; synchronous training whose batches are
            larger than what all blocks hold: it would wait for ever.
    """
    learning, sampling = config.learning, config.sampling
    _check_players(sampling, spec)
    trajectories = sampling.num_workers * sampling.num_envs_per_worker * spec.agents_per_env // sampling.num_policies
    needed = learning.trajectories_per_iteration
    if config.workers.async_rl or trajectories >= needed:
        return
    of_policy = f" of each of {sampling.num_policies} policies" if sampling.num_policies > 1 else ""
    columns = trajectories // learning.num_batches_per_iteration
    smaller = f"batch_size={columns * learning.rollout} or " if columns else ""
    splits, per_env = sampling.worker_num_splits, sampling.num_workers * spec.agents_per_env
    envs = math.ceil(needed * sampling.num_policies / per_env / splits) * splits
    raise ConfigError(
        f"async_rl=False learns from one rollout of every agent, {trajectories} trajectories, but an iteration"
        f"{of_policy} takes {needed} (num_batches_per_iteration={learning.num_batches_per_iteration} of batch_size="
        f"{learning.batch_size}); nearest: {smaller}num_envs_per_worker={envs}"
    )


def _check_players(sampling: SamplingConfig, spec: EnvSpec) -> None:
    if spec.agents_per_env == 1 and (sampling.self_play or sampling.agent_policy_map):
        name = "self_play=True" if sampling.self_play else f"agent_policy_map={sampling.agent_policy_map!r}"
        raise ConfigError(f"{name} needs an environment with several agents; this one has 1")
    sampling.policies_of(spec.agents)
    scripts = (RANDOM, *spec.scripted_players)
    for name in sampling.anchors:
        if name not in scripts:
            raise ConfigError(f"self_play_anchors={name}: the environment offers {', '.join(scripts)}")


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
    family = _family(env)
    defaults = dict(family.defaults(env)) if family else {}
    saved = Saved({}, ()) if begins_anew else _saved_for(argv, env, only_resume=evaluation is None)
    auxiliary = cli.typed_word(argv, "auxiliary_loss")
    if auxiliary is None:
        auxiliary = _text_of(saved.options, "auxiliary_loss") or _text_of(defaults, "auxiliary_loss")
    groups = dict(evaluation or {}) | _groups(env, auxiliary)
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
    parsed = cli.parse(argv, groups, lower, prog=prog, description=description, reasons=reasons, hints=HINTS)
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


def _with_file(argv: Sequence[str], evaluation: Mapping[str, type] | None = None) -> tuple[list[str], dict[str, str]]:
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
    sections = {name for name in _groups("", "") if isinstance(found.get(name), dict)}
    for name in sections:
        found = found | found[name]
    found = {name: value for name, value in found.items() if name not in sections}
    env, auxiliary = (cli.typed_word(argv, name) or _text_of(found, name) for name in ("env", "auxiliary_loss"))
    options = cli.declared_options(dict(evaluation or {}) | _groups(env, auxiliary))
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


def _with_env(argv: Sequence[str]) -> Sequence[str]:
    """Words that name an experiment and no environment, with the environment that it was trained with.

    Raises:
        ConfigError: there is no such experiment.
    """
    if cli.typed_word(argv, "env") is not None or cli.asks_for_help(argv):
        return argv
    run = _place_of(argv)
    run.check_combinations()
    try:
        env = _text_of(parse_saved((run.folder / CONFIG_FILE).read_text(encoding="utf-8"), CONFIG_FILE).options, "env")
    except FileNotFoundError:
        raise ConfigError(f"there is no experiment in {run.folder}{run.neighbours()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{run.folder / CONFIG_FILE} cannot be read: {error}; {REPAIR}") from error
    if not env:
        raise ConfigError(f"{run.folder / CONFIG_FILE} names no environment; {REPAIR}")
    return [f"--env={env}", *argv]


def _place_of(argv: Sequence[str]) -> RunConfig:
    place = {name: word for name in LOCATION if (word := cli.typed_word(argv, name)) is not None}
    return dataclasses.replace(RunConfig(), **place)  # type: ignore[arg-type]  # all of them are text


def _saved_for(argv: Sequence[str], env: str, *, only_resume: bool) -> Saved:
    """config.json of the experiment that the command line names; nothing when there is none to go on from."""
    run = _place_of(argv)
    if not env or cli.asks_for_help(argv) or (only_resume and run.restart_behavior != "resume"):
        return Saved({}, ())
    if only_resume and cli.typed_flag(argv, "benchmark") and cli.typed_word(argv, "experiment") is None:
        return Saved({}, ())  # what is measured is no experiment, unless one is named
    run.check_combinations()
    return read_saved(run.folder / CONFIG_FILE, env) or Saved({}, ())


def _restored(saved: Saved, options: Mapping[str, cli.Declared], auxiliary: str) -> dict[str, Any]:
    """What a resumed run takes over: all but its location, its view, and the options of a loss it no longer uses."""
    before = _text_of(saved.options, "auxiliary_loss")
    dropped = cli.declared_options({"auxiliary": _auxiliary_type(before)}) if before and before != auxiliary else {}
    kept = {name: value for name, value in saved.options.items() if name in options or name not in dropped}
    try:
        checked = cli.check_layer(kept, options, CONFIG_FILE)
    except ConfigError as error:
        raise ConfigError(f"{error}; {REPAIR}") from error
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


def _groups(env: str, auxiliary: str) -> dict[str, type]:
    """Title in the help -> the dataclass that declares its options."""
    hints = typing.get_type_hints(TrainConfig)
    groups = {field.name: hints[field.name] for field in dataclasses.fields(TrainConfig)}
    family = _family(env)
    return groups | {
        "family": family.config if family else NoOptions,
        "auxiliary": _auxiliary_type(auxiliary) if auxiliary else NoOptions,
    }


def _groups_of(config: TrainConfig) -> dict[str, type]:
    return {field.name: type(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _family(env: str) -> EnvFamily | None:
    if not env:
        return None
    from appo.envs.registry import resolve as resolve_env

    family: EnvFamily = resolve_env(env).family
    return family


def _auxiliary_type(name: str) -> type:
    from appo.algorithms.learning.auxiliary_loss import load

    folder = str(Path.cwd())
    if folder not in sys.path:  # workers look there, too, for what is the user's own
        sys.path.append(folder)
    return load(name).config


def _compose(groups: Mapping[str, type], values: Mapping[str, Any]) -> TrainConfig:
    rooms = [field.name for field in dataclasses.fields(TrainConfig)]
    return TrainConfig(**{room: _instance(groups[room], values) for room in rooms})


def _instance(config_type: type, values: Mapping[str, Any]) -> Any:
    return config_type(**{field.name: values[field.name] for field in dataclasses.fields(config_type)})


def values_of(config: TrainConfig) -> dict[str, Any]:
    """Every option by name."""
    rooms = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return {field.name: getattr(room, field.name) for room in rooms for field in dataclasses.fields(room)}


def _text_of(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name, "")
    return value if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    """A value as JSON holds it; infinity as text, which JSON has no number for."""
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def reference() -> str:
    """The reference page of every option that is always there."""
    return cli.reference_page(_groups("", "") | {"evaluation": EvaluationConfig}, "python -m appo.algorithms.config")


def main() -> None:
    """Write the reference page."""
    page = Path(__file__).resolve().parent.parent / "docs" / "options.md"
    page.write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
