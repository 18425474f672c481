"""The files that a user writes for a population, read with the options of the run that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appo.algorithms.learning.config import changed, changing_options
from appo.algorithms.population.schedule import ScheduleStep, read_schedule
from appo.algorithms.population.start_values import read_start_values
from appo.algorithms.train_config import TrainConfig


def check_files(config: TrainConfig, *, resumed: bool) -> None:
    """Refuse files of a population that cannot be used. Where a run is resumed, what policies begin with is past.

    Raises:
        ConfigError: names the file and what is wrong with it.
    """
    if not resumed:
        start_values(config)
    schedule(config)


def start_values(config: TrainConfig) -> list[dict[str, float]]:
    """What the file of `--pbt_start_values` says of each policy; nothing without it.

    Raises:
        ConfigError: it cannot be used.
    """
    path = config.population.pbt_start_values
    usual = {name: option.value for name, option in changing_options(config.learning, config.auxiliary).items()}
    return read_start_values(path, config.sampling.num_policies, usual, _changes(config)) if path else []


def schedule(config: TrainConfig) -> list[ScheduleStep]:
    """What the file of `--schedule_file` says; nothing without it.

    Raises:
        ConfigError: it cannot be used.
    """
    path = config.population.schedule_file
    return read_schedule(path, _changes(config)) if path else []


def _changes(config: TrainConfig) -> Callable[[dict[str, float]], Any]:
    return lambda values: changed(config.learning, config.auxiliary, values)
