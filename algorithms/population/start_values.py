"""The file of `--pbt_start_values`: what each policy of a population begins with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from appo.algorithms.population.tuned import require_numbers, reward_weights
from appo.utils.options import ConfigError


def read_start_values(
    path: str, num_policies: int, usual: Mapping[str, float], check: Callable[[dict[str, float]], Any]
) -> list[dict[str, float]]:
    """One object of options per policy, each with every option that any of them has.

    Args:
        path: of the file.
        num_policies: how many objects it has to have.
        usual: what the run begins with, by name.
        check: raises ConfigError for values that cannot be in force.

    Raises:
        ConfigError: the file cannot be read, is not a list of that many objects, or holds what cannot be in force.
    """
    try:
        told = json.loads(Path(path).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"pbt_start_values={path} cannot be read: {error}") from error
    if not isinstance(told, list) or not all(isinstance(entry, dict) for entry in told):
        raise ConfigError(
            f'pbt_start_values={path} has to hold a list with an object per policy: [{{"learning_rate": 1e-4}}, ...]'
        )
    if len(told) != num_policies:
        raise ConfigError(
            f"pbt_start_values={path} has {len(told)} objects for num_policies={num_policies}; one per policy is needed"
        )
    for policy, values in enumerate(told):
        require_numbers(values, f"pbt_start_values={path}, policy {policy},")
        if weights := sorted(reward_weights(values)):
            raise ConfigError(
                f"pbt_start_values={path}, policy {policy}: {weights[0]} is a weight of rewards, which "
                "begins as the environment says and is changed by mutations; leave it out"
            )
        try:
            check(values)
        except ConfigError as error:
            raise ConfigError(f"pbt_start_values={path}, policy {policy}: {error}") from error
    # A copy is told every option that any policy has, or one that only its own past has would stay in force.
    names = {name for values in told for name in values}
    return [
        {name: usual[name] for name in sorted(names)} | {name: float(value) for name, value in values.items()}
        for values in told
    ]
