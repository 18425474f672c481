"""Every option of a run in one value, composed of the options of each room: made, changed, saved, checked.

Nothing here imports torch, unless an auxiliary loss is chosen, and nothing imports Gymnasium before an environment is.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appo.algorithms.learning.config import LearningConfig
from appo.algorithms.models.config import ModelConfig
from appo.algorithms.population.config import PopulationConfig
from appo.algorithms.run.config import CONFIG_FILE, RunConfig
from appo.algorithms.sampling.config import RANDOM, SamplingConfig
from appo.algorithms.saved_config import LOCATION, parse_saved, text_of
from appo.algorithms.workers.config import WorkersConfig
from appo.envs.api import EnvFamily, EnvSpec
from appo.envs.config import EnvConfig
from appo.utils import cli
from appo.utils.options import ConfigError


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


def with_values(config: TrainConfig, changes: Mapping[str, Any], *, layer: str = "program") -> TrainConfig:
    """The same configuration with some options changed, checked like any other layer.

    Raises:
        ConfigError: an unknown option, a value out of range, or a combination that cannot run.
    """
    groups = groups_of(config)
    values = values_of(config) | cli.check_layer(changes, cli.declared_options(groups), layer)
    changed = compose(groups, values)
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
    groups = groups_for(text_of(saved.options, "env"), text_of(saved.options, "auxiliary_loss"))
    options = cli.declared_options(groups)
    defaults = {name: entry.default for name, entry in options.items()}
    config = compose(groups, defaults | cli.check_layer(saved.options, options, CONFIG_FILE))
    config.check_combinations()
    return config


def holds_blocks(config: TrainConfig) -> bool:
    """Actors wait for the weights that their last rollout led to."""
    return not config.workers.async_rl or config.learning.num_minibatches_to_accumulate == 0


def check_with_spec(config: TrainConfig, spec: EnvSpec) -> None:
    """Refuse what cannot run with this environment: the check that needs to know how many agents it has.

    Raises:
        ConfigError: players that the environment has no seats or scripts for; synchronous training whose batches are
            larger than what all blocks hold: it would wait for ever; a step size that follows changes of the policy
            where the learner sees none.
    """
    learning, sampling = config.learning, config.sampling
    _check_players(sampling, spec)
    trajectories = sampling.num_workers * sampling.num_envs_per_worker * spec.agents_per_env // sampling.num_policies
    needed = learning.trajectories_per_iteration
    _check_schedule(config, trajectories)
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


def _check_schedule(config: TrainConfig, trajectories: int) -> None:
    """Refuse a schedule by KL divergence where each iteration learns once from what its own weights have chosen."""
    learning, sampling = config.learning, config.sampling
    is_one_step = learning.num_batches_per_iteration * learning.ppo_epochs == 1
    # With a rest, or where opponents leave columns out, the next iteration has rows that older weights have chosen.
    is_whole = sampling.num_policies == 1 and not sampling.self_play
    is_whole = is_whole and learning.trajectories_per_iteration % trajectories == 0
    if learning.lr_schedule.startswith("kl_adaptive") and holds_blocks(config) and is_one_step and is_whole:
        name = "num_minibatches_to_accumulate=0" if config.workers.async_rl else "async_rl=False"
        raise ConfigError(
            f"lr_schedule={learning.lr_schedule} has no change of the policy to follow with {name} and one optimizer "
            "step per iteration: the weights that learn are those that acted; nearest: --ppo_epochs=2"
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


def groups_for(env: str, auxiliary: str) -> dict[str, type]:
    """Title in the help -> the dataclass that declares its options."""
    hints = typing.get_type_hints(TrainConfig)
    groups = {field.name: hints[field.name] for field in dataclasses.fields(TrainConfig)}
    family = family_of(env)
    return groups | {
        "family": family.config if family else NoOptions,
        "auxiliary": auxiliary_type(auxiliary) if auxiliary else NoOptions,
    }


def groups_of(config: TrainConfig) -> dict[str, type]:
    """Title in the help -> the dataclass that declares its options, of a configuration that there is."""
    return {field.name: type(getattr(config, field.name)) for field in dataclasses.fields(config)}


def family_of(env: str) -> EnvFamily | None:
    """The family of an environment; None where none is named."""
    if not env:
        return None
    from appo.envs.registry import resolve as resolve_env

    family: EnvFamily = resolve_env(env).family
    return family


def auxiliary_type(name: str) -> type:
    """The options of an auxiliary loss, which may be in a file beside the user."""
    from appo.algorithms.learning.auxiliary_loss import load

    folder = str(Path.cwd())
    if folder not in sys.path:  # workers look there, too, for what is the user's own
        sys.path.append(folder)
    return load(name).config


def place_of(argv: Sequence[str]) -> RunConfig:
    """The experiment that a command line names: name and folders of it, anything else as by default."""
    place = {name: word for name in LOCATION if (word := cli.typed_word(argv, name)) is not None}
    return dataclasses.replace(RunConfig(), **place)  # type: ignore[arg-type]  # all of them are text


def compose(groups: Mapping[str, type], values: Mapping[str, Any]) -> TrainConfig:
    """The configuration with these values, which hold every option; combinations are not checked."""
    rooms = [field.name for field in dataclasses.fields(TrainConfig)]
    return TrainConfig(**{room: instance_of(groups[room], values) for room in rooms})


def instance_of(config_type: type, values: Mapping[str, Any]) -> Any:
    """One group of options out of all values."""
    return config_type(**{field.name: values[field.name] for field in dataclasses.fields(config_type)})


def values_of(config: TrainConfig) -> dict[str, Any]:
    """Every option by name."""
    rooms = [getattr(config, field.name) for field in dataclasses.fields(config)]
    return {field.name: getattr(room, field.name) for room in rooms for field in dataclasses.fields(room)}


def _plain(value: Any) -> Any:
    """A value as JSON holds it; infinity as text, which JSON has no number for."""
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
